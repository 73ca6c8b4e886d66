// flashgen 0.1.0 | d64-fp32 | cpu | bwd | generated: do not edit
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/parallel.h"
#include "cpu/row_stats.h"
#include "cpu/sequence.h"
#include "cpu/softmax.h"
#include "cpu/tiles.h"
#include "host/attention_args.h"

namespace {

using namespace flashgen;

using std::max;
using std::min;

// ---- Plan (chosen by generator/plan/cpu.py) ----
using Element = float;  // of q, k, v, out and their gradients
using Acc = float;  // of everything in between, and of lse
constexpr int kHeadDim = 64;
constexpr int kHeadDimV = 64;
constexpr bool kVarlen = false;
constexpr int kDropoutBits = 0;
constexpr int kVectorBytes = 32;
constexpr int kBlockRows = 4;  // register block: rows x vectors
constexpr int kBlockVecs = 3;
constexpr int kStrideQk = 80;  // of a packed row: an odd number of cache lines
constexpr int kStrideV = 80;
constexpr int kTileM = 96;  // queries of a task, on lanes
constexpr int kTileN = 64;  // keys packed at once
constexpr int kDkvTileM = 64;  // the same for dk and dv: queries packed at once
constexpr int kDkvTileN = 96;  // keys of a task, on lanes
using Panel = BasicPanel<Acc, kVectorBytes, kBlockRows, kBlockVecs>;
constexpr int kWidth = Panel::kWidth;  // lanes of a panel
static_assert(kTileM % kWidth == 0, "a task is whole panels");

#define FLASHGEN_HOOK static inline

// ---- Program ----
// score = score
// mask = True
// Ranges are half open. Tiles outside a visible range are never visited, tiles inside a full range
// skip mask_mod; the rest ask mask_mod about every element.
struct Range {
    int begin, end;
};

struct ProgramArgs {};

// A head of a sequence, and what depends on nothing else.
struct Head {
    int b, h, h_kv, q_len, kv_len, num_heads;
};

FLASHGEN_HOOK Head make_head(const ProgramArgs&, int b, int h, int h_kv, int q_len, int kv_len,
                             int num_heads) {
    Head head = {b, h, h_kv, q_len, kv_len, num_heads};
    return head;
}

struct Row {};
[[maybe_unused]] FLASHGEN_HOOK Row make_row(const ProgramArgs&, const Head&, int) {
    return {};  // nothing depends on it
}

struct Column {};
[[maybe_unused]] FLASHGEN_HOOK Column make_column(const ProgramArgs&, const Head&, int) {
    return {};  // nothing depends on it
}

// Whether query q_idx sees key kv_idx.
FLASHGEN_HOOK bool mask_mod(const ProgramArgs&, const Head&, const Row&, const Column&, int, int) {
    return true;
}

// Keys that some query of [q_begin, q_end) may see.
FLASHGEN_HOOK Range visible_keys(const Head& head, int q_begin, int q_end) {
    const int begin = 0;
    const int end = head.kv_len;
    return {begin, max(begin, end)};
}

// Keys that every query of [q_begin, q_end) sees.
[[maybe_unused]] FLASHGEN_HOOK Range full_keys(const Head& head, int q_begin, int q_end) {
    const int begin = 0;
    const int end = head.kv_len;
    return {begin, max(begin, end)};
}

// Queries that some key of [kv_begin, kv_end) is visible to.
FLASHGEN_HOOK Range visible_queries(const Head& head, int kv_begin, int kv_end) {
    const int begin = 0;
    const int end = head.q_len;
    return {begin, max(begin, end)};
}

// Queries that see every key of [kv_begin, kv_end).
[[maybe_unused]] FLASHGEN_HOOK Range full_queries(const Head& head, int kv_begin, int kv_end) {
    const int begin = 0;
    const int end = head.q_len;
    return {begin, max(begin, end)};
}

struct ProgramGradients {};

// ---- Program on panels ----
Head head_of(const ProgramArgs& args, const AttentionArgs& a, const Sequence& sequence, int64_t h,
             int64_t h_kv) {
    return make_head(args, static_cast<int>(sequence.b), static_cast<int>(h),
                     static_cast<int>(h_kv), sequence.q_len, sequence.kv_len,
                     static_cast<int>(a.num_heads));
}

// Scores of a panel are [steps][kWidth]: a step is a key and a lane a query, or the other way
// round.
struct QueryLanes {
    const Row* rows;        // of the lanes
    const Column* columns;  // of the steps
    int q_begin, kv_begin;

