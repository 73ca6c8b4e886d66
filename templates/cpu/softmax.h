// Softmax of a panel of scores [keys][lanes]: every query is a lane.
#pragma once

#include "cpu/panel.h"

namespace flashgen {

// One step of the online softmax over `keys` more scores of each query. Scores become
// P = exp(S - row_max); `rescale` is what earlier sums of P must be multiplied by. row_max,
// row_sum and rescale are [kWidth]; a query that has seen no key has row_max -inf, row_sum 0.
template <typename Panel, typename T>
inline void online_softmax(T* scores, int keys, T* row_max, T* row_sum, T* rescale) {
    using S = typename Panel::S;
    using Vec = typename S::Vec;
    constexpr int kVecs = Panel::kNumVecs;
    const Vec lowest = S::broadcast(-std::numeric_limits<T>::infinity());
    Vec new_max[kVecs], sum[kVecs];
    for (int j = 0; j < kVecs; ++j) new_max[j] = S::load(row_max + j * S::kLanes);
    for (int n = 0; n < keys; ++n) {
#pragma GCC unroll 8
        for (int j = 0; j < kVecs; ++j) {
            new_max[j] = S::max(S::load(scores + n * Panel::kWidth + j * S::kLanes), new_max[j]);
        }
    }
    for (int j = 0; j < kVecs; ++j) {
        const Vec old_max = S::load(row_max + j * S::kLanes);
        S::store(row_max + j * S::kLanes, new_max[j]);
        // -inf - -inf is NaN: a query without keys keeps exp(-inf - 0) = 0
        new_max[j] = new_max[j] == lowest ? Vec{} : new_max[j];
        S::store(rescale + j * S::kLanes, S::exp(old_max - new_max[j]));
        sum[j] = Vec{};
    }
    for (int n = 0; n < keys; ++n) {
#pragma GCC unroll 8
        for (int j = 0; j < kVecs; ++j) {
            T* at = scores + n * Panel::kWidth + j * S::kLanes;
            const Vec p = S::exp(S::load(at) - new_max[j]);
            S::store(at, p);
            sum[j] += p;
        }
    }
    for (int j = 0; j < kVecs; ++j) {
        T* at = row_sum + j * S::kLanes;
        S::store(at, S::load(at) * S::load(rescale + j * S::kLanes) + sum[j]);
    }
}

// Where queries lie on lanes, [kWidth] row statistics: vector j of any row.
template <typename Panel, typename T>
struct LaneStats {
    const T* values;
    typename Panel::Vec operator()(int, int j) const {
        return Panel::S::load(values + j * Panel::kLanes);
    }
};

// Where keys lie on lanes, one statistic a row.
template <typename Panel, typename T>
struct RowStats {
    const T* values;
    typename Panel::Vec operator()(int row, int) const { return Panel::S::broadcast(values[row]); }
};

// Scores S become P = exp(S - lse), dscores dP become dS = P (dP - delta); both [rows][kWidth].
template <typename Panel, typename T, typename Stats>
inline void softmax_gradient(T* scores, T* dscores, int rows, Stats lse, Stats delta) {
    using S = typename Panel::S;
    for (int row = 0; row < rows; ++row) {
#pragma GCC unroll 8
        for (int j = 0; j < Panel::kNumVecs; ++j) {
            T* score = scores + row * Panel::kWidth + j * S::kLanes;
            T* dscore = dscores + row * Panel::kWidth + j * S::kLanes;
            const typename S::Vec p = S::exp(S::load(score) - lse(row, j));
            S::store(score, p);
            S::store(dscore, p * (S::load(dscore) - delta(row, j)));
        }
    }
}

// Zeroes dropped elements of values [rows][kWidth]; row i of the mask is at keep + i * kKeepStride.
template <typename Panel, int kKeepStride, typename T>
inline void drop(T* values, const typename Panel::Int* keep, int rows) {
    using S = typename Panel::S;
    for (int row = 0; row < rows; ++row) {
        for (int j = 0; j < Panel::kWidth; j += S::kLanes) {
            T* at = values + row * Panel::kWidth + j;
            S::store(at, S::zero_unless(S::load(keep + row * kKeepStride + j), S::load(at)));
        }
    }
}

}  // namespace flashgen
