// Copies from global to shared memory by way of registers, for sm75, which has no cp.async. The
// names are those of device/copy_async.cuh.
#pragma once

#include "device/copy_rows.cuh"

namespace flashgen {

// A tile on its way: rows [0, kRows) of kHeadDim elements each. It waits in the threads' registers
// until finish(), so that its loads are in flight while the last tile is still in use.
template <typename Tile, int kHeadDim, int kNumThreads>
struct TileCopy {
    using Share = TileShare<Tile, kHeadDim, kNumThreads>;

    uint32_t chunks[Share::kChunks][4];

    // Starts it. Rows before `begin_row` and from `end_row` up become zeros, so that nothing past a
    // sequence's end reaches a product. `source` is Share::source() of the tile's first row.
    template <typename Element>
    __device__ __forceinline__ void start(Tile, const Element* source, int64_t row_stride,
                                          int end_row, int begin_row = INT32_MIN) {
        Share::visit([&](int i, int row, int) {
            ld_global_128(chunks[i], source, row < end_row && row >= begin_row);
            source += Share::kRowStep * row_stride;
        });
    }

    // Ends it, once everyone is done with what `tile` holds; a barrier shows it to the others.
    __device__ __forceinline__ void finish(Tile tile) const {
        Share::visit([&](int i, int row, int col) { st_shared_128(tile.at(row, col), chunks[i]); });
    }
};

// One float of the thread on its way.
struct FloatCopy {
    float value;

    __device__ __forceinline__ void start(uint32_t, const float* gmem, bool valid) {
        value = valid ? *gmem : 0.0f;
    }
    __device__ __forceinline__ void finish(uint32_t smem) const {
        st_shared_32(smem, __float_as_uint(value));
    }
};

}  // namespace flashgen
