// Which columns of a tile each of two warpgroups multiplies: a page of its own, or half of the only
// one, and half of what lies behind the second page. wgmma takes them as one operand, since a
// descriptor says how far it is from 64 columns to the next.
#pragma once

#include "device/swizzled_tile.cuh"

namespace flashgen {

template <int kHead, int kTail>
struct ColumnShare {
    static constexpr int kBlocks = (kHead + kTail) / 8;  // of 8 columns
    static constexpr int kHeadBlocks = kHead / 8;  // those before the tail
    static_assert(kTail == 0 || kHead == kPageCols, "only a whole page has another behind it");
    static_assert(kHead % 16 == 0 && kTail % 16 == 0, "whole blocks of 16 columns");

    int group;  // 0 or 1

    // First column of the share's n-th block, and which 16 columns of the tile that is in.
    __device__ __forceinline__ int column(int n) const { return block_16(n) * 16 + n % 2 * 8; }
    __device__ __forceinline__ int block_16(int n) const {
        return n < kHeadBlocks ? group * (kHead / 16) + n / 2
                             : (2 * kPageCols - kHead) / 16 + group * (kTail / 16) + n / 2;
    }
    // Whether that is one of the first kCols, of which the first warpgroup has its share for sure.
    template <int kCols>
    __device__ __forceinline__ bool has(int n) const {
        return group == 0 || ColumnShare{1}.column(n) < kCols;
    }

    // The tile's rows [k, k + 16) as the depth of a product, the share as B's columns.
    template <typename Tile>
    __device__ __forceinline__ uint64_t depth_rows(Tile tile, int k) const {
        return tile.depth_rows(k, column(0), column(kHeadBlocks));
    }
};

}  // namespace flashgen
