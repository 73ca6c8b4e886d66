// A tile of 16-bit elements in shared memory: how it is stored, filled, read as mma fragments and
// written back.
//
// Rows are padded by 16 bytes. A row is then an odd number of 16-byte chunks, so the eight rows of
// an ldmatrix phase fall into eight different bank groups: no conflicts at any head_dim, and every
// fragment address is a base plus an immediate, where an XOR swizzle needs a power of two and an
// instruction per address.
#pragma once

#include "device/element.cuh"
#include "device/non_finite.cuh"
#include "device/ptx.cuh"

namespace flashgen {

// kRows x kCols elements; columns from kCols up to kStride are padding. kCols is a multiple of 16.
template <int kRows_, int kCols_>
struct SmemTile {
    static constexpr int kRows = kRows_;
    static constexpr int kCols = kCols_;
    static constexpr int kStride = kCols + 8;  // elements
    static constexpr int kBytes = kRows * kStride * 2;
    static_assert(kCols % 16 == 0, "a fragment is 16 elements deep");

    uint32_t base;  // address in shared memory

    static __device__ __forceinline__ uint32_t offset(int row, int col) {
        return (row * kStride + col) * 2;  // bytes
    }
    __device__ __forceinline__ uint32_t at(int row, int col) const {
        return base + offset(row, col);
    }

    // kPart of its rows, from `row` up.
    template <int kPart>
    __device__ __forceinline__ SmemTile<kPart, kCols> rows(int row) const {
        return {at(row, 0)};
    }

    // Element (row, col) of each accessor below is the top left of a 16 x 16 block. An address is
    // summed as lane's part + block's part: where the block is a constant, so is its part, and all
    // blocks of a tile share one register.

    // The block as the A operand of a product: A[m, k] = tile[row + m, col + k].
    __device__ __forceinline__ void load_a(uint32_t (&a)[4], int row, int col, int lane) const {
        ldmatrix_x4(a, at(lane % 16, lane / 16 * 8) + offset(row, col));
    }
    // A[m, k] = tile[row + k, col + m].
    __device__ __forceinline__ void load_a_trans(uint32_t (&a)[4], int row, int col,
                                                 int lane) const {
        ldmatrix_x4_trans(a, at(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8) + offset(row, col));
    }
    // The block as two B operands, b[0..1] for n < 8 and b[2..3] for n >= 8:
    // B[k, n] = tile[row + n, col + k].
    __device__ __forceinline__ void load_b(uint32_t (&b)[4], int row, int col, int lane) const {
        ldmatrix_x4(b, at(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8) + offset(row, col));
    }
    // B[k, n] = tile[row + k, col + n].
    __device__ __forceinline__ void load_b_trans(uint32_t (&b)[4], int row, int col,
                                                 int lane) const {
        ldmatrix_x4_trans(b, at(lane % 16, lane / 16 * 8) + offset(row, col));
    }

    // Stores a block that is held as the A operand of a product.
    __device__ __forceinline__ void store_a(const uint32_t (&a)[4], int row, int col,
                                            int lane) const {
        const uint32_t address = at(lane / 4, lane % 4 * 2) + offset(row, col);
        st_shared_32(address, a[0]);
        st_shared_32(address + offset(8, 0), a[1]);
        st_shared_32(address + offset(0, 8), a[2]);
        st_shared_32(address + offset(8, 8), a[3]);
    }

    // Stores two neighbouring elements of a row.
    __device__ __forceinline__ void store_pair(int row, int col, uint32_t pair) const {
        st_shared_32(at(row, col), pair);
    }

    // Zeroes the columns from kHeadDim to kCols, which copies never touch.
    template <int kHeadDim, int kNumThreads>
    __device__ __forceinline__ void clear_padding() const {
        if constexpr (kHeadDim < kCols) {
            static_assert(kCols - kHeadDim == 8, "head_dim is padded by one chunk at most");
            for (int row = threadIdx.x; row < kRows; row += kNumThreads) {
#pragma unroll
                for (int i = 0; i < 4; ++i) st_shared_32(at(row, kHeadDim + 2 * i), 0);
            }
        }
    }

    // Zeroes those of the 32 rows from `first_row` up whose bit is set.
    template <int kNumThreads>
    __device__ __forceinline__ void clear_rows(int first_row, uint32_t which) const {
        constexpr int kChunks = kCols / 8;  // of 16 bytes, a row
        for (int chunk = threadIdx.x; chunk < 32 * kChunks; chunk += kNumThreads) {
            const int row = chunk / kChunks;
            if (which >> row & 1 && (kRows % 32 == 0 || first_row + row < kRows)) {
                st_shared_zero_16(at(first_row + row, chunk % kChunks * 8));
            }
        }
    }

