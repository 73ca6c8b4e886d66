// The arguments of the two passes, as every family's entry points receive them.
//
//   forward(out, lse, q, k, v, rng_state, softmax_scale, dropout_threshold)
//   backward(dq, dk, dv, dout, q, k, v, out, lse, dlse, rng_state, workspace, softmax_scale,
//            dropout_threshold)
//   <pass>_workspace(batch, num_heads, num_heads_kv, seqlen_q, seqlen_k) -> bytes
//
// q, out, dq, dout [batch, seqlen_q, num_heads, head_dim or head_dim_v]; k, v, dk, dv [batch,
// seqlen_k, num_heads_kv, ...]; any strides with a contiguous last dimension. lse and dlse
// [batch, num_heads, seqlen_q], contiguous, natural log. rng_state [2] int64 (seed, offset) on the
// device, or None without dropout. dlse may be None. An element is dropped iff its random value is
// below dropout_threshold, an integer in [0, 2^bits].
#pragma once

#include "host/abi.h"

namespace flashgen {

// Positions are 32-bit, with room for the last tile's end.
constexpr int64_t kMaxSeqlen = 2147483647 - 1024;

constexpr DLDataType kFloatType = {kDLFloat, 32, 1};

struct AttentionTypes {
    DLDeviceType device;  // kDLCPU or kDLCUDA: where the code runs
    DLDataType element;  // q, k, v, out and their gradients
    DLDataType lse;
    int32_t head_dim;
    int32_t head_dim_v;
    int32_t dropout_bits;  // 0 where the variant has no dropout
};

struct AttentionArgs {
    Tensor q, k, v, out, lse;
    Tensor dq, dk, dv, dout, dlse;  // backward only
    Tensor rng_state;
    Tensor workspace;  // uint8, backward only
    double softmax_scale;
    int64_t dropout_threshold;
    int64_t batch, num_heads, num_heads_kv, seqlen_q, seqlen_k;
    DLDevice device;

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
    in.check_size(name, t, 0, a.batch);
    in.check_size(name, t, 1, a.num_heads);
    in.check_size(name, t, 2, a.seqlen_q);
    const bool empty = a.batch * a.num_heads * a.seqlen_q == 0;
    if (in.ok() && !empty &&
        ((a.num_heads > 1 && t.strides[1] != a.seqlen_q) ||
         (a.batch > 1 && t.strides[0] != a.num_heads * a.seqlen_q))) {
        in.fail("ValueError", "%s: %s: expected a contiguous tensor", in.function(), name);
    }
}

// Requires tensors that the code can reach; those read so far are on one device.
inline void check_device(Arguments& in, DLDeviceType runs_on) {
    const DLDeviceType found = in.device().device_type;
    const bool on_cpu = runs_on == kDLCPU;
    if (in.ok() && found != runs_on && found != (on_cpu ? kDLCUDAHost : kDLCUDAManaged)) {
        in.fail("ValueError", "%s: expected tensors on %s (DLPack device type %d), got type %d",
                in.function(), on_cpu ? "the CPU" : "a CUDA device", runs_on, found);
    }
}

inline void check_sizes(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    check_device(in, types.device);
    a.batch = a.q.shape[0];
    a.seqlen_q = a.q.shape[1];
    a.num_heads = a.q.shape[2];
    a.seqlen_k = a.k.shape[1];
    a.num_heads_kv = a.k.shape[2];
    a.device = in.device();
    check_shape4(in, "q", a.q, a.batch, a.seqlen_q, a.num_heads, types.head_dim);
    check_shape4(in, "k", a.k, a.batch, a.seqlen_k, a.num_heads_kv, types.head_dim);
    check_shape4(in, "v", a.v, a.batch, a.seqlen_k, a.num_heads_kv, types.head_dim_v);
    check_shape4(in, "out", a.out, a.batch, a.seqlen_q, a.num_heads, types.head_dim_v);
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
    const int64_t largest = int64_t{1} << types.dropout_bits;
    if (in.ok() && types.dropout_bits == 0 && a.dropout_threshold != 0) {
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

constexpr int32_t kForwardArgs = 8;
constexpr int32_t kBackwardArgs = 14;
constexpr DLDataType kInt64Type = {kDLInt, 64, 1};
constexpr DLDataType kUint8Type = {kDLUInt, 8, 1};

// Reads and checks forward's arguments; false, with the exception set, where one is wrong.
inline bool read_forward(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    a.out = in.tensor("out", types.element, 4);
    a.lse = in.tensor("lse", types.lse, 3);
    a.q = in.tensor("q", types.element, 4);
    a.k = in.tensor("k", types.element, 4);
    a.v = in.tensor("v", types.element, 4);
    a.rng_state = in.optional_tensor("rng_state", kInt64Type, 1);
    a.softmax_scale = in.real("softmax_scale");
    a.dropout_threshold = in.integer("dropout_threshold");
    check_sizes(in, a, types);
    return in.ok();
}

// Reads and checks backward's arguments; false, with the exception set, where one is wrong.
inline bool read_backward(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    a.dq = in.tensor("dq", types.element, 4);
    a.dk = in.tensor("dk", types.element, 4);
    a.dv = in.tensor("dv", types.element, 4);
    a.dout = in.tensor("dout", types.element, 4);
    a.q = in.tensor("q", types.element, 4);
    a.k = in.tensor("k", types.element, 4);
    a.v = in.tensor("v", types.element, 4);
    a.out = in.tensor("out", types.element, 4);
    a.lse = in.tensor("lse", types.lse, 3);
    a.dlse = in.optional_tensor("dlse", types.lse, 3);
    a.rng_state = in.optional_tensor("rng_state", kInt64Type, 1);
    a.workspace = in.tensor("workspace", kUint8Type, 1);
    a.softmax_scale = in.real("softmax_scale");
    a.dropout_threshold = in.integer("dropout_threshold");
    check_sizes(in, a, types);
    check_shape4(in, "dq", a.dq, a.batch, a.seqlen_q, a.num_heads, types.head_dim);
    check_shape4(in, "dk", a.dk, a.batch, a.seqlen_k, a.num_heads_kv, types.head_dim);
    check_shape4(in, "dv", a.dv, a.batch, a.seqlen_k, a.num_heads_kv, types.head_dim_v);
    check_shape4(in, "dout", a.dout, a.batch, a.seqlen_q, a.num_heads, types.head_dim_v);
    if (a.dlse.ndim != 0) check_row_stats(in, "dlse", a.dlse, a);
    return in.ok();
}

}  // namespace flashgen
