// A tile of 16-bit elements in shared memory as the tensor memory accelerator leaves it and as
// wgmma reads it.
//
// It is pages of 64 columns; a page's row is 128 bytes, in which the 16-byte chunk c of row r lies
// at place c ^ (r % 8). Eight rows are 1024 bytes, to which every tile is aligned.
#pragma once

#include "device/non_finite.cuh"
#include "device/ptx.cuh"
#include "device/tensor_map.cuh"

namespace flashgen {

// kRows x kCols elements; the last page has columns beyond kCols where that is no multiple of 64.
template <int kRows_, int kCols_>
struct SwizzledTile {
    static constexpr int kRows = kRows_;
    static constexpr int kCols = kCols_;
    static constexpr int kPages = (kCols + kPageCols - 1) / kPageCols;
    static constexpr int kPageBytes = kRows * 128;
    static constexpr int kBytes = kPages * kPageBytes;
    static_assert(kRows % 8 == 0 && kRows <= 256, "whole swizzle atoms, and one box a page");

    uint32_t base;  // address in shared memory

    // Starts copying rows [row, row + kRows) of (head, batch); kBytes arrive at `full`.
    __device__ __forceinline__ void load(const TensorMap& map, Barrier full, int row, int head,
                                         int batch) const {
#pragma unroll
        for (int page = 0; page < kPages; ++page) {
            load_box(base + page * kPageBytes, map, full, page * kPageCols, row, head, batch);
        }
    }

    // ---- Descriptors of wgmma's operands, 16 elements deep ----
    // Columns [k, k + 16) as the depth of the product, rows as A's rows or B's columns.
    __device__ __forceinline__ uint64_t depth_columns(int k) const {
        return descriptor(16, column_bytes(k));
    }
    // Rows [k, k + 16) as the depth, columns as B's columns.
    __device__ __forceinline__ uint64_t depth_rows(int k) const {
        return descriptor(kPageBytes, k * 128);
    }
    // The same of some columns: those of a page from `first` up, and behind them those of another
    // page from `next` up.
    __device__ __forceinline__ uint64_t depth_rows(int k, int first, int next) const {
        return descriptor(column_bytes(next) - column_bytes(first), column_bytes(first) + k * 128);
    }

    // The 16 x 16 block at (row, col) as the A operand of a product whose warps own 16 rows each.
    __device__ __forceinline__ void load_a(uint32_t (&a)[4], int row, int col, int lane) const {
        ldmatrix_x4(a, at(row + lane % 16, col, lane / 16));
    }
    // The transpose of the block: A[m, k] = tile[row + k, col + m].
    __device__ __forceinline__ void load_a_trans(uint32_t (&a)[4], int row, int col,
                                                 int lane) const {
        ldmatrix_x4_trans(a, at(row + lane % 8 + lane / 16 * 8, col, lane / 8 % 2));
    }

    // Stores the transpose of a 16 x 16 A operand: tile[row + k, col + m] = A[m, k].
    __device__ __forceinline__ void store_a_trans(const uint32_t (&a)[4], int row, int col,
                                                  int lane) const {
        stmatrix_x4_trans(at(row + lane % 8 + lane / 16 * 8, col, lane / 8 % 2), a);
    }

    // Makes zeros of every infinity and NaN; kNumThreads threads share the work.
    template <typename Element, int kNumThreads>
    __device__ __forceinline__ void clear_non_finite() const {
#pragma unroll 1
        for (int chunk = threadIdx.x; chunk < kBytes / 16; chunk += kNumThreads) {
            flashgen::clear_non_finite<Element>(base + chunk * 16);
        }
    }

    // Zeroes the rows for which hidden(row); a warpgroup's threads share the work.
    template <typename Hidden>
    __device__ __forceinline__ void clear_rows(Hidden hidden) const {
#pragma unroll 1
        for (int chunk = threadIdx.x % 128; chunk < kBytes / 16; chunk += 128) {
            if (hidden(chunk / 8 % kRows)) st_shared_zero_16(base + chunk * 16);
        }
    }

    // Zeroes row first_row + i for each bit i of `which`; a warpgroup's threads share the work.
    __device__ __forceinline__ void clear_rows(int first_row, uint32_t which) const {
        constexpr int kChunks = 32 * 8;  // of 32 rows of a page
#pragma unroll 1
        for (int i = threadIdx.x % 128; i < kPages * kChunks; i += 128) {
            const int chunk = i / kChunks * kRows * 8 + first_row * 8 + i % kChunks;
            if (which >> (i / 8 % 32) & 1) st_shared_zero_16(base + chunk * 16);
        }
    }

  private:
    // Where a column begins, but for the swizzle.
    static __device__ __forceinline__ int column_bytes(int col) {
        return col / kPageCols * kPageBytes + col % kPageCols * 2;
    }

    // Address of the 16-byte chunk that is `further` chunks behind column `col` of its page.
    __device__ __forceinline__ uint32_t at(int row, int col, int further) const {
        const int chunk = col % kPageCols / 8 + further;
        return base + col / kPageCols * kPageBytes + row * 128 + ((chunk ^ row % 8) * 16);
    }

    // Address and strides in units of 16 bytes: eight rows are 1024 bytes, `leading` is the step
    // between pages where columns are B's; the last field is the 128-byte swizzle. Only the low
    // half varies, and an address within shared memory never carries out of its field.
    __device__ __forceinline__ uint64_t descriptor(int leading, int offset) const {
        const uint32_t low = (base >> 4) + ((offset >> 4) + (leading >> 4 << 16));
        const uint32_t high = 1024 / 16 | 1u << 30;
        return uint64_t{high} << 32 | low;
    }
};

}  // namespace flashgen