    // Makes zeros of every infinity and NaN among what this thread copied, once that has landed.
    template <typename Element, int kHeadDim, int kNumThreads>
    __device__ __forceinline__ void clear_non_finite() const {
        constexpr int kChunks = kHeadDim / 8;
        constexpr int kRowStep = kNumThreads / kChunks;
        const int first_row = threadIdx.x / kChunks;
        const int col = threadIdx.x % kChunks * 8;
        if (first_row >= kRowStep) return;
#pragma unroll 1
        for (int row = first_row; row < kRows; row += kRowStep) {
            flashgen::clear_non_finite<Element>(at(row, col));
        }
    }

    // Writes rows [0, num_rows) of kHeadDim elements to global memory.
    template <int kHeadDim, int kNumThreads, typename Element>
    __device__ __forceinline__ void store(Element* gmem, int64_t row_stride, int num_rows) const {
        constexpr int kChunks = kHeadDim / 8;
        constexpr int kTotal = kRows * kChunks;
#pragma unroll
        for (int i = 0; i < (kTotal + kNumThreads - 1) / kNumThreads; ++i) {
            const int chunk = threadIdx.x + i * kNumThreads;
            const int row = chunk / kChunks;
            const int col = chunk % kChunks * 8;
            if (row < num_rows && (kTotal % kNumThreads == 0 || chunk < kTotal)) {
                uint32_t words[4];
                ld_shared_128(words, at(row, col));
                *reinterpret_cast<uint4*>(gmem + row * row_stride + col) = {words[0], words[1],
                                                                            words[2], words[3]};
            }
        }
    }
};

// What a thread copies of a tile: 16-byte chunks of kHeadDim elements a row, one below the other.
// kRowThreads share a row; where it has more chunks than these, a thread has several of a row.
template <typename Tile, int kHeadDim, int kNumThreads, int kRowThreads_ = kHeadDim / 8>
struct TileShare {
    static constexpr int kRowThreads = kRowThreads_;
    static_assert(kHeadDim / 8 % kRowThreads == 0, "the threads of a row have equal parts");
    static constexpr int kRowChunks = kHeadDim / 8 / kRowThreads;  // of a thread
    static constexpr int kRowStep = kNumThreads / kRowThreads;  // rows that the block copies at once
    static constexpr int kRowSteps = (Tile::kRows + kRowStep - 1) / kRowStep;
    static constexpr int kChunks = kRowSteps * kRowChunks;

    // Calls copy(i, row, col) for the i-th chunk, at (row, col), kUnroll of them in a go.
    template <int kUnroll = kChunks, typename Copy>
    static __device__ __forceinline__ void visit(Copy copy) {
        const int thread = opaque(threadIdx.x);
        const int first_row = thread / kRowThreads;
        const int col = thread % kRowThreads * 8;
        if (kNumThreads % kRowThreads != 0 && first_row >= kRowStep) return;
#pragma unroll kUnroll
        for (int i = 0; i < kChunks; ++i) {
            const int row = first_row + i / kRowChunks * kRowStep;
            if (Tile::kRows % kRowStep == 0 || row < Tile::kRows) copy(i, row, col + next_col(i));
        }
    }

    // How far chunk i is to the right of the thread's first of its row, in elements.
    static __device__ __forceinline__ int next_col(int i) {
        return i % kRowChunks * kRowThreads * 8;
    }

    // Where it begins in global memory: a pointer that the caller moves from tile to tile, so that
    // its address is not computed anew each time.
    template <typename Element>
    static __device__ __forceinline__ const Element* source(const Element* gmem,
                                                            int64_t row_stride) {
        const int thread = opaque(threadIdx.x);
        return gmem + thread / kRowThreads * row_stride + thread % kRowThreads * 8;
    }
};

// What a warp's lane holds of an mma.m16n8 accumulator: rows lane / 4 and lane / 4 + 8, columns
// 2 * (lane % 4) and the next. Element i of the four is row i / 2, column i % 2 of those.
__device__ __forceinline__ int fragment_row(int lane, int i) { return lane / 4 + i / 2 * 8; }
__device__ __forceinline__ int fragment_col(int lane, int i) { return lane % 4 * 2 + i % 2; }

// Two neighbouring accumulators [16, 8] as the A operand [16, 16] of the next product: the
// layouts agree, so a product's result feeds the next one from registers.
template <typename Element>
__device__ __forceinline__ void accumulator_to_a(uint32_t (&a)[4], const float (&left)[4],
                                                 const float (&right)[4]) {
    a[0] = Element::pack(left[0], left[1]);
    a[1] = Element::pack(left[2], left[3]);
    a[2] = Element::pack(right[0], right[1]);
    a[3] = Element::pack(right[2], right[3]);
}

}  // namespace flashgen
