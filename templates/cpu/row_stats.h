// What P and dS need of each query: lse and delta = rowsum(dout * out) - dlse.
#pragma once

#include <cmath>
#include <limits>

#include "cpu/sequence.h"
#include "host/attention.h"

namespace flashgen {

// The workspace of a backward: delta, laid out as lse is.
template <typename Acc>
inline int64_t delta_bytes(const WorkspaceSizes& sizes, bool varlen) {
    const int64_t batch = varlen ? 1 : sizes.batch;
    return batch * sizes.num_heads * sizes.seqlen_q * static_cast<int64_t>(sizeof(Acc));
}

// Computes delta of `count` queries from `begin` of a sequence into the workspace.
template <typename Panel, int kHeadDimV, typename Element, typename Acc>
inline void compute_delta(const AttentionArgs& a, const Sequence& sequence, int64_t h,
                          int64_t begin, int count) {
    const auto dout = rows_of<const Element>(a.dout, sequence.batch, h, sequence.q_start);
    const auto out = rows_of<const Element>(a.out, sequence.batch, h, sequence.q_start);
    const int64_t at = first_stat(a, sequence, h) + begin;
    Acc dout_row[kHeadDimV], out_row[kHeadDimV];
    for (int i = 0; i < count; ++i) {
        widen_row(dout.row(begin + i), kHeadDimV, dout_row);
        widen_row(out.row(begin + i), kHeadDimV, out_row);
        // Summed as dP is, so that dP - delta is exactly 0 for a query that sees one key.
        Acc delta = Panel::dot(dout_row, out_row, kHeadDimV);
        if (a.dlse.ndim != 0) delta -= a.dlse.as<const Acc>()[at + i];
        a.workspace.as<Acc>()[at + i] = delta;
    }
}

// lse and delta of `count` rows that start at `at`; both 0 for a query without keys, whose scores
// are all masked: exp(-inf - 0) = 0, where exp(-inf - -inf) would be NaN.
template <typename Acc>
inline void load_row_stats(const AttentionArgs& a, int64_t at, int count, Acc* lse, Acc* delta) {
    for (int i = 0; i < count; ++i) {
        const Acc value = a.lse.as<const Acc>()[at + i];
        const bool has_keys = value != -std::numeric_limits<Acc>::infinity();
        lse[i] = has_keys ? value : Acc{0};
        delta[i] = has_keys ? a.workspace.as<const Acc>()[at + i] : Acc{0};
    }
}

// What a task of `tile` queries adds to the gradient of its head's sink.
template <typename Acc>
inline double sink_gradient(const AttentionArgs& a, const Task& task, int tile) {
    const int64_t at = first_stat(a, task.sequence, task.head) + task.begin;
    const int64_t count = std::min<int64_t>(tile, task.sequence.q_len - task.begin);
    const double sink = a.sink.as<const Acc>()[task.head];
    double sum = 0;
    for (int i = 0; i < count; ++i) {
        const double lse = a.lse.as<const Acc>()[at + i];
        const bool empty = lse == -std::numeric_limits<double>::infinity();
        if (!empty) sum -= std::exp(sink - lse) * a.workspace.as<const Acc>()[at + i];
    }
    return sum;
}

}  // namespace flashgen
