// flashgen 0.1.0 | d128-bf16-causal | cpu | fwd | generated: do not edit
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/parallel.h"
#include "cpu/softmax.h"
#include "cpu/tiles.h"
#include "host/attention_args.h"
namespace flashgen {
namespace {

using std::max;
using std::min;

// ---- Plan (chosen by generator/plan/cpu.py) ----
using Element = Bfloat16;  // of q, k, v, out and their gradients
using Acc = float;  // of everything in between, and of lse
constexpr int kHeadDim = 128;
constexpr int kHeadDimV = 128;
constexpr int kDropoutBits = 0;
constexpr int kVectorBytes = 32;
constexpr int kBlockRows = 4;  // register block: rows x vectors
constexpr int kBlockVecs = 3;
constexpr int kStrideQk = 144;  // of a packed row: an odd number of cache lines
constexpr int kStrideV = 144;
constexpr int kTileM = 96;  // queries of a task, on lanes
constexpr int kTileN = 64;  // keys packed at once
constexpr AttentionTypes kTypes = {
    kDLCPU,
    {kDLBfloat, 16, 1},  // q, k, v, out and their gradients
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
// mask = kv_idx <= q_idx + (kv_len - q_len)
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
FLASHGEN_HOOK bool mask_mod(const ProgramArgs& args, const Head& head, const Row& row,
                            const Column& column, int q_idx, int kv_idx) {
    return kv_idx <= q_idx + (head.kv_len - head.q_len);
}

// Keys that some query of [q_begin, q_end) may see.
FLASHGEN_HOOK Range visible_keys(const Head& head, int q_begin, int q_end) {
    const int begin = 0;
    const int end = min(head.kv_len, q_end + (head.kv_len - head.q_len));
    return {begin, max(begin, end)};
}

// Keys that every query of [q_begin, q_end) sees.
FLASHGEN_HOOK Range full_keys(const Head& head, int q_begin, int q_end) {
    const int begin = 0;
    const int end = min(head.kv_len, q_begin + 1 + (head.kv_len - head.q_len));
    return {begin, max(begin, end)};
}

// ---- Arguments of the program, after those of every variant ----
constexpr int kNumProgramArgs = 0;  // captures, params

// ---- Kernel: queries on lanes, so scores are S^T and the output is O^T until it is stored ----
struct alignas(64) Scratch {
    Acc q[kTileM * kHeadDim];                    // Q^T, panels
    Acc out[kTileM * kHeadDimV];                 // O^T, panels, not yet divided by row_sum
    Acc k[(kTileN + kBlockRows) * kStrideQk];    // a tile of K; a block may read past it
    Acc v[(kTileN + kBlockRows) * kStrideV];     // a tile of V
    Acc scores[(kTileN + kBlockRows) * kWidth];  // S^T, then P^T, of one panel
    Acc row_max[kTileM], row_sum[kTileM], rescale[kWidth];
};

// A tile of keys of one (batch, head): `keys` of the tile that starts at `base`.
struct KeyTile {
    int base;
    Range keys;
};

// S^T = -inf where the query does not see the key.
void mask_scores(Acc* scores, int q_begin, Range keys, const Head& head) {
    for (int kv = keys.begin; kv < keys.end; ++kv, scores += kWidth) {
        for (int i = 0; i < kWidth; ++i) {
            const bool seen = mask_mod({}, head, {}, {}, q_begin + i, kv);
            scores[i] = seen ? scores[i] : -std::numeric_limits<Acc>::infinity();
        }
    }
}

// One panel of queries, the `panel`-th of its tile, against one tile of keys.
void attend(Scratch& s, const AttentionArgs& a, int q_begin, int panel, KeyTile tile) {
    const int q_len = static_cast<int>(a.seqlen_q), kv_len = static_cast<int>(a.seqlen_k);
    const Head head = make_head({}, 0, 0, 0, q_len, kv_len, 0);
    const int first = q_begin + panel * kWidth, last = min(first + kWidth, q_len);
    const Range visible = visible_keys(head, first, last);
    const Range keys = {max(visible.begin, tile.keys.begin), min(visible.end, tile.keys.end)};
    const int count = keys.end - keys.begin, skipped = keys.begin - tile.base;
    if (count <= 0) return;

    // S^T = softmax_scale K Q^T  [keys, kWidth]
    Panel::product<kStrideQk, 1>(s.k + skipped * kStrideQk, s.q + panel * (kWidth * kHeadDim),
                                 count, kHeadDim, static_cast<Acc>(a.softmax_scale), s.scores);
    const Range full = full_keys(head, first, last);
    if (keys.begin < full.begin || keys.end > full.end) {
        mask_scores(s.scores, first, keys, head);
    }

    // P^T = exp(S^T - row_max), O^T = O^T exp(old row_max - row_max) + V^T P^T
    Acc* row_max = s.row_max + panel * kWidth;
    Acc* row_sum = s.row_sum + panel * kWidth;
    online_softmax<Panel>(s.scores, count, row_max, row_sum, s.rescale);
    Panel::rescale_add_product<1, kStrideV>(s.v + skipped * kStrideV, s.scores, kHeadDimV, count,
                                            s.rescale, s.out + panel * (kWidth * kHeadDimV));
}

// One tile of queries of one head: every key that it sees, then out and lse.
void forward_tile(Scratch& s, const AttentionArgs& a, int64_t b, int64_t h, int q_begin) {
    const int q_len = static_cast<int>(a.seqlen_q), kv_len = static_cast<int>(a.seqlen_k);
    const Head head = make_head({}, 0, 0, 0, q_len, kv_len, 0);
    const int queries = min(kTileM, q_len - q_begin);
    const int panels = static_cast<int>(ceil_div(queries, kWidth));
    const int64_t h_kv = h / (a.num_heads / a.num_heads_kv);
    const Rows<const Element> k = rows_of<const Element>(a.k, b, h_kv);
    const Rows<const Element> v = rows_of<const Element>(a.v, b, h_kv);
    load_panels<Panel, kHeadDim>(rows_of<const Element>(a.q, b, h), q_begin, queries, s.q);
    std::fill_n(s.out, panels * (kWidth * kHeadDimV), Acc{0});
    std::fill_n(s.row_max, panels * kWidth, -std::numeric_limits<Acc>::infinity());
    std::fill_n(s.row_sum, panels * kWidth, Acc{0});

    const Range visible = visible_keys(head, q_begin, q_begin + queries);
    for (int base = visible.begin / kTileN * kTileN; base < visible.end; base += kTileN) {
        const Range keys = {max(visible.begin, base), min(visible.end, base + kTileN)};
        const int skipped = keys.begin - base, count = keys.end - keys.begin;
        load_tile<kHeadDim, kStrideQk>(k, keys.begin, count, s.k + skipped * kStrideQk);
        load_tile<kHeadDimV, kStrideV>(v, keys.begin, count, s.v + skipped * kStrideV);
        for (int panel = 0; panel < panels; ++panel) attend(s, a, q_begin, panel, {base, keys});
    }

    // out = O / row_sum, lse = row_max + log(row_sum); a query without keys gets 0 and -inf
    const Acc survivors = 1;
    const auto factor = [&](int i) {
        return s.row_sum[i] == 0 ? Acc{0} : survivors / s.row_sum[i];
    };
    store_panels<Panel, kHeadDimV>(s.out, rows_of<Element>(a.out, b, h), q_begin, queries, factor);
    Acc* lse = a.lse.as<Acc>() + (b * a.num_heads + h) * a.seqlen_q + q_begin;
    for (int i = 0; i < queries; ++i) {
        // In fp64, so that it is rounded once: the backward's P has the error of lse.
        const double log_sum = std::log(static_cast<double>(s.row_sum[i]));
        lse[i] = static_cast<Acc>(static_cast<double>(s.row_max[i]) + log_sum);
    }
}

void forward(const AttentionArgs& a, const PerThread<Scratch>& scratch, int threads) {
    const int64_t q_tiles = ceil_div(a.seqlen_q, kTileM);
    const int64_t tasks = a.batch * a.num_heads * q_tiles;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t task = 0; task < tasks; ++task) {
        const int64_t b = task / q_tiles / a.num_heads, h = task / q_tiles % a.num_heads;
        // The last tile of a head first: under a causal mask it has the most keys.
        const int64_t q_tile = q_tiles - 1 - task % q_tiles;
        forward_tile(scratch.mine(), a, b, h, static_cast<int>(q_tile * kTileM));
    }
}

}  // namespace
}  // namespace flashgen

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_forward(void*, const TVMFFIAny* args, int32_t num_args,
                                                    TVMFFIAny*) {
    using namespace flashgen;
    Arguments in("forward", args, num_args, forward_args(kTypes) + kNumProgramArgs);
    AttentionArgs a = {};
    if (!read_forward(in, a, kTypes)) return -1;
    const int threads = thread_count(a.batch * a.num_heads * ceil_div(a.seqlen_q, kTileM));
    const PerThread<Scratch> scratch(threads);
    if (!scratch.ok()) {
        in.fail("MemoryError", "forward: no memory for %d threads", threads);
        return -1;
    }
    forward(a, scratch, threads);
    return 0;
}

extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_forward_workspace(void*, const TVMFFIAny*, int32_t,
                                                              TVMFFIAny* result) {
    flashgen::return_integer(result, 0);
    return 0;
}
