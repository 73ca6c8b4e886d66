// flashgen 0.1.0 | d64-fp32 | cpu | fwd | generated: do not edit
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/parallel.h"
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

// ---- Kernel: queries on lanes, so scores are S^T and the output is O^T until it is stored ----
constexpr int kPanels = kTileM / kWidth;

struct alignas(64) Scratch {
    Acc q[kTileM * kHeadDim];                    // Q^T, panels
    Acc out[kTileM * kHeadDimV];                 // O^T, panels, not yet divided by row_sum
    Acc k[(kTileN + kBlockRows) * kStrideQk];    // a tile of K; a block may read past it
    Acc v[(kTileN + kBlockRows) * kStrideV];     // a tile of V
    Acc scores[(kTileN + kBlockRows) * kWidth];  // S^T, then P^T, of one panel
    Acc row_max[kTileM], row_sum[kTileM], rescale[kWidth];
    Row rows[kTileM];
    Column columns[kTileN];
};

// What all tasks share.
struct Call {
    const AttentionArgs& a;
    const ProgramArgs& args;
};

// A tile of keys of one head: `keys` of the tile that starts at `base`.
struct KeyTile {
    int base;
    Range keys;
};

// A panel's queries, and those of a tile's keys that some of them may see.
Range panel_queries(const Head& head, int q_begin, int panel) {
    const int first = q_begin + panel * kWidth;
    return {first, min(first + kWidth, head.q_len)};
}

Range panel_keys(const Head& head, Range queries, Range tile) {
    const Range visible = visible_keys(head, queries.begin, queries.end);
    return {max(visible.begin, tile.begin), min(visible.end, tile.end)};
}

// One panel of queries, the `panel`-th of its tile, against one tile of keys.
void attend(Scratch& s, const Call& call, const Head& head, int q_begin, int panel, KeyTile tile) {
    const Range queries = panel_queries(head, q_begin, panel);
    const Range keys = panel_keys(head, queries, tile.keys);
    const int count = keys.end - keys.begin, skipped = keys.begin - tile.base;
    if (count <= 0) return;

    // S^T = softmax_scale K Q^T  [keys, kWidth]
    Panel::product<kStrideQk, 1>(s.k + skipped * kStrideQk, s.q + panel * (kWidth * kHeadDim),
                                 count, kHeadDim, static_cast<Acc>(call.a.softmax_scale), s.scores);

    // P^T = exp(S^T - row_max), O^T = O^T exp(old row_max - row_max) + V^T P^T
    Acc* row_max = s.row_max + panel * kWidth;
    Acc* row_sum = s.row_sum + panel * kWidth;
    online_softmax<Panel>(s.scores, count, row_max, row_sum, s.rescale);
    const Acc* v = s.v + skipped * kStrideV;
    Acc* out = s.out + panel * (kWidth * kHeadDimV);
    Panel::rescale_add_product<1, kStrideV>(v, s.scores, kHeadDimV, count, s.rescale, out);
}

// out = O / row_sum, lse = row_max + log(row_sum)
// A query without keys gets 0 and -inf.
void finish(Scratch& s, const AttentionArgs& a, const Sequence& sequence, int64_t h, int q_begin,
            int queries) {
    const Acc survivors = 1;
    Acc* lse = a.lse.as<Acc>() + first_stat(a, sequence, h) + q_begin;
    for (int i = 0; i < queries; ++i) {
        // In fp64, so that it is rounded once: the backward's P has the error of lse.
        double row_max = s.row_max[i], row_sum = s.row_sum[i];
        s.row_sum[i] = row_sum == 0 ? Acc{0} : survivors / s.row_sum[i];
        lse[i] = static_cast<Acc>(row_max + std::log(row_sum));
    }
    const auto out = rows_of<Element>(a.out, sequence.batch, h, sequence.q_start);
    store_panels<Panel, kHeadDimV>(s.out, out, q_begin, queries,
                                   [&](int i) { return s.row_sum[i]; });
}

// One tile of queries of one head: every key that it sees, then out and lse.
void forward_tile(Scratch& s, const Call& call, const Task& task) {
    const AttentionArgs& a = call.a;
    const Sequence& sequence = task.sequence;
    const int64_t h = task.head, h_kv = h / (a.num_heads / a.num_heads_kv);
    const Head head = head_of(call.args, a, sequence, h, h_kv);
    const int q_begin = static_cast<int>(task.begin);
    const int queries = min(kTileM, head.q_len - q_begin);
    const int panels = static_cast<int>(ceil_div(queries, kWidth));
    const auto q = rows_of<const Element>(a.q, sequence.batch, h, sequence.q_start);
    const auto k = rows_of<const Element>(a.k, sequence.batch, h_kv, sequence.kv_start);
    const auto v = rows_of<const Element>(a.v, sequence.batch, h_kv, sequence.kv_start);
    load_panels<Panel, kHeadDim>(q, q_begin, queries, s.q);
    for (int i = 0; i < panels * kWidth; ++i) s.rows[i] = make_row(call.args, head, q_begin + i);
    std::fill_n(s.out, panels * (kWidth * kHeadDimV), Acc{0});
    std::fill_n(s.row_max, panels * kWidth, -std::numeric_limits<Acc>::infinity());
    std::fill_n(s.row_sum, panels * kWidth, Acc{0});

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
            attend(s, call, head, q_begin, panel, {base, keys});
        }
    }
    finish(s, a, sequence, h, q_begin, queries);
}

void forward(const Call& call, const Tasks<kVarlen>& tasks, const PerThread<Scratch>& scratch,
             int threads) {
    const int64_t count = tasks.count();
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < count; ++i) {
        const Task task = tasks.at(i);
        if (task.begin < task.sequence.q_len) forward_tile(scratch.mine(), call, task);
    }
}

bool run(Arguments& in, const AttentionArgs& a, const ProgramArgs& program) {
    const Tasks<kVarlen> tasks(a, /*own_queries=*/true, kTileM);
    const int threads = thread_count(tasks.count());
    const PerThread<Scratch> scratch(threads);
    bool enough_memory = scratch.ok();
    if (!enough_memory) {
        in.fail("MemoryError", "forward: no memory for %d threads", threads);
        return false;
    }
    forward({a, program}, tasks, scratch, threads);
    return true;
}

// A forward needs no workspace.
int64_t workspace_bytes(const WorkspaceSizes&) { return 0; }

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

}  // namespace

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_forward(void*, const TVMFFIAny* args, int32_t num_args,
                                                    TVMFFIAny*) {
    Arguments in("forward", args, num_args, forward_args(kTypes) + kNumProgramArgs);
    AttentionArgs a = {};
    ProgramArgs program = {};
    if (!read_forward(in, a, kTypes)) return -1;
    return run(in, a, program) ? 0 : -1;
}

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_forward_workspace(void*, const TVMFFIAny* args,
                                                              int32_t num_args, TVMFFIAny* result) {
    Arguments in("forward_workspace", args, num_args, kWorkspaceArgs);
    const WorkspaceSizes sizes = read_workspace_sizes(in);
    if (!in.ok()) return -1;
    return_integer(result, workspace_bytes(sizes));
    return 0;
}
