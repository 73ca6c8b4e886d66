// Matrices whose columns lie on SIMD lanes, and the matrix product on them.
//
// A panel is a matrix [rows][kWidth]: kWidth queries (or keys) side by side, each a lane of one of
// kVecs vectors. With queries on lanes the scores are S^T = K Q^T, so that row statistics are
// plain vectors, K and V are read in their own order, and nothing is ever reduced across lanes.
#pragma once

#include <algorithm>
#include <cmath>

#include "cpu/simd.h"

// The products are calls: inlined into a caller that holds values of its own, their accumulators no
// longer fit the registers (g++ 12, AVX2: half as fast again without).
#define FLASHGEN_CALL __attribute__((noinline))

namespace flashgen {

// kRows x kVecs accumulators stay in registers: with kVecs operand vectors and one broadcast they
// must fit the register file (4 x 3 + 3 + 1 = 16 for AVX2, 8 x 3 + 3 + 1 = 28 of 32 for AVX-512).
template <typename T, int kVectorBytes, int kRows, int kVecs>
struct BasicPanel {
    using S = Simd<T, kVectorBytes>;
    using Vec = typename S::Vec;
    using Int = typename S::Int;
    using Mask = typename S::Mask;
    static constexpr int kBlockRows = kRows;
    static constexpr int kNumVecs = kVecs;
    static constexpr int kLanes = S::kLanes;
    static constexpr int kWidth = kVecs * S::kLanes;
    static constexpr int kLongestSum = 128;

    // store(row, vec, sum) for sum = A B, with A(row, step) = a[row * kRowStride + step *
    // kStepStride] and B(step, lane) = b[step * kWidth + lane]. Rows are rounded up to a multiple
    // of kRows: what lies past the last one must be readable, and its results are meaningless.
    template <int kRowStride, int kStepStride, typename Store>
    static inline void multiply(const T* a, const T* b, int rows, int steps, Store store) {
        for (int row = 0; row < rows; row += kRows) {
            Vec sum[kRows][kVecs] = {};
            const T* a_step = a + row * kRowStride;
            const T* b_step = b;
            for (int step = 0; step < steps; ++step, a_step += kStepStride, b_step += kWidth) {
                Vec operand[kVecs];
#pragma GCC unroll 8
                for (int j = 0; j < kVecs; ++j) operand[j] = S::load(b_step + j * kLanes);
#pragma GCC unroll 8
                for (int i = 0; i < kRows; ++i) {
                    const T scalar = a_step[i * kRowStride];
#pragma GCC unroll 8
                    for (int j = 0; j < kVecs; ++j) sum[i][j] += scalar * operand[j];
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
                for (int j = 0; j < kVecs; ++j) store(row + i, j, sum[i][j]);
            }
        }
    }

    // c = factor * A B, the sum split where it is long: a shorter chain of additions rounds less.
    template <int kRowStride, int kStepStride>
    FLASHGEN_CALL static void product(const T* a, const T* b, int rows, int steps, T factor, T* c) {
        const int splits = (steps + kLongestSum - 1) / kLongestSum;
        const int length = (steps + splits - 1) / splits;
        multiply<kRowStride, kStepStride>(a, b, rows, std::min(length, steps),
                                          [=](int row, int j, Vec sum) {
                                              S::store(c + row * kWidth + j * kLanes, factor * sum);
                                          });
        for (int begin = length; begin < steps; begin += length) {
            multiply<kRowStride, kStepStride>(a + begin * kStepStride, b + begin * kWidth, rows,
                                              std::min(length, steps - begin),
                                              [=](int row, int j, Vec sum) {
                                                  T* at = c + row * kWidth + j * kLanes;
                                                  S::store(at, S::load(at) + factor * sum);
                                              });
        }
    }

    // a . b, added in the order of product(): equal operands give equal bits.
    static T dot(const T* a, const T* b, int steps) {
        const int splits = (steps + kLongestSum - 1) / kLongestSum;
        const int length = (steps + splits - 1) / splits;
        T total = 0;
        for (int begin = 0; begin < steps; begin += length) {
            T sum = 0;
            const int end = std::min(begin + length, steps);
            for (int i = begin; i < end; ++i) sum = std::fma(a[i], b[i], sum);
            total += sum;
        }
        return total;
    }

    // c += A B
    template <int kRowStride, int kStepStride>
    FLASHGEN_CALL static void add_product(const T* a, const T* b, int rows, int steps, T* c) {
        multiply<kRowStride, kStepStride>(a, b, rows, steps, [=](int row, int j, Vec sum) {
            T* at = c + row * kWidth + j * kLanes;
            S::store(at, S::load(at) + sum);
        });
    }

    // c = c diag(factors) + A B, factors [kWidth]
    template <int kRowStride, int kStepStride>
    FLASHGEN_CALL static void rescale_add_product(const T* a, const T* b, int rows, int steps,
                                                  const T* factors, T* c) {
        Vec factor[kVecs];
        for (int j = 0; j < kVecs; ++j) factor[j] = S::load(factors + j * kLanes);
        multiply<kRowStride, kStepStride>(a, b, rows, steps, [&](int row, int j, Vec sum) {
            T* at = c + row * kWidth + j * kLanes;
            S::store(at, S::load(at) * factor[j] + sum);
        });
    }

    // live[row] = whether a product over rows must have that one: its operand's row is finite, or
    // p [rows][kWidth] isn't 0 on all of the first `lanes` lanes. A row that nobody may see has
    // p = 0, which a NaN would turn into NaN.
    static void mark_live(const T* p, int lanes, const bool* finite, int rows, bool* live) {
        for (int row = 0; row < rows; ++row) {
            live[row] = finite[row];
            for (int i = 0; i < lanes; ++i) live[row] = live[row] || p[row * kWidth + i] != 0;
        }
    }

    // Calls product(begin, end) for every run of live rows.
    template <typename Product>
    static void for_live_rows(const bool* live, int rows, Product product) {
        int begin = 0;
        for (int row = 0; row < rows; ++row) {
            if (live[row]) continue;
            if (begin < row) product(begin, row);
            begin = row + 1;
        }
        if (begin < rows) product(begin, rows);
    }
};

}  // namespace flashgen
