// Copies from global to shared memory that are over when the call is, for sm75, which has no
// cp.async.
#pragma once

#include "device/tile.cuh"

namespace flashgen {

// Copies this thread's share of a tile's rows [0, kRows), a few chunks at a time: registers for
// more would be lacking where accumulators fill them. Rows before `begin_row` and from `end_row` up
// become zeros, so that nothing past a sequence's end reaches a product.
template <typename Share, typename Tile, typename Element>
__device__ __forceinline__ void copy_share(Tile tile, const Element* source, int64_t row_stride,
                                           int end_row, int begin_row = INT32_MIN) {
    Share::template visit<4>([&](int, int row, int col) {
        uint32_t chunk[4];
        ld_global_128(chunk, source, row < end_row && row >= begin_row);
        st_shared_128(tile.at(row, col), chunk);
        source += Share::kRowStep * row_stride;
    });
}

// Copies rows [0, num_rows) of a tile that is not walked, whose first row is at `gmem`; the others
// become zeros.
template <int kHeadDim, int kNumThreads, typename Tile, typename Element>
__device__ __forceinline__ void copy_rows(Tile tile, const Element* gmem, int64_t row_stride,
                                          int num_rows) {
    using Share = TileShare<Tile, kHeadDim, kNumThreads>;
    copy_share<Share>(tile, Share::source(gmem, row_stride), row_stride, num_rows);
}

// Nothing is ever in flight.
__device__ __forceinline__ void commit_copies() {}
__device__ __forceinline__ void wait_for_copies() {}
__device__ __forceinline__ void wait_for_all_copies() {}

}  // namespace flashgen
