// Products of a warp's 16 * kAtoms rows with a tile in shared memory, accumulated in registers.
// Each operand that is read serves all of a warp's atoms of 16 rows.
#pragma once

#include "device/tile.cuh"

namespace flashgen {

// What a product does between its steps: nothing.
struct NoPause {
    __device__ __forceinline__ void operator()(int, int) const {}
};

// acc[16 * kAtoms, 8 * kBlocksN] += A[a_row : a_row + 16 * kAtoms, :] @ B[0 : 8 * kBlocksN, :]^T
// pause(i, n) comes in step i of n.
template <typename Element, int kAtoms, int kBlocksN, typename ATile, typename BTile,
          typename Pause = NoPause>
__device__ __forceinline__ void multiply_rows(float (&acc)[kAtoms][kBlocksN][4], ATile a_smem,
                                              int a_row, BTile b_smem, int lane,
                                              Pause pause = {}) {
    static_assert(ATile::kCols == BTile::kCols, "both operands are as deep");
    static_assert(kBlocksN % 2 == 0, "an operand load covers 16 columns");
#pragma unroll
    for (int k = 0; k < ATile::kCols; k += 16) {
        uint32_t a[kAtoms][4];
#pragma unroll
        for (int m = 0; m < kAtoms; ++m) a_smem.load_a(a[m], a_row + m * 16, k, lane);
        pause(k / 16, ATile::kCols / 16);
#pragma unroll
        for (int n = 0; n < kBlocksN; n += 2) {
            uint32_t b[4];
            b_smem.load_b(b, n * 8, k, lane);
#pragma unroll
            for (int m = 0; m < kAtoms; ++m) {
                Element::mma(acc[m][n], a[m], b[0], b[1]);
                Element::mma(acc[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// acc += a @ B[row : row + 16, first_block * 16 : ...], one step of the two products below. kParts
// warps share the kLastBlock blocks of 16 columns, kBlocks each; what doesn't exist is left out.
template <typename Element, int kLastBlock, int kParts, int kAtoms, int kBlocks, typename BTile>
__device__ __forceinline__ void multiply_step(float (&acc)[kAtoms][kBlocks][2][4],
                                              const uint32_t (&a)[kAtoms][4], BTile b_smem, int row,
                                              int first_block, int lane) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
        if (kParts * kBlocks == kLastBlock || first_block + n < kLastBlock) {
            uint32_t b[4];
            b_smem.load_b_trans(b, row, (first_block + n) * 16, lane);
#pragma unroll
            for (int m = 0; m < kAtoms; ++m) {
                Element::mma(acc[m][n][0], a[m], b[0], b[1]);
                Element::mma(acc[m][n][1], a[m], b[2], b[3]);
            }
        }
    }
}

// acc[16 * kAtoms, 16 * kBlocks] += X[16 * kAtoms, 8 * kDepth] @ B[0 : 8 * kDepth, own columns],
// X in accumulators.
template <typename Element, int kLastBlock, int kParts, int kAtoms, int kBlocks, int kDepth,
          typename BTile>
__device__ __forceinline__ void multiply_accumulated(float (&acc)[kAtoms][kBlocks][2][4],
                                                     const float (&x)[kAtoms][kDepth][4],
                                                     BTile b_smem, int first_block, int lane) {
#pragma unroll
    for (int k = 0; k < kDepth; k += 2) {
        uint32_t a[kAtoms][4];
#pragma unroll
        for (int m = 0; m < kAtoms; ++m) accumulator_to_a<Element>(a[m], x[m][k], x[m][k + 1]);
        multiply_step<Element, kLastBlock, kParts>(acc, a, b_smem, k * 8, first_block, lane);
    }
}

// The same with X[x_row :, x_col : x_col + BTile::kRows] of a tile in shared memory.
template <typename Element, int kLastBlock, int kParts, int kAtoms, int kBlocks, typename XTile,
          typename BTile>
__device__ __forceinline__ void multiply_stored(float (&acc)[kAtoms][kBlocks][2][4], XTile x_smem,
                                                int x_row, int x_col, BTile b_smem, int first_block,
                                                int lane) {
#pragma unroll
    for (int k = 0; k < BTile::kRows; k += 16) {
        uint32_t a[kAtoms][4];
#pragma unroll
        for (int m = 0; m < kAtoms; ++m) x_smem.load_a(a[m], x_row + m * 16, x_col + k, lane);
        multiply_step<Element, kLastBlock, kParts>(acc, a, b_smem, k, first_block, lane);
    }
}

// The same with X the transpose of x_smem[:, x_col : x_col + 16 * kAtoms], as deep as that tile has
// rows.
template <typename Element, int kLastBlock, int kParts, int kAtoms, int kBlocks, typename XTile,
          typename BTile>
__device__ __forceinline__ void multiply_transposed(float (&acc)[kAtoms][kBlocks][2][4],
                                                    XTile x_smem, int x_col, BTile b_smem,
                                                    int first_block, int lane) {
#pragma unroll
    for (int k = 0; k < XTile::kRows; k += 16) {
        uint32_t a[kAtoms][4];
#pragma unroll
        for (int m = 0; m < kAtoms; ++m) x_smem.load_a_trans(a[m], k, x_col + m * 16, lane);
        multiply_step<Element, kLastBlock, kParts>(acc, a, b_smem, k, first_block, lane);
    }
}

// Writes a warp's accumulators to a tile as elements, its first row at `row`.
template <typename Element, int kBlocksN, typename OutTile>
__device__ __forceinline__ void store_tile(const float (&x)[kBlocksN][4], OutTile out_smem, int row,
                                           int col, int lane) {
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            out_smem.store_pair(row + fragment_row(lane, 2 * r),
                                col + n * 8 + fragment_col(lane, 0),
                                Element::pack(x[n][2 * r], x[n][2 * r + 1]));
        }
    }
}

// Writes a warp's rows of 16-column blocks, scaled, to a tile.
template <typename Element, int kLastBlock, int kParts, int kAtoms, int kBlocks, typename OutTile>
__device__ __forceinline__ void store_blocks(const float (&acc)[kAtoms][kBlocks][2][4], float scale,
                                             OutTile out_smem, int row, int first_block, int lane) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
        if (kParts * kBlocks == kLastBlock || first_block + n < kLastBlock) {
#pragma unroll
            for (int i = 0; i < kAtoms * 4; ++i) {
                const float (&pair)[4] = acc[i / 4][n][i % 2];
                const int r = i / 2 % 2;
                const int col = (first_block + n) * 16 + i % 2 * 8 + fragment_col(lane, 0);
                out_smem.store_pair(row + i / 4 * 16 + fragment_row(lane, 2 * r), col,
                                    Element::pack(pair[2 * r] * scale, pair[2 * r + 1] * scale));
            }
        }
    }
}

}  // namespace flashgen
