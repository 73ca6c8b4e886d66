// flashgen 0.1.0 | d64-fp32 | cpu | bwd | generated: do not edit
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/parallel.h"
#include "cpu/row_stats.h"
#include "cpu/softmax.h"
#include "cpu/tiles.h"
#include "host/attention_args.h"
namespace flashgen {
namespace {

using std::max;
using std::min;

// ---- Plan (chosen by generator/plan/cpu.py) ----
using Element = float;  // of q, k, v, out and their gradients
using Acc = float;  // of everything in between, and of lse
constexpr int kHeadDim = 64;
constexpr int kHeadDimV = 64;
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
FLASHGEN_HOOK Range full_keys(const Head& head, int q_begin, int q_end) {
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
FLASHGEN_HOOK Range full_queries(const Head& head, int kv_begin, int kv_end) {
    const int begin = 0;
    const int end = head.q_len;
    return {begin, max(begin, end)};
}

// ---- Arguments of the program, after those of every variant ----
constexpr int kNumProgramArgs = 0;  // captures, params
constexpr int kNumProgramGradients = 0;

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
};

// A tile of the side that is walked: rows `rows` of the tile that starts at `base`.
struct Step {
    int base;
    Range rows;
};

// One panel of queries, the `panel`-th of its tile, against one tile of keys.
void accumulate_dq(QueryScratch& s, const AttentionArgs& a, int q_begin, int panel, Step tile) {
    const int q_len = static_cast<int>(a.seqlen_q), kv_len = static_cast<int>(a.seqlen_k);
    const Head head = make_head({}, 0, 0, 0, q_len, kv_len, 0);
    const int first = q_begin + panel * kWidth, last = min(first + kWidth, q_len);
    const Range visible = visible_keys(head, first, last);
    const Range keys = {max(visible.begin, tile.rows.begin), min(visible.end, tile.rows.end)};
    const int count = keys.end - keys.begin, skipped = keys.begin - tile.base;
    if (count <= 0) return;
    const Acc* k = s.k + skipped * kStrideQk;
    const Acc* v = s.v + skipped * kStrideV;

    // S^T = softmax_scale K Q^T, dP^T = V dO^T  [keys, kWidth]
    Panel::product<kStrideQk, 1>(k, s.q + panel * (kWidth * kHeadDim), count, kHeadDim,
                                 static_cast<Acc>(a.softmax_scale), s.scores);
    Panel::product<kStrideV, 1>(v, s.dout + panel * (kWidth * kHeadDimV), count, kHeadDimV, Acc{1},
                                s.dscores);
    // dS^T = P^T (dP^T - delta), dQ^T += K^T dS^T
    softmax_gradient<Panel>(s.scores, s.dscores, count,
                            LaneStats<Panel, Acc>{s.lse + panel * kWidth},
                            LaneStats<Panel, Acc>{s.delta + panel * kWidth});
    Panel::add_product<1, kStrideQk>(k, s.dscores, kHeadDim, count,
                                     s.dq + panel * (kWidth * kHeadDim));
}

// One tile of queries of one head against every key that it sees.
void backward_queries(QueryScratch& s, const AttentionArgs& a, int64_t b, int64_t h, int q_begin) {
    const int q_len = static_cast<int>(a.seqlen_q), kv_len = static_cast<int>(a.seqlen_k);
    const Head head = make_head({}, 0, 0, 0, q_len, kv_len, 0);
    const int queries = min(kTileM, q_len - q_begin);
    const int panels = static_cast<int>(ceil_div(queries, kWidth));
    const int64_t h_kv = h / (a.num_heads / a.num_heads_kv);
    const Rows<const Element> k = rows_of<const Element>(a.k, b, h_kv);
    const Rows<const Element> v = rows_of<const Element>(a.v, b, h_kv);
    load_panels<Panel, kHeadDim>(rows_of<const Element>(a.q, b, h), q_begin, queries, s.q);
    load_panels<Panel, kHeadDimV>(rows_of<const Element>(a.dout, b, h), q_begin, queries, s.dout);
    std::fill_n(s.lse, panels * kWidth, Acc{0});
    std::fill_n(s.delta, panels * kWidth, Acc{0});
    compute_delta<Panel, kHeadDimV, Element, Acc>(a, b, h, q_begin, queries);
    load_row_stats(a, b, h, q_begin, queries, s.lse, s.delta);
    std::fill_n(s.dq, panels * (kWidth * kHeadDim), Acc{0});

    const Range visible = visible_keys(head, q_begin, q_begin + queries);
    for (int base = visible.begin / kTileN * kTileN; base < visible.end; base += kTileN) {
        const Range keys = {max(visible.begin, base), min(visible.end, base + kTileN)};
        const int skipped = keys.begin - base, count = keys.end - keys.begin;
        load_tile<kHeadDim, kStrideQk>(k, keys.begin, count, s.k + skipped * kStrideQk);
        load_tile<kHeadDimV, kStrideV>(v, keys.begin, count, s.v + skipped * kStrideV);
        for (int panel = 0; panel < panels; ++panel) {
            accumulate_dq(s, a, q_begin, panel, {base, keys});
        }
    }

    const Acc scale = static_cast<Acc>(a.softmax_scale);
    store_panels<Panel, kHeadDim>(s.dq, rows_of<Element>(a.dq, b, h), q_begin, queries,
                                  [=](int) { return scale; });
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
};
static_assert(kDkvTileN % kWidth == 0, "a task is whole panels");

// One panel of keys, the `panel`-th of its tile, against one tile of queries.
void accumulate_dk_dv(KeyScratch& s, const AttentionArgs& a, int kv_begin, int panel, Step tile) {
    const int q_len = static_cast<int>(a.seqlen_q), kv_len = static_cast<int>(a.seqlen_k);
    const Head head = make_head({}, 0, 0, 0, q_len, kv_len, 0);
    const int first = kv_begin + panel * kWidth, last = min(first + kWidth, kv_len);
    const Range visible = visible_queries(head, first, last);
    const Range queries = {max(visible.begin, tile.rows.begin), min(visible.end, tile.rows.end)};
    const int count = queries.end - queries.begin, skipped = queries.begin - tile.base;
    if (count <= 0) return;
    const Acc* q = s.q + skipped * kStrideQk;
    const Acc* dout = s.dout + skipped * kStrideV;

    // S = softmax_scale Q K^T, dP = dO V^T  [queries, kWidth]
    Panel::product<kStrideQk, 1>(q, s.k + panel * (kWidth * kHeadDim), count, kHeadDim,
                                 static_cast<Acc>(a.softmax_scale), s.scores);
    Panel::product<kStrideV, 1>(dout, s.v + panel * (kWidth * kHeadDimV), count, kHeadDimV, Acc{1},
                                s.dscores);
    // dS = P (dP - delta), dV^T += dO^T P, dK^T += Q^T dS
    softmax_gradient<Panel>(s.scores, s.dscores, count, RowStats<Panel, Acc>{s.lse + skipped},
                            RowStats<Panel, Acc>{s.delta + skipped});
    Panel::add_product<1, kStrideV>(dout, s.scores, kHeadDimV, count,
                                    s.dv + panel * (kWidth * kHeadDimV));
    Panel::add_product<1, kStrideQk>(q, s.dscores, kHeadDim, count,
                                     s.dk + panel * (kWidth * kHeadDim));
}

// One query head of a group: its tile of queries that starts at `base`, into scratch.
void load_queries(KeyScratch& s, const AttentionArgs& a, int64_t b, int64_t h, Step tile) {
    const int skipped = tile.rows.begin - tile.base, count = tile.rows.end - tile.rows.begin;
    load_tile<kHeadDim, kStrideQk>(rows_of<const Element>(a.q, b, h), tile.rows.begin, count,
                                   s.q + skipped * kStrideQk);
    load_tile<kHeadDimV, kStrideV>(rows_of<const Element>(a.dout, b, h), tile.rows.begin, count,
                                   s.dout + skipped * kStrideV);
    load_row_stats(a, b, h, tile.rows.begin, count, s.lse + skipped, s.delta + skipped);
}

// One tile of keys of one key head against every query of its group that sees it.
void backward_keys(KeyScratch& s, const AttentionArgs& a, int64_t b, int64_t h_kv, int kv_begin) {
    const int q_len = static_cast<int>(a.seqlen_q), kv_len = static_cast<int>(a.seqlen_k);
    const Head head = make_head({}, 0, 0, 0, q_len, kv_len, 0);
    const int keys = min(kDkvTileN, kv_len - kv_begin);
    const int panels = static_cast<int>(ceil_div(keys, kWidth));
    const int64_t group = a.num_heads / a.num_heads_kv;

    load_panels<Panel, kHeadDim>(rows_of<const Element>(a.k, b, h_kv), kv_begin, keys, s.k);
    load_panels<Panel, kHeadDimV>(rows_of<const Element>(a.v, b, h_kv), kv_begin, keys, s.v);
    std::fill_n(s.dk, panels * (kWidth * kHeadDim), Acc{0});
    std::fill_n(s.dv, panels * (kWidth * kHeadDimV), Acc{0});

    const Range visible = visible_queries(head, kv_begin, kv_begin + keys);
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; ++h) {
        for (int base = visible.begin / kDkvTileM * kDkvTileM; base < visible.end;
             base += kDkvTileM) {
            const Range rows = {max(visible.begin, base), min(visible.end, base + kDkvTileM)};
            const Step tile = {base, rows};
            load_queries(s, a, b, h, tile);
            for (int panel = 0; panel < panels; ++panel) {
                accumulate_dk_dv(s, a, kv_begin, panel, tile);
            }
        }
    }