    const Row& row(int, int lane) const { return rows[lane]; }
    const Column& column(int step, int) const { return columns[step]; }
    int q_idx(int, int lane) const { return q_begin + lane; }
    int kv_idx(int step, int) const { return kv_begin + step; }
};

struct KeyLanes {
    const Row* rows;        // of the steps
    const Column* columns;  // of the lanes
    int q_begin, kv_begin;

    const Row& row(int step, int) const { return rows[step]; }
    const Column& column(int, int lane) const { return columns[lane]; }
    int q_idx(int step, int) const { return q_begin + step; }
    int kv_idx(int, int lane) const { return kv_begin + lane; }
};

// What all tasks share.
struct Call {
    const AttentionArgs& a;
    const ProgramArgs& args;
};

// A tile of the side that is walked: rows `rows` of the tile that starts at `base`.
struct Step {
    int base;
    Range rows;
};

Range panel_range(int begin, int panel, int length) {
    const int first = begin + panel * kWidth;
    return {first, min(first + kWidth, length)};
}

Range overlap(Range a, Range b) { return {max(a.begin, b.begin), min(a.end, b.end)}; }

// ---- dq: queries on lanes, so scores are S^T, and dq is dQ^T until it is stored ----
struct alignas(64) QueryScratch {
    Acc q[kTileM * kHeadDim];                     // Q^T, panels
    Acc dout[kTileM * kHeadDimV];                 // dO^T, panels
    Acc dq[kTileM * kHeadDim];                    // dQ^T / softmax_scale, panels
    Acc k[(kTileN + kBlockRows) * kStrideQk];     // a tile of K; a block may read past it
    Acc v[(kTileN + kBlockRows) * kStrideV];      // a tile of V
    Acc scores[(kTileN + kBlockRows) * kWidth];   // S^T, then P^T, of one panel
    Acc dscores[(kTileN + kBlockRows) * kWidth];  // dP^T, then dS^T
    Acc lse[kTileM], delta[kTileM];
    Row rows[kTileM];
    Column columns[kTileN];
};

// One panel of queries, the `panel`-th of its tile, against one tile of keys.
void accumulate_dq(QueryScratch& s, const Call& call, const Head& head, int q_begin, int panel,
                   Step tile) {
    const Range queries = panel_range(q_begin, panel, head.q_len);
    const Range keys = overlap(visible_keys(head, queries.begin, queries.end), tile.rows);
    const int count = keys.end - keys.begin, skipped = keys.begin - tile.base;
    if (count <= 0) return;
    const Acc* k = s.k + skipped * kStrideQk;
    const Acc* v = s.v + skipped * kStrideV;

    // S^T = softmax_scale K Q^T, dP^T = V dO^T  [keys, kWidth]
    Panel::product<kStrideQk, 1>(k, s.q + panel * (kWidth * kHeadDim), count, kHeadDim,
                                 static_cast<Acc>(call.a.softmax_scale), s.scores);
    Panel::product<kStrideV, 1>(v, s.dout + panel * (kWidth * kHeadDimV), count, kHeadDimV, Acc{1},
                                s.dscores);

    // dS^T = P^T (dP^T - delta), dQ^T += K^T dS^T
    softmax_gradient<Panel>(s.scores, s.dscores, count,
                            LaneStats<Panel, Acc>{s.lse + panel * kWidth},
                            LaneStats<Panel, Acc>{s.delta + panel * kWidth});
    Acc* dq = s.dq + panel * (kWidth * kHeadDim);
    Panel::add_product<1, kStrideQk>(k, s.dscores, kHeadDim, count, dq);
}

// One tile of queries of one head against every key that it sees.
void backward_queries(QueryScratch& s, const Call& call, const Task& task) {
    const AttentionArgs& a = call.a;
    const Sequence& sequence = task.sequence;
    const int64_t h = task.head, h_kv = h / (a.num_heads / a.num_heads_kv);
    const Head head = head_of(call.args, a, sequence, h, h_kv);
    const int q_begin = static_cast<int>(task.begin);
    const int queries = min(kTileM, head.q_len - q_begin);
    const int panels = static_cast<int>(ceil_div(queries, kWidth));
    const auto q = rows_of<const Element>(a.q, sequence.batch, h, sequence.q_start);
    const auto dout = rows_of<const Element>(a.dout, sequence.batch, h, sequence.q_start);
    const auto k = rows_of<const Element>(a.k, sequence.batch, h_kv, sequence.kv_start);
    const auto v = rows_of<const Element>(a.v, sequence.batch, h_kv, sequence.kv_start);
    load_panels<Panel, kHeadDim>(q, q_begin, queries, s.q);
    load_panels<Panel, kHeadDimV>(dout, q_begin, queries, s.dout);
    for (int i = 0; i < panels * kWidth; ++i) s.rows[i] = make_row(call.args, head, q_begin + i);
    std::fill_n(s.lse, panels * kWidth, Acc{0});
    std::fill_n(s.delta, panels * kWidth, Acc{0});
    compute_delta<Panel, kHeadDimV, Element, Acc>(a, sequence, h, q_begin, queries);
    load_row_stats(a, first_stat(a, sequence, h) + q_begin, queries, s.lse, s.delta);
    std::fill_n(s.dq, panels * (kWidth * kHeadDim), Acc{0});

    const Range visible = visible_keys(head, q_begin, q_begin + queries);
    for (int base = visible.begin / kTileN * kTileN; base < visible.end; base += kTileN) {
        const Range keys = {max(visible.begin, base), min(visible.end, base + kTileN)};
        const int skipped = keys.begin - base, count = keys.end - keys.begin;
        load_tile<kHeadDim, kStrideQk>(k, keys.begin, count, s.k + skipped * kStrideQk);
        load_tile<kHeadDimV, kStrideV>(v, keys.begin, count, s.v + skipped * kStrideV);
        for (int i = 0; i < count; ++i) {
            s.columns[skipped + i] = make_column(call.args, head, keys.begin + i);
        }
        for (int panel = 0; panel < panels; ++panel) {
            accumulate_dq(s, call, head, q_begin, panel, {base, keys});
        }
    }

    const Acc scale = static_cast<Acc>(a.softmax_scale);
    const auto dq = rows_of<Element>(a.dq, sequence.batch, h, sequence.q_start);
    const Acc* lse = a.lse.as<const Acc>() + first_stat(a, sequence, h) + q_begin;
    store_panels<Panel, kHeadDim>(s.dq, dq, q_begin, queries, [=](int i) {
        return lse[i] == -std::numeric_limits<Acc>::infinity() ? Acc{0} : scale;
    });
}

// ---- dk, dv: keys on lanes, so scores are S, and dk and dv are dK^T, dV^T until stored ----
struct alignas(64) KeyScratch {
    Acc k[kDkvTileN * kHeadDim];                     // K^T, panels
    Acc v[kDkvTileN * kHeadDimV];                    // V^T, panels
    Acc dk[kDkvTileN * kHeadDim];                    // dK^T / softmax_scale, panels
    Acc dv[kDkvTileN * kHeadDimV];                   // dV^T, panels
    Acc q[(kDkvTileM + kBlockRows) * kStrideQk];     // a tile of Q; a block may read past it
    Acc dout[(kDkvTileM + kBlockRows) * kStrideV];   // a tile of dO
    Acc scores[(kDkvTileM + kBlockRows) * kWidth];   // S, then P, of one panel
    Acc dscores[(kDkvTileM + kBlockRows) * kWidth];  // dP, then dS
    Acc lse[kDkvTileM], delta[kDkvTileM];
    Row rows[kDkvTileM];
    Column columns[kDkvTileN];
};
static_assert(kDkvTileN % kWidth == 0, "a task is whole panels");

// One panel of keys, the `panel`-th of its tile, against one tile of queries.
void accumulate_dk_dv(KeyScratch& s, const Call& call, const Head& head, int kv_begin, int panel,
                      Step tile) {
    const Range keys = panel_range(kv_begin, panel, head.kv_len);
    const Range queries = overlap(visible_queries(head, keys.begin, keys.end), tile.rows);
    const int count = queries.end - queries.begin, skipped = queries.begin - tile.base;
    if (count <= 0) return;
    const Acc* q = s.q + skipped * kStrideQk;
    const Acc* dout = s.dout + skipped * kStrideV;

    // S = softmax_scale Q K^T, dP = dO V^T  [queries, kWidth]
    Panel::product<kStrideQk, 1>(q, s.k + panel * (kWidth * kHeadDim), count, kHeadDim,
                                 static_cast<Acc>(call.a.softmax_scale), s.scores);
    Panel::product<kStrideV, 1>(dout, s.v + panel * (kWidth * kHeadDimV), count, kHeadDimV, Acc{1},
                                s.dscores);

    // dS = P (dP - delta), dV^T += dO^T P, dK^T += Q^T dS
    softmax_gradient<Panel>(s.scores, s.dscores, count, RowStats<Panel, Acc>{s.lse + skipped},
                            RowStats<Panel, Acc>{s.delta + skipped});
    Acc* dv = s.dv + panel * (kWidth * kHeadDimV);
    Acc* dk = s.dk + panel * (kWidth * kHeadDim);
    Panel::add_product<1, kStrideV>(dout, s.scores, kHeadDimV, count, dv);
    Panel::add_product<1, kStrideQk>(q, s.dscores, kHeadDim, count, dk);
}

// One query head of a group: its tile of queries, into scratch; whether all of it is finite.
bool load_queries(KeyScratch& s, const Call& call, const Sequence& sequence, const Head& head,
                  Range queries, int base) {
    const AttentionArgs& a = call.a;
    const int skipped = queries.begin - base, count = queries.end - queries.begin;
    const auto q = rows_of<const Element>(a.q, sequence.batch, head.h, sequence.q_start);
    const auto dout = rows_of<const Element>(a.dout, sequence.batch, head.h, sequence.q_start);
    bool finite = true;
    load_tile<kHeadDim, kStrideQk>(q, queries.begin, count, s.q + skipped * kStrideQk);
    load_tile<kHeadDimV, kStrideV>(dout, queries.begin, count, s.dout + skipped * kStrideV);
    load_row_stats(a, first_stat(a, sequence, head.h) + queries.begin, count, s.lse + skipped,
                   s.delta + skipped);
    for (int i = 0; i < count; ++i) {
        s.rows[skipped + i] = make_row(call.args, head, queries.begin + i);
    }
    return finite;
}

// One tile of keys against every query of one head of its group that sees it.
void walk_queries(KeyScratch& s, const Call& call, const Sequence& sequence, const Head& head,
                  int kv_begin, int keys) {
    const int panels = static_cast<int>(ceil_div(keys, kWidth));
    for (int i = 0; i < panels * kWidth; ++i) {
        s.columns[i] = make_column(call.args, head, kv_begin + i);
    }
    const Range visible = visible_queries(head, kv_begin, kv_begin + keys);
    for (int base = visible.begin / kDkvTileM * kDkvTileM; base < visible.end; base += kDkvTileM) {
        const Range rows = {max(visible.begin, base), min(visible.end, base + kDkvTileM)};
        const Step tile = {base, rows};
        load_queries(s, call, sequence, head, rows, base);
        for (int panel = 0; panel < panels; ++panel) {
            accumulate_dk_dv(s, call, head, kv_begin, panel, tile);
        }
    }
}

// One tile of keys of one key head, and every query head of its group.
void backward_keys(KeyScratch& s, const Call& call, const Task& task) {
    const AttentionArgs& a = call.a;
    const Sequence& sequence = task.sequence;
    const int64_t h_kv = task.head, group = a.num_heads / a.num_heads_kv;
    const int kv_begin = static_cast<int>(task.begin);
    const int keys = min(kDkvTileN, sequence.kv_len - kv_begin);
    const int panels = static_cast<int>(ceil_div(keys, kWidth));
    const auto k = rows_of<const Element>(a.k, sequence.batch, h_kv, sequence.kv_start);
    const auto v = rows_of<const Element>(a.v, sequence.batch, h_kv, sequence.kv_start);

    load_panels<Panel, kHeadDim>(k, kv_begin, keys, s.k);
    load_panels<Panel, kHeadDimV>(v, kv_begin, keys, s.v);
    std::fill_n(s.dk, panels * (kWidth * kHeadDim), Acc{0});
    std::fill_n(s.dv, panels * (kWidth * kHeadDimV), Acc{0});
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; ++h) {
        walk_queries(s, call, sequence, head_of(call.args, a, sequence, h, h_kv), kv_begin, keys);
    }

