// Products of a warp's 16 rows with a tile in shared memory, accumulated in registers.
#pragma once

#include "device/tile.cuh"

namespace flashgen {

// acc[16, 8 * kBlocksN] += A[a_row : a_row + 16, :] @ B[0 : 8 * kBlocksN, :]^T
template <typename Element, int kBlocksN, typename ATile, typename BTile>
__device__ __forceinline__ void multiply_rows(float (&acc)[kBlocksN][4], ATile a_smem, int a_row,
                                              BTile b_smem, int lane) {
    static_assert(ATile::kCols == BTile::kCols, "both operands are as deep");
    static_assert(kBlocksN % 2 == 0, "an operand load covers 16 columns");
#pragma unroll
    for (int k = 0; k < ATile::kCols; k += 16) {
        uint32_t a[4];
        a_smem.load_a(a, a_row, k, lane);
#pragma unroll
        for (int n = 0; n < kBlocksN; n += 2) {
            uint32_t b[4];
            b_smem.load_b(b, n * 8, k, lane);
            Element::mma(acc[n], a, b[0], b[1]);
            Element::mma(acc[n + 1], a, b[2], b[3]);
        }
    }
}

// acc[16, 16 * kBlocks] += X[16, 8 * kDepth] @ B[:, first_block * 16 : ...], X in accumulators.
// kParts warps share the kLastBlock blocks, kBlocks each; those that don't exist are left out.
template <typename Element, int kLastBlock, int kParts, int kBlocks, int kDepth, typename BTile>
__device__ __forceinline__ void multiply_accumulated(float (&acc)[kBlocks][2][4],
                                                     const float (&x)[kDepth][4], BTile b_smem,
                                                     int first_block, int lane) {
#pragma unroll
    for (int k = 0; k < kDepth; k += 2) {
        uint32_t a[4];
        accumulator_to_a<Element>(a, x[k], x[k + 1]);
#pragma unroll
        for (int n = 0; n < kBlocks; ++n) {
            if (kParts * kBlocks == kLastBlock || first_block + n < kLastBlock) {
                uint32_t b[4];
                b_smem.load_b_trans(b, k * 8, (first_block + n) * 16, lane);
                Element::mma(acc[n][0], a, b[0], b[1]);
                Element::mma(acc[n][1], a, b[2], b[3]);
            }
        }
    }
}

// Writes a warp's 16 rows of 16-column blocks, scaled, to a tile.
template <typename Element, int kLastBlock, int kParts, int kBlocks, typename OutTile>
__device__ __forceinline__ void store_blocks(const float (&acc)[kBlocks][2][4], float scale,
                                             OutTile out_smem, int row, int first_block, int lane) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
        if (kParts * kBlocks == kLastBlock || first_block + n < kLastBlock) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int col = (first_block + n) * 16 + half * 8 + fragment_col(lane, 0);
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    out_smem.store_pair(row + fragment_row(lane, 2 * r), col,
                                        Element::pack(acc[n][half][2 * r] * scale,
                                                      acc[n][half][2 * r + 1] * scale));
                }
            }
        }
    }
}

}  // namespace flashgen
