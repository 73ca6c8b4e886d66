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

namespace flashgen {

// Sums and differences of two positions are 32-bit, with room for the last tile's end.
constexpr int64_t kMaxSeqlen = int64_t{1} << 30;

enum class Sink { kNone, kFixed, kLearned };  // a learned one has a gradient

struct AttentionTypes {
    DLDeviceType device;  // kDLCPU or kDLCUDA: where the code runs
    DLDataType element;  // q, k, v, out and their gradients
    DLDataType lse;
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
    DLDevice device;

    const int64_t* rng() const { return rng_state.as<const int64_t>(); }

    // 1 / (1 - the realised dropout probability); 0 where everything is dropped.
    double dropout_scale(int32_t bits) const {
        const double all = static_cast<double>(int64_t{1} << bits);
        return dropout_threshold >= all ? 0.0 : all / (all - dropout_threshold);
    }
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
    const int64_t batch = a.q.shape[0];
    a.batch = batch;
    a.seqlen_q = a.q.shape[1];
    a.num_heads = a.q.shape[2];
    a.seqlen_k = a.k.shape[1];
    a.num_heads_kv = a.k.shape[2];
    a.device = in.device();
    check_shape4(in, "q", a.q, batch, a.seqlen_q, a.num_heads, types.head_dim);
    check_shape4(in, "k", a.k, batch, a.seqlen_k, a.num_heads_kv, types.head_dim);
    check_shape4(in, "v", a.v, batch, a.seqlen_k, a.num_heads_kv, types.head_dim_v);
    check_shape4(in, "out", a.out, batch, a.seqlen_q, a.num_heads, types.head_dim_v);
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

constexpr DLDataType kInt64Type = {kDLInt, 64, 1};
constexpr DLDataType kUint8Type = {kDLUInt, 8, 1};

// Arguments of a pass without those of its program and their gradients.
constexpr int32_t forward_args(const AttentionTypes& types) {
    return 9 + 2 * types.varlen + (types.sink != Sink::kNone);
}
constexpr int32_t backward_args(const AttentionTypes& types) {
    return 14 + 2 * types.varlen + (types.sink != Sink::kNone) + (types.sink == Sink::kLearned);
}

// Reads what both passes have after dropout_threshold and before the program's arguments.
inline void read_extra(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    if (types.varlen) {
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
    if (types.sink != Sink::kNone) {
        a.sink = in.tensor("sink", types.lse, 1);
        in.check_size("sink", a.sink, 0, a.num_heads);
    }
}

// Reads and checks forward's arguments up to those of the program; false, with the exception set,
// where one is wrong.
inline bool read_forward(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    const bool varlen = types.varlen;
    a.out = batched_tensor(in, "out", types.element, 4, varlen);
    a.lse = batched_tensor(in, "lse", types.lse, 3, varlen);
    a.q = batched_tensor(in, "q", types.element, 4, varlen);
    a.k = batched_tensor(in, "k", types.element, 4, varlen);
    a.v = batched_tensor(in, "v", types.element, 4, varlen);
    a.rng_state = in.optional_tensor("rng_state", kInt64Type, 1);
    a.workspace = in.tensor("workspace", kUint8Type, 1);
    a.softmax_scale = in.real("softmax_scale");
    a.dropout_threshold = in.integer("dropout_threshold");
    check_sizes(in, a, types);
    read_extra(in, a, types);
    return in.ok();
}

// Reads and checks backward's arguments up to those of the program; false, with the exception set,
// where one is wrong.
inline bool read_backward(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    const bool varlen = types.varlen;
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
    check_sizes(in, a, types);
    const int64_t batch = a.q.shape[0];
    check_shape4(in, "dq", a.dq, batch, a.seqlen_q, a.num_heads, types.head_dim);
    check_shape4(in, "dk", a.dk, batch, a.seqlen_k, a.num_heads_kv, types.head_dim);
    check_shape4(in, "dv", a.dv, batch, a.seqlen_k, a.num_heads_kv, types.head_dim_v);
    check_shape4(in, "dout", a.dout, batch, a.seqlen_q, a.num_heads, types.head_dim_v);
    if (a.dlse.ndim != 0) check_row_stats(in, "dlse", a.dlse, a);
    read_extra(in, a, types);
    return in.ok();
}

// Reads the gradient that comes first after the program's arguments; the program's own follow.
inline bool read_sink_gradient(Arguments& in, AttentionArgs& a, const AttentionTypes& types) {
    if (types.sink == Sink::kLearned) {
        a.dsink = in.tensor("dsink", types.lse, 1);
        in.check_size("dsink", a.dsink, 0, a.num_heads);
    }
    return in.ok();
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

inline WorkspaceSizes workspace_sizes(const AttentionArgs& a) {
    return {a.batch, a.num_heads, a.num_heads_kv, a.seqlen_q, a.seqlen_k};
}

}  // namespace flashgen
