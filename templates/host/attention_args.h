// The arguments of the two passes, as every family's entry points receive them.
//
//   forward(out, lse, q, k, v, rng_state, workspace, softmax_scale, dropout_threshold, <extra>)
//   backward(dq, dk, dv, dout, q, k, v, out, lse, dlse, rng_state, workspace, softmax_scale,
//            dropout_threshold, <extra>, <gradients>)
//   <pass>_workspace(batch, num_heads, num_heads_kv, seqlen_q, seqlen_k) -> bytes; with varlen
//            (sequences, num_heads, num_heads_kv, total_q, total_k)
//   <extra>      cu_seqlens_q and cu_seqlens_k with varlen, sink with a sink, then the program's
//                captures and run-time params, which the rendered read_program reads
//   <gradients>  dsink with a learned sink, then one for each capture that has a gradient, which
//                the rendered read_gradients reads; every one is overwritten, not added to
//
// q, out, dq, dout [batch, seqlen_q, num_heads, head_dim or head_dim_v]; k, v, dk, dv [batch,
// seqlen_k, num_heads_kv, ...]; any strides with a contiguous last dimension. lse and dlse
// [batch, num_heads, seqlen_q], contiguous, natural log. With varlen all of these lack the batch
// and have total_q or total_k tokens; sequence i is the rows cu_seqlens[i] .. cu_seqlens[i + 1].
// rng_state [2] int64 (seed, offset) on the device, or None without dropout. dlse may be None. An
// element is dropped iff its random value is below dropout_threshold, an integer in [0, 2^bits].
// sink [num_heads], contiguous, of lse's dtype, as dsink.
#pragma once

#include "host/abi.h"
#include "host/attention.h"

namespace flashgen {

struct AttentionTypes {
    DLDeviceType device;  // kDLCPU or kDLCUDA: where the code runs
    DLDataType element;  // q, k, v, out and their gradients
    DLDataType lse;
    AttentionShape shape;
};

// The next argument, a tensor of `ndim` dimensions; with varlen it lacks the first, which is added.
inline Tensor batched_tensor(Arguments& in, const char* name, DLDataType dtype, int32_t ndim,
                             bool varlen, bool optional = false) {
    const int32_t given = varlen ? ndim - 1 : ndim;
    const Tensor t =
        optional ? in.optional_tensor(name, dtype, given) : in.tensor(name, dtype, given);
    if (!varlen || t.ndim == 0) return t;
    Tensor out = {t.data, {1}, {0}, ndim};
    for (int32_t i = 0; i < given; ++i) {
        out.shape[i + 1] = t.shape[i];
        out.strides[i + 1] = t.strides[i];
    }
    return out;
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

constexpr DLDataType kInt64Type = {kDLInt, 64, 1};
constexpr DLDataType kUint8Type = {kDLUInt, 8, 1};

// Arguments of a pass without those of its program and their gradients.
constexpr int32_t forward_args(const AttentionTypes& types) {
    return 9 + 2 * types.shape.varlen + (types.shape.sink != Sink::kNone);
}
constexpr int32_t backward_args(const AttentionTypes& types) {
    const Sink sink = types.shape.sink;
    return 14 + 2 * types.shape.varlen + (sink != Sink::kNone) + (sink == Sink::kLearned);
}

// Reads what both passes have after dropout_threshold and before the program's arguments.
inline void read_extra(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    if (types.shape.varlen) {
        int64_t count_q = 0, count_k = 0;
        a.cu_seqlens_q = in.boundaries("cu_seqlens_q", &count_q);
        a.cu_seqlens_k = in.boundaries("cu_seqlens_k", &count_k);
        if (in.ok() && (count_q < 1 || count_k != count_q)) {
            in.fail("ValueError",
                    "%s: expected cu_seqlens_q and cu_seqlens_k of one size, at least 1, got %lld "
                    "and %lld",
                    in.function(), static_cast<long long>(count_q),
                    static_cast<long long>(count_k));
        }
        a.batch = count_q - 1;
    }
    if (types.shape.sink != Sink::kNone) {
        a.sink = in.tensor("sink", types.lse, 1);
        in.check_size("sink", a.sink, 0, a.num_heads);
    }
}

// Reads and checks forward's arguments up to those of the program; false, with the exception set,
// where one is wrong.
inline bool read_forward(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    const bool varlen = types.shape.varlen;
    a.out = batched_tensor(in, "out", types.element, 4, varlen);
    a.lse = batched_tensor(in, "lse", types.lse, 3, varlen);
    a.q = batched_tensor(in, "q", types.element, 4, varlen);
    a.k = batched_tensor(in, "k", types.element, 4, varlen);
    a.v = batched_tensor(in, "v", types.element, 4, varlen);
    a.rng_state = in.optional_tensor("rng_state", kInt64Type, 1);
    a.workspace = in.tensor("workspace", kUint8Type, 1);
    a.softmax_scale = in.real("softmax_scale");
    a.dropout_threshold = in.integer("dropout_threshold");
    check_device(in, types.device);
    check_sizes(in, a, types.shape);
    read_extra(in, a, types);
    return in.ok();
}

// Reads and checks backward's arguments up to those of the program; false, with the exception set,
// where one is wrong.
inline bool read_backward(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    const bool varlen = types.shape.varlen;
    a.dq = batched_tensor(in, "dq", types.element, 4, varlen);
    a.dk = batched_tensor(in, "dk", types.element, 4, varlen);
    a.dv = batched_tensor(in, "dv", types.element, 4, varlen);
    a.dout = batched_tensor(in, "dout", types.element, 4, varlen);
    a.q = batched_tensor(in, "q", types.element, 4, varlen);
    a.k = batched_tensor(in, "k", types.element, 4, varlen);
    a.v = batched_tensor(in, "v", types.element, 4, varlen);
    a.out = batched_tensor(in, "out", types.element, 4, varlen);
    a.lse = batched_tensor(in, "lse", types.lse, 3, varlen);
    a.dlse = batched_tensor(in, "dlse", types.lse, 3, varlen, /*optional=*/true);
    a.rng_state = in.optional_tensor("rng_state", kInt64Type, 1);
    a.workspace = in.tensor("workspace", kUint8Type, 1);
    a.softmax_scale = in.real("softmax_scale");
    a.dropout_threshold = in.integer("dropout_threshold");
    check_device(in, types.device);
    check_sizes(in, a, types.shape);
    check_backward_sizes(in, a, types.shape);
    read_extra(in, a, types);
    return in.ok();
}

// Reads the gradient that comes first after the program's arguments; the program's own follow.
inline bool read_sink_gradient(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    if (types.shape.sink == Sink::kLearned) {
        a.dsink = in.tensor("dsink", types.lse, 1);
        in.check_size("dsink", a.dsink, 0, a.num_heads);
    }
    return in.ok();
}

constexpr int32_t kWorkspaceArgs = 5;

inline WorkspaceSizes read_workspace_sizes(Arguments& in) {
    WorkspaceSizes sizes = {};
    sizes.batch = in.integer("batch");
    sizes.num_heads = in.integer("num_heads");
    sizes.num_heads_kv = in.integer("num_heads_kv");
    sizes.seqlen_q = in.integer("seqlen_q");
    sizes.seqlen_k = in.integer("seqlen_k");
    return sizes;
}

}  // namespace flashgen
