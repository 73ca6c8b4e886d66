// The arguments of the two passes, checked, however they came in.
//
// What reads them provides Device, stream_of and Arguments: the call's device, its first fault, and
// ok().
#pragma once

#include "host/abi.h"
#include "host/tensor.h"

namespace flashgen {

// Sums and differences of two positions are 32-bit, with room for the last tile's end.
constexpr int64_t kMaxSeqlen = int64_t{1} << 30;

enum class Sink { kNone, kFixed, kLearned };  // a learned one has a gradient

// What of a variant its arguments must agree with.
struct AttentionShape {
    int32_t head_dim;
    int32_t head_dim_v;
    int32_t dropout_bits;  // 0 where the variant has no dropout
    bool varlen;
    Sink sink;
};

// With varlen the tensors have a batch of 1 and seqlen_q is total_q: the token's index in all
// sequences takes the row's place.
struct AttentionArgs {
    Tensor q, k, v, out, lse;
    Tensor dq, dk, dv, dout, dlse;  // backward only
    Tensor rng_state;
    Tensor workspace;  // uint8
    double softmax_scale;
    int64_t dropout_threshold;
    int64_t batch;  // varlen: the number of sequences
    int64_t num_heads, num_heads_kv;
    int64_t seqlen_q, seqlen_k;  // varlen: total_q, total_k
    Boundaries cu_seqlens_q, cu_seqlens_k;  // varlen only: batch + 1 values
    Tensor sink;                            // [num_heads]
    Tensor dsink;                           // backward only
    Device device;

    const int64_t* rng() const { return rng_state.as<const int64_t>(); }

    // 1 / (1 - the realised dropout probability); 0 where everything is dropped.
    double dropout_scale(int32_t bits) const {
        const double all = static_cast<double>(int64_t{1} << bits);
        return dropout_threshold >= all ? 0.0 : all / (all - dropout_threshold);
    }
};

inline void check_shape4(Arguments& in, const char* name, const Tensor& t, int64_t batch,
                         int64_t seqlen, int64_t heads, int64_t head_dim) {
    in.check_size(name, t, 0, batch);
    in.check_size(name, t, 1, seqlen);
    in.check_size(name, t, 2, heads);
    in.check_size(name, t, 3, head_dim);
}

// Requires the contiguous layout [batch, num_heads, seqlen_q] of lse and dlse.
inline void check_row_stats(Arguments& in, const char* name, const Tensor& t,
                            const AttentionArgs& a) {
    const int64_t batch = a.q.shape[0];
    in.check_size(name, t, 0, batch);
    in.check_size(name, t, 1, a.num_heads);
    in.check_size(name, t, 2, a.seqlen_q);
    const bool empty = batch * a.num_heads * a.seqlen_q == 0;
    if (in.ok() && !empty &&
        ((a.num_heads > 1 && t.strides[1] != a.seqlen_q) ||
         (batch > 1 && t.strides[0] != a.num_heads * a.seqlen_q))) {
        in.fail("ValueError", "%s: %s: expected a contiguous tensor", in.function(), name);
    }
}

// Takes the sizes from q and k, and requires every other tensor of both passes to agree.
inline void check_sizes(Arguments& in, AttentionArgs& a, const AttentionShape& of) {
    const int64_t batch = a.q.shape[0];
    a.batch = batch;
    a.seqlen_q = a.q.shape[1];
    a.num_heads = a.q.shape[2];
    a.seqlen_k = a.k.shape[1];
    a.num_heads_kv = a.k.shape[2];
    a.device = in.device();
    check_shape4(in, "q", a.q, batch, a.seqlen_q, a.num_heads, of.head_dim);
    check_shape4(in, "k", a.k, batch, a.seqlen_k, a.num_heads_kv, of.head_dim);
    check_shape4(in, "v", a.v, batch, a.seqlen_k, a.num_heads_kv, of.head_dim_v);
    check_shape4(in, "out", a.out, batch, a.seqlen_q, a.num_heads, of.head_dim_v);
    check_row_stats(in, "lse", a.lse, a);
    if (in.ok() && a.num_heads > 0 && (a.num_heads_kv == 0 || a.num_heads % a.num_heads_kv != 0)) {
        in.fail("ValueError",
                "%s: expected num_heads to be a multiple of num_heads_kv, got %lld "
                "and %lld",
                in.function(), static_cast<long long>(a.num_heads),
                static_cast<long long>(a.num_heads_kv));
    }
    const int64_t lengths[2] = {a.seqlen_q, a.seqlen_k};
    for (const int64_t seqlen : lengths) {
        if (in.ok() && seqlen > kMaxSeqlen) {
            in.fail("ValueError", "%s: expected sequences of at most %lld, got %lld", in.function(),
                    static_cast<long long>(kMaxSeqlen), static_cast<long long>(seqlen));
        }
    }
    const int64_t largest = int64_t{1} << of.dropout_bits;
    if (in.ok() && of.dropout_bits == 0 && a.dropout_threshold != 0) {
        in.fail("ValueError", "%s: this variant has no dropout, got dropout_threshold %lld",
                in.function(), static_cast<long long>(a.dropout_threshold));
    }
    if (in.ok() && (a.dropout_threshold < 0 || a.dropout_threshold > largest)) {
        in.fail("ValueError", "%s: expected dropout_threshold in [0, %lld], got %lld",
                in.function(), static_cast<long long>(largest),
                static_cast<long long>(a.dropout_threshold));
    }
    if (in.ok() && a.dropout_threshold > 0 && a.rng_state.ndim == 0) {
        in.fail("ValueError", "%s: rng_state: expected a tensor with dropout, got None",
                in.function());
    }
    if (a.rng_state.ndim != 0) in.check_size("rng_state", a.rng_state, 0, 2);
}

// Requires what the backward has besides to agree; after check_sizes.
inline void check_backward_sizes(Arguments& in, const AttentionArgs& a, const AttentionShape& of) {
    const int64_t batch = a.q.shape[0];
    check_shape4(in, "dq", a.dq, batch, a.seqlen_q, a.num_heads, of.head_dim);
    check_shape4(in, "dk", a.dk, batch, a.seqlen_k, a.num_heads_kv, of.head_dim);
    check_shape4(in, "dv", a.dv, batch, a.seqlen_k, a.num_heads_kv, of.head_dim_v);
    check_shape4(in, "dout", a.dout, batch, a.seqlen_q, a.num_heads, of.head_dim_v);
    if (a.dlse.ndim != 0) check_row_stats(in, "dlse", a.dlse, a);
}

inline bool check_workspace(Arguments& in, const AttentionArgs& a, int64_t bytes) {
    const bool aligned = reinterpret_cast<uintptr_t>(a.workspace.data) % 16 == 0;
    if (in.ok() && (a.workspace.shape[0] < bytes || (bytes > 0 && !aligned))) {
        in.fail("ValueError", "%s: workspace: expected %lld bytes, 16-byte aligned, got %lld",
                in.function(), static_cast<long long>(bytes),
                static_cast<long long>(a.workspace.shape[0]));
    }
    return in.ok();
}

// The sizes that <pass>_workspace is called with; total_q and total_k with varlen.
struct WorkspaceSizes {
    int64_t batch, num_heads, num_heads_kv, seqlen_q, seqlen_k;
};

inline WorkspaceSizes workspace_sizes(const AttentionArgs& a) {
    return {a.batch, a.num_heads, a.num_heads_kv, a.seqlen_q, a.seqlen_k};
}

}  // namespace flashgen