    const Acc scale = static_cast<Acc>(a.softmax_scale);
    const auto dk = rows_of<Element>(a.dk, sequence.batch, h_kv, sequence.kv_start);
    store_panels<Panel, kHeadDim>(s.dk, dk, kv_begin, keys, [=](int) { return scale; });
    const Acc survivors = 1;
    const auto dv = rows_of<Element>(a.dv, sequence.batch, h_kv, sequence.kv_start);
    store_panels<Panel, kHeadDimV>(s.dv, dv, kv_begin, keys, [=](int) { return survivors; });
}

// ---- Kernel: every element of a gradient is summed by one task, in one order ----
union alignas(64) Scratch {
    QueryScratch queries;
    KeyScratch keys;
};

void backward(const Call& call, const Tasks<kVarlen>& dq, const Tasks<kVarlen>& dkv,
              const PerThread<Scratch>& scratch, int threads) {
    const int64_t dq_count = dq.count(), dkv_count = dkv.count();
#pragma omp parallel num_threads(threads)
    {
        // dq, and delta for dk and dv
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < dq_count; ++i) {
            const Task task = dq.at(i);
            if (task.begin >= task.sequence.q_len) continue;
            backward_queries(scratch.mine().queries, call, task);
        }
        // The loop above ends with a barrier: delta is complete.
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < dkv_count; ++i) {
            const Task task = dkv.at(i);
            if (task.begin < task.sequence.kv_len) {
                backward_keys(scratch.mine().keys, call, task);
            }
        }
    }
}

