// Copies from global to shared memory that are over at once, for sm75 where accumulators leave no
// registers for a tile to wait in. The names are those of device/copy_async.cuh.
#pragma once

#include "device/copy_rows.cuh"

namespace flashgen {

// A copy of a tile's rows [0, kRows), kHeadDim elements each.
template <typename Tile, int kHeadDim, int kNumThreads>
struct TileCopy {
    using Share = TileShare<Tile, kHeadDim, kNumThreads>;

    // Makes it. Everyone is done with what `tile` holds.
    template <typename Element>
    __device__ __forceinline__ void start(Tile tile, const Element* source, int64_t row_stride,
                                          int end_row, int begin_row = INT32_MIN) const {
        copy_share<Share>(tile, source, row_stride, end_row, begin_row);
    }
    __device__ __forceinline__ void finish(Tile) const {}
};

struct FloatCopy {
    __device__ __forceinline__ void start(uint32_t smem, const float* gmem, bool valid) const {
        st_shared_32(smem, valid ? __float_as_uint(*gmem) : 0);
    }
    __device__ __forceinline__ void finish(uint32_t) const {}
};

}  // namespace flashgen
