// What P and dS need of each query: lse and delta = rowsum(dout * out) - dlse.
#pragma once

#include <limits>

#include "cpu/tiles.h"
#include "host/attention_args.h"

namespace flashgen {

// The workspace of a backward: delta, contiguous [batch, num_heads, seqlen_q], as lse is.
template <typename Acc>
inline int64_t delta_bytes(const WorkspaceSizes& sizes) {
    return sizes.batch * sizes.num_heads * sizes.seqlen_q * static_cast<int64_t>(sizeof(Acc));
}

// Computes delta of `count` queries from `begin` into the workspace.
template <typename Panel, int kHeadDimV, typename Element, typename Acc>
inline void compute_delta(const AttentionArgs& a, int64_t b, int64_t h, int64_t begin, int count) {
    const Rows<const Element> dout = rows_of<const Element>(a.dout, b, h);
    const Rows<const Element> out = rows_of<const Element>(a.out, b, h);
    const int64_t at = (b * a.num_heads + h) * a.seqlen_q + begin;
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

// lse and delta of `count` queries from `begin`; both 0 for a query without keys, whose scores are
// all masked: exp(-inf - 0) = 0, where exp(-inf - -inf) would be NaN.
template <typename Acc>
inline void load_row_stats(const AttentionArgs& a, int64_t b, int64_t h, int64_t begin, int count,
                           Acc* lse, Acc* delta) {
    const int64_t at = (b * a.num_heads + h) * a.seqlen_q + begin;
    for (int i = 0; i < count; ++i) {
        const Acc value = a.lse.as<const Acc>()[at + i];
        const bool has_keys = value != -std::numeric_limits<Acc>::infinity();
        lse[i] = has_keys ? value : Acc{0};
        delta[i] = has_keys ? a.workspace.as<const Acc>()[at + i] : Acc{0};
    }
}

}  // namespace flashgen