bool run(Arguments& in, const AttentionArgs& a, const ProgramArgs& program,
         const ProgramGradients& out) {
    if (!check_workspace(in, a, delta_bytes<Acc>(workspace_sizes(a), kVarlen))) return false;
    const Tasks<kVarlen> dq(a, /*own_queries=*/true, kTileM);
    const Tasks<kVarlen> dkv(a, /*own_queries=*/false, kDkvTileN);
    const int threads = thread_count(std::max(dq.count(), dkv.count()));
    const PerThread<Scratch> scratch(threads);
    bool enough_memory = scratch.ok();
    if (!enough_memory) {
        in.fail("MemoryError", "backward: no memory for %d threads", threads);
        return false;
    }
    const Call call = {
        a,
        program,
    };
    backward(call, dq, dkv, scratch, threads);
    return true;
}

// Bytes of delta.
int64_t workspace_bytes(const WorkspaceSizes& sizes) { return delta_bytes<Acc>(sizes, kVarlen); }

}  // namespace

// ---- Entry points: packed arguments of the tvm-ffi C ABI ----
namespace {

constexpr AttentionTypes kTypes = {
    kDLCPU,
    {kDLFloat, 32, 1},  // q, k, v, out and their gradients
    {kDLFloat, 32, 1},  // lse
    kHeadDim,
    kHeadDimV,
    0,  // random bits of an element
    false,  // varlen
    Sink::kNone,
};

// ---- Arguments of the program, after those of every variant ----
constexpr int kNumProgramArgs = 0;  // captures, params
constexpr int kNumProgramGradients = 0;

}  // namespace

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_backward(void*, const TVMFFIAny* args, int32_t num_args,
                                                     TVMFFIAny*) {
    Arguments in("backward", args, num_args,
                 backward_args(kTypes) + kNumProgramArgs + kNumProgramGradients);
    AttentionArgs a = {};
    ProgramArgs program = {};
    ProgramGradients gradients = {};
    if (!read_backward(in, a, kTypes)) return -1;
    return run(in, a, program, gradients) ? 0 : -1;
}

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_backward_workspace(void*, const TVMFFIAny* args,
                                                               int32_t num_args,
                                                               TVMFFIAny* result) {
    Arguments in("backward_workspace", args, num_args, kWorkspaceArgs);
    const WorkspaceSizes sizes = read_workspace_sizes(in);
    if (!in.ok()) return -1;
    return_integer(result, workspace_bytes(sizes));
    return 0;
}