    const Acc scale = static_cast<Acc>(a.softmax_scale);
    store_panels<Panel, kHeadDim>(s.dk, rows_of<Element>(a.dk, b, h_kv), kv_begin, keys,
                                  [=](int) { return scale; });
    store_panels<Panel, kHeadDimV>(s.dv, rows_of<Element>(a.dv, b, h_kv), kv_begin, keys,
                                   [](int) { return Acc{1}; });
}

// ---- Kernel: every element of a gradient is summed by one task, in one order ----
union alignas(64) Scratch {
    QueryScratch queries;
    KeyScratch keys;
};

struct Tasks {
    // Of one head, and in all.
    int64_t q_tiles, kv_tiles;
    int64_t dq, dkv;
};

Tasks tasks_of(const AttentionArgs& a) {
    const int64_t q_tiles = ceil_div(a.seqlen_q, kTileM);
    const int64_t kv_tiles = ceil_div(a.seqlen_k, kDkvTileN);
    return {q_tiles, kv_tiles, a.batch * a.num_heads * q_tiles,
            a.batch * a.num_heads_kv * kv_tiles};
}

void backward(const AttentionArgs& a, const Tasks& tasks, const PerThread<Scratch>& scratch,
              int threads) {
#pragma omp parallel num_threads(threads)
    {
        // dq, and delta for dk and dv. The last tile of a head first: the heaviest when causal.
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks.dq; ++task) {
            const int64_t head = task / tasks.q_tiles;
            const int64_t tile = tasks.q_tiles - 1 - task % tasks.q_tiles;
            backward_queries(scratch.mine().queries, a, head / a.num_heads, head % a.num_heads,
                             static_cast<int>(tile * kTileM));
        }
        // The loop above ends with a barrier: delta is complete.
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks.dkv; ++task) {
            const int64_t head = task / tasks.kv_tiles, tile = task % tasks.kv_tiles;
            backward_keys(scratch.mine().keys, a, head / a.num_heads_kv, head % a.num_heads_kv,
                          static_cast<int>(tile * kDkvTileN));
        }
    }
}

}  // namespace
}  // namespace flashgen

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_backward(void*, const TVMFFIAny* args, int32_t num_args,
                                                     TVMFFIAny*) {
    using namespace flashgen;
    Arguments in("backward", args, num_args,
                 backward_args(kTypes) + kNumProgramArgs + kNumProgramGradients);
    AttentionArgs a = {};
    if (!read_backward(in, a, kTypes)) return -1;
    if (!check_workspace(in, a, delta_bytes<Acc>(workspace_sizes(a)))) return -1;
    const Tasks tasks = tasks_of(a);
    const int threads = thread_count(std::max(tasks.dq, tasks.dkv));
    const PerThread<Scratch> scratch(threads);
    if (!scratch.ok()) {
        in.fail("MemoryError", "backward: no memory for %d threads", threads);
        return -1;
    }
    backward(a, tasks, scratch, threads);
    return 0;
}

// Bytes of delta.
extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_backward_workspace(void*, const TVMFFIAny* args,
                                                               int32_t num_args,
                                                               TVMFFIAny* result) {
    using namespace flashgen;
    Arguments in("backward_workspace", args, num_args, kWorkspaceArgs);
    const WorkspaceSizes sizes = read_workspace_sizes(in);
    if (!in.ok()) return -1;
    return_integer(result, delta_bytes<Acc>(sizes));
    return 0;
}
