// Copies from global to shared memory that run behind the threads' back: cp.async, from sm80 up.
// device/copy_staged.cuh has the same names for what comes before.
#pragma once

#include "device/tile.cuh"

namespace flashgen {

// A tile on its way: rows [0, kRows) of kHeadDim elements each.
template <typename Tile, int kHeadDim, int kNumThreads, int kRowThreads = kHeadDim / 8>
struct TileCopy {
    using Share = TileShare<Tile, kHeadDim, kNumThreads, kRowThreads>;

    // Starts it. Rows before `begin_row` and from `end_row` up become zeros, so that nothing past a
    // sequence's end reaches a product. `source` is Share::source() of the tile's first row.
    template <typename Element>
    __device__ __forceinline__ void start(Tile tile, const Element* source, int64_t row_stride,
                                          int end_row, int begin_row = INT32_MIN) const {
        Share::visit([&](int i, int row, int col) {
            cp_async_16(tile.at(row, col), source + Share::next_col(i),
                        row < end_row && row >= begin_row);
            if ((i + 1) % Share::kRowChunks == 0) source += Share::kRowStep * row_stride;
        });
    }

    // It ends by itself; wait_for_copies() says when.
    __device__ __forceinline__ void finish(Tile) const {}
};

// The same in parts, between the steps of a product, which then starts at once.
template <typename Copy, typename Tile, typename Element>
struct PacedCopy {
    using Share = typename Copy::Share;
    uint32_t smem;           // of the thread's first chunk
    const Element*& source;  // of its next one; ends a tile further down than it began
    int64_t row_stride;
    int end_row, begin_row;  // counted from the thread's first row

    static __device__ __forceinline__ PacedCopy of(Tile tile, const Element*& source,
                                                   int64_t row_stride, int end_row,
                                                   int begin_row = INT32_MIN) {
        const int thread = opaque(threadIdx.x);
        const int row = thread / Share::kRowThreads;
        return {tile.at(row, thread % Share::kRowThreads * 8), source, row_stride, end_row - row,
                begin_row == INT32_MIN ? begin_row : begin_row - row};
    }

    // Starts part `part` of `parts`, whole rows: what follows a product's loads from shared memory
    // has its price, on sm90 three empty instructions, so few are better than many.
    __device__ __forceinline__ void start(int part, int parts) {
#pragma unroll
        for (int i = part * Share::kRowSteps / parts; i < (part + 1) * Share::kRowSteps / parts;
             ++i) {
            const int row = i * Share::kRowStep;
#pragma unroll
            for (int j = 0; j < Share::kRowChunks; ++j) {
                cp_async_16(smem + Tile::offset(row, Share::next_col(j)),
                            source + Share::next_col(j),
                            row < end_row && row >= begin_row);
            }
            source += Share::kRowStep * row_stride;
        }
    }
};

// One float of the thread on its way.
struct FloatCopy {
    __device__ __forceinline__ void start(uint32_t smem, const float* gmem, bool valid) const {
        cp_async_4(smem, gmem, valid);
    }
    __device__ __forceinline__ void finish(uint32_t) const {}
};

// Makes a group of the copies that were started; wait_for_copies() waits for groups.
__device__ __forceinline__ void commit_copies() { cp_async_commit(); }

// Waits until what the thread has committed has landed; a barrier shows it to the others.
__device__ __forceinline__ void wait_for_copies() { cp_async_wait<0>(); }

// Waits for every copy of the thread, committed or not: before its target is used for something
// else.
__device__ __forceinline__ void wait_for_all_copies() { cp_async_wait_all(); }

// Copies rows [0, num_rows) of a tile that is not walked, whose first row is at `gmem`; the others
// become zeros. It ends like a TileCopy.
template <int kHeadDim, int kNumThreads, typename Tile, typename Element>
__device__ __forceinline__ void copy_rows(Tile tile, const Element* gmem, int64_t row_stride,
                                          int num_rows) {
    using Copy = TileCopy<Tile, kHeadDim, kNumThreads>;
    Copy().start(tile, Copy::Share::source(gmem, row_stride), row_stride, num_rows);
}

}  // namespace flashgen
