// flashgen 0.1.0 | d192v128-bf16-causal | sm80 | fwd | generated: do not edit
//
// out = dropout(softmax(mask(softmax_scale * Q @ K^T))) @ V, one pass over the keys with an online
// softmax; nothing of size seqlen_q x seqlen_k exists. A thread block owns kTileM queries of one
// head and walks the keys they may see in tiles of kTileN, last tile first.
#include "device/copy_async.cuh"
#include "device/product.cuh"
#include "device/view.cuh"
#include "host/attention_args.h"
#include "host/launch.cuh"
#define FLASHGEN_HOOK __device__ __forceinline__

namespace {

using namespace flashgen;

// ---- Variant ----
using Element = Bf16;
using Acc = float;  // of scores, sums and the program
constexpr int kHeadDim = 192;  // of Q and K
constexpr int kHeadDimV = 128;  // of V and out

// ---- Plan ----
constexpr int kTileM = 64;  // queries of a thread block
constexpr int kTileN = 64;  // keys of a step
constexpr int kNumWarps = 4;
constexpr int kNumThreads = 32 * kNumWarps;
constexpr int kMinBlocks = 2;  // resident on a multiprocessor
constexpr int kKeySplits = 2;  // warps that share queries; each scores its part of the keys
constexpr int kWarpsM = kNumWarps / kKeySplits;  // warps along the queries
constexpr int kAtomsM = kTileM / (16 * kWarpsM);  // m16 blocks of a warp
constexpr int kOwnN = kTileN / kKeySplits;  // keys of a step that a warp scores
constexpr int kBlocksN = kOwnN / 8;  // n8 blocks of its score tile
constexpr int kBlocksV = 128 / 16;  // 16-column blocks of an output tile
constexpr int kOwnBlocksV = (kBlocksV + kKeySplits - 1) / kKeySplits;  // a warp's share
constexpr int kRowThreads = 8;  // copy a row of K or V, several chunks each
constexpr float kMaxSlack = 8.0f;  // powers of 2 by which a maximum may be outgrown
using QTile = SmemTile<kTileM, 192>;
using KTile = SmemTile<kTileN, 192>;
using VTile = SmemTile<kTileN, 128>;
using OutTile = SmemTile<kTileM, 128>;  // takes Q's place at the end
using KCopy = TileCopy<KTile, kHeadDim, kNumThreads, kRowThreads>;
using VCopy = TileCopy<VTile, kHeadDimV, kNumThreads, kRowThreads>;
using PTile = SmemTile<kTileM, kTileN>;  // P, which changes hands between warps
// Shared memory, in bytes
constexpr int kQOffset = 0;  // 25600: Q, then the output
constexpr int kKOffset = 25600;  // 25600: one tile of K
constexpr int kVOffset = 51200;  // 17408: one tile of V
constexpr int kPOffset = 68608;  // 9216: P, to change hands
constexpr int kRowsOffset = 77824;  // 512: row maxima, then sums, of each part
constexpr int kSmemBytes = 78336;

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
[[maybe_unused]] FLASHGEN_HOOK Range full_keys(const Head& head, int q_begin, int q_end) {
    const int begin = 0;
    const int end = min(head.kv_len, q_begin + 1 + (head.kv_len - head.q_len));
    return {begin, max(begin, end)};
}

struct Params {
    View<const Element> q;  // [batch, seqlen_q, num_heads, kHeadDim]
    View<const Element> k;  // [batch, seqlen_k, num_heads_kv, kHeadDim]
    View<const Element> v;  // [batch, seqlen_k, num_heads_kv, kHeadDimV]
    View<Element> out;      // [batch, seqlen_q, num_heads, kHeadDimV]
    float* lse;             // [batch, num_heads, seqlen_q], natural log
    unsigned num_heads;
    unsigned group;  // num_heads / num_heads_kv
    unsigned num_tiles_m;
    int seqlen_q, seqlen_k;
    float softmax_scale;
    float softmax_scale_log2;  // softmax_scale * log2(e)
    int first_batch;  // of this launch
    ProgramArgs program;
};

// What a warp keeps of its queries: kAtomsM blocks of 16 rows, of which a lane holds two each.
using Output = float[kAtomsM][kOwnBlocksV][2][4];
struct RowStats {
    float row_max[kAtomsM][2];
    float row_sum[kAtomsM][2];  // this lane's columns only, until the end
};

// The queries that a thread block owns.
struct Position {
    int b, h;  // b from the launch's first
    int q_begin, num_rows;
    int q_len, kv_len;
    static constexpr int q_start = 0, kv_start = 0;
};

// Neighbouring blocks share a head, so its K and V stay in the L2 cache. The last queries come
// first: with a causal mask they have the most keys. Called again after the loop, since computing
// this twice is cheaper than holding it.
__device__ __forceinline__ Position locate(const Params& p) {
    const unsigned block = opaque(blockIdx.x);
    const unsigned tile = p.num_tiles_m - 1 - block % p.num_tiles_m;
    const unsigned head = block / p.num_tiles_m;
    Position at;
    at.b = head / p.num_heads;
    at.h = head % p.num_heads;
    at.q_begin = tile * kTileM;
    at.q_len = p.seqlen_q;
    at.kv_len = p.seqlen_k;
    at.num_rows = min(kTileM, at.q_len - at.q_begin);
    return at;
}

// The place of the block's first query in lse.
__device__ __forceinline__ int64_t lse_row(const Params& p, const Position& at) {
    return (int64_t{at.b} * p.num_heads + at.h) * p.seqlen_q + at.q_begin;
}

__device__ __forceinline__ Head head_of(const Params& p, const Position& at) {
    return make_head(p.program, p.first_batch + at.b, at.h, at.h / p.group, at.q_len, at.kv_len,
                     p.num_heads);
}

// Hides the keys that a query may not see, and those past the sequence's end.
__device__ __forceinline__ void apply_mask(float (&s)[kAtomsM][kBlocksN][4], const Params& p,
                                           const Head& head, int q_begin, int kv_begin, int warp,
                                           int lane) {
    // Opaque, or the compiler holds what depends on the rows from tile to tile, and spills it.
    const int q_first = opaque(q_begin) + warp * kAtomsM * 16 + fragment_row(lane, 0);
    Row rows[2 * kAtomsM];  // eight queries apart
#pragma unroll
    for (int i = 0; i < 2 * kAtomsM; ++i) rows[i] = make_row(p.program, head, q_first + i * 8);
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int kv_idx = kv_begin + n * 8 + fragment_col(lane, c);
            const Column column = make_column(p.program, head, kv_idx);
#pragma unroll
            for (int i = 0; i < 2 * kAtomsM; ++i) {
                const int q_idx = q_first + i * 8;
                const bool visible = kv_idx < head.kv_len &&
                                     mask_mod(p.program, head, rows[i], column, q_idx, kv_idx);
                if (!visible) s[i / 2][n][i % 2 * 2 + c] = -INFINITY;
            }
        }
    }
}

// Leaves the greatest score of each row of the warp where the warps with its other keys find it.
__device__ __forceinline__ void share_maxima(float* maxima, const float (&s)[kAtomsM][kBlocksN][4],
                                             int warp, int lane) {
#pragma unroll
    for (int m = 0; m < kAtomsM; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float row_max = -INFINITY;
#pragma unroll
            for (int n = 0; n < kBlocksN; ++n) {
                row_max = fmaxf(row_max, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
            }
            row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, 1));
            row_max = fmaxf(row_max, __shfl_xor_sync(0xffffffff, row_max, 2));
            const int row = (warp * kAtomsM + m) * 16 + fragment_row(lane, 2 * r);
            if (lane % 4 == 0) maxima[row] = row_max;
        }
    }
}

// One step of the online softmax: turns scores into probabilities relative to the new row maximum,
// and rescales what was summed relative to the old one. All rows' maxima come first, which hides
// their latencies, and one vote says whether any row is rescaled.
__device__ __forceinline__ void softmax_step(float (&s)[kAtomsM][kBlocksN][4], Output& out,
                                             RowStats& stats, const float* maxima, int warp,
                                             int lane, float scale_log2) {
    float shift[kAtomsM][2], rescale[kAtomsM][2];
    bool changed = false;
#pragma unroll
    for (int m = 0; m < kAtomsM; ++m) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float row_max = stats.row_max[m][r];
            const int row = (warp * kAtomsM + m) * 16 + fragment_row(lane, 2 * r);
#pragma unroll
            for (int i = 0; i < kKeySplits; ++i) row_max = fmaxf(row_max, maxima[i * kTileM + row]);
            // A maximum that is outgrown by little stays: P is at most 2^kMaxSlack then. Not so
            // from -inf, nor where the scale is negative.
            const float grown = (row_max - stats.row_max[m][r]) * scale_log2;
            if (fabsf(grown) <= kMaxSlack) row_max = stats.row_max[m][r];
            // A row that has seen no key yet: exp2(-inf - 0) = 0, where -inf - -inf is NaN. Maxima
            // are subtracted before they are scaled: an unchanged one rescales by exactly 1.
            const float safe_max = row_max == -INFINITY ? 0.0f : row_max;
            shift[m][r] = safe_max * scale_log2;
            rescale[m][r] = exp2_approx((stats.row_max[m][r] - safe_max) * scale_log2);
            stats.row_max[m][r] = row_max;
            stats.row_sum[m][r] *= rescale[m][r];
            changed |= rescale[m][r] != 1.0f;
        }
    }
    if (__any_sync(0xffffffff, changed)) {
#pragma unroll
        for (int i = 0; i < kAtomsM * kOwnBlocksV * 8; ++i) {
            const int m = i / (kOwnBlocksV * 8);
            out[m][i / 8 % kOwnBlocksV][i / 4 % 2][i % 4] *= rescale[m][i % 4 / 2];
        }
    }
#pragma unroll
    for (int m = 0; m < kAtomsM; ++m) {
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[m][n][i] = exp2_approx(s[m][n][i] * scale_log2 - shift[m][i / 2]);
                stats.row_sum[m][i / 2] += s[m][n][i];
            }
        }
    }
}

// out += P @ V  [kTileM, kHeadDimV], by the keys that the warp has scored; P goes from accumulators
// to operands without leaving registers
__device__ __forceinline__ void multiply_pv(Output& out, const float (&p)[kAtomsM][kBlocksN][4],
                                            SmemTile<kOwnN, VTile::kCols> v_smem, PTile p_smem,
                                            int warp, int part, int lane) {
#pragma unroll
    for (int k = 0; k < kOwnN; k += 16) {
        uint32_t a[kAtomsM][4];
#pragma unroll
        for (int m = 0; m < kAtomsM; ++m) {
            accumulator_to_a<Element>(a[m], p[m][k / 8], p[m][k / 8 + 1]);
            p_smem.store_a(a[m], (warp * kAtomsM + m) * 16, part * kOwnN + k, lane);
        }
        multiply_step<Element, kBlocksV, kKeySplits>(out, a, v_smem, k, part * kOwnBlocksV, lane);
    }
}

// Divides by the row sums, writes lse, and leaves the output tile in shared memory.
__device__ __forceinline__ void finish(const Output& out, const RowStats& stats, OutTile out_smem,
                                       const Position& at, const Params& p,
                                       float* sums,  // [kKeySplits][kTileM], of other warps' keys
                                       int warp, int part, int lane) {
    float* lse = p.lse + lse_row(p, at);
#pragma unroll
    for (int i = 0; i < 2 * kAtomsM; ++i) {
        float row_sum = stats.row_sum[i / 2][i % 2];
        row_sum += __shfl_xor_sync(0xffffffff, row_sum, 1);
        row_sum += __shfl_xor_sync(0xffffffff, row_sum, 2);
        const int row = warp * kAtomsM * 16 + i * 8 + lane / 4;
        if (lane % 4 == 0) sums[part * kTileM + row] = row_sum;
    }
    sync_warps<32 * kKeySplits>(1 + warp);  // the sums of these queries are complete
#pragma unroll
    for (int m = 0; m < kAtomsM; ++m) {
        const int row = (warp * kAtomsM + m) * 16 + lane / 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float row_sum = 0.0f;
#pragma unroll
            for (int i = 0; i < kKeySplits; ++i) row_sum += sums[i * kTileM + row + 8 * r];
            float row_max = stats.row_max[m][r] * p.softmax_scale;
            float scale = 1.0f;
            // A query without keys: output 0, lse -inf.
            const bool empty = row_sum == 0.0f;  // a NaN is not empty
            if (part == 0 && lane % 4 == 0 && row + 8 * r < at.num_rows) {
                lse[row + 8 * r] = empty ? -INFINITY : row_max + logf(row_sum);
            }
            const float inverse = empty ? 0.0f : scale / row_sum;
#pragma unroll
            for (int n = 0; n < 2 * kOwnBlocksV; ++n) {
                const int col = part * kOwnBlocksV * 16 + n * 8 + lane % 4 * 2;
                const float (&x)[4] = out[m][n / 2][n % 2];
                if (kKeySplits * kOwnBlocksV == kBlocksV || col < kBlocksV * 16) {
                    out_smem.store_pair(row + 8 * r, col,
                                        Element::pack(x[2 * r] * inverse, x[2 * r + 1] * inverse));
                }
            }
        }
    }
}

__global__ void __launch_bounds__(kNumThreads, kMinBlocks)
    fwd_d192v128_bf16_causal_sm80(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) uint8_t smem[];
    const QTile q_smem{smem_address(smem) + kQOffset};
    const KTile k_smem{smem_address(smem) + kKOffset};
    const VTile v_smem{smem_address(smem) + kVOffset};
    const int warp = threadIdx.x / 32 / kKeySplits;  // along the queries
    const int part = threadIdx.x / 32 % kKeySplits;  // of a step's keys and of the output's columns
    const int lane = threadIdx.x % 32;
    const PTile p_smem{smem_address(smem) + kPOffset};
    float* rows_smem = reinterpret_cast<float*>(smem + kRowsOffset);  // [kKeySplits][kTileM]
    const Position at = locate(p);
    const Head head = head_of(p, at);
    const Range visible = visible_keys(head, at.q_begin, at.q_begin + at.num_rows);
    const int kv_first = visible.begin / kTileN * kTileN;
    const Range full_tiles = full_keys(head, at.q_begin, at.q_begin + at.num_rows);
    const int kv_last = (visible.end + kTileN - 1) / kTileN * kTileN - kTileN;
    // The tiles' addresses as this thread copies from them, last tile first.
    const Element* k_source =
        KCopy::Share::source(p.k.row(at.b, at.h / p.group, at.kv_start + kv_last), p.k.row_stride);
    const Element* v_source =
        VCopy::Share::source(p.v.row(at.b, at.h / p.group, at.kv_start + kv_last), p.v.row_stride);
    KCopy k_copy;
    VCopy v_copy;
    const auto load_k = [&](int kv_begin) {
        k_copy.start(k_smem, k_source, p.k.row_stride, at.kv_len - kv_begin);
        k_source -= kTileN * p.k.row_stride;
        commit_copies();
    };
    // Values that no query of the head sees stay out: a NaN there would outlive P = 0.
    const Range seen = visible_keys(head, 0, at.q_len);
    const auto load_v = [&](int kv_begin) {
        v_copy.start(v_smem, v_source, p.v.row_stride, seen.end - kv_begin);
        v_source -= kTileN * p.v.row_stride;
        commit_copies();
    };
    q_smem.clear_padding<kHeadDim, kNumThreads>();
    k_smem.clear_padding<kHeadDim, kNumThreads>();
    v_smem.clear_padding<kHeadDimV, kNumThreads>();
    copy_rows<kHeadDim, kNumThreads>(q_smem, p.q.row(at.b, at.h, at.q_start + at.q_begin),
                                     p.q.row_stride, at.num_rows);
    if (kv_last >= kv_first) load_k(kv_last);

    Output out = {};
    RowStats stats = {};
#pragma unroll
    for (int m = 0; m < kAtomsM; ++m) stats.row_max[m][0] = stats.row_max[m][1] = -INFINITY;

    for (int kv_begin = kv_last; kv_begin >= kv_first; kv_begin -= kTileN) {
        k_copy.finish(k_smem);
        wait_for_copies();
        __syncthreads();  // this tile's K has landed; everyone is done with the last tile's V
        load_v(kv_begin);

        float s[kAtomsM][kBlocksN][4] = {};
        // Opaque, or the compiler holds the addresses of all that the parts share, and spills.
        const int thread = opaque(threadIdx.x);
        const int warp = thread / 32 / kKeySplits;
        const int part = thread / 32 % kKeySplits;
        const int lane = thread % 32;
        const int own_begin = kv_begin + part * kOwnN;
        multiply_rows<Element>(s, q_smem, warp * kAtomsM * 16, k_smem.rows<kOwnN>(part * kOwnN),
                               lane);  // S = Q @ K^T
        const bool full = kv_begin >= full_tiles.begin && kv_begin + kTileN <= full_tiles.end;
        if (!full) apply_mask(s, p, head, at.q_begin, own_begin, warp, lane);
        share_maxima(rows_smem + part * kTileM, s, warp, lane);
        v_copy.finish(v_smem);
        wait_for_copies();
        __syncthreads();  // this tile's V has landed; everyone is done with its K
        if (kv_begin > kv_first) load_k(kv_begin - kTileN);
        softmax_step(s, out, stats, rows_smem, warp, lane, p.softmax_scale_log2);
        const auto own_v = v_smem.rows<kOwnN>(part * kOwnN);
        multiply_pv(out, s, own_v, p_smem, warp, part, lane);
        sync_warps<32 * kKeySplits>(1 + warp);  // P of these queries is complete
#pragma unroll 1
        for (int i = 1; i < kKeySplits; ++i) {
            const int first_key = (part + i) % kKeySplits * kOwnN;
            multiply_stored<Element, kBlocksV, kKeySplits>(out, p_smem, warp * kAtomsM * 16,
                                                           first_key, v_smem.rows<kOwnN>(first_key),
                                                           part * kOwnBlocksV, lane);
        }
    }

    // Q, where there was no tile to wait for, has landed; everyone is done with it, and the output
    // takes its place.
    wait_for_all_copies();
    __syncthreads();
    const OutTile out_smem{q_smem.base};
    const Position end = locate(p);
    finish(out, stats, out_smem, end, p, rows_smem, warp, part, lane);
    __syncthreads();  // rows of the tile come from several warps where a store crosses them
    out_smem.store<kHeadDimV, kNumThreads>(p.out.row(end.b, end.h, end.q_start + end.q_begin),
                                           p.out.row_stride, end.num_rows);
}

// ---- Host ----
Params make_params(const AttentionArgs& a, int64_t batch, int64_t num_tiles_m) {
    Params p = {};
    p.q = view_of<const Element>(a.q, batch);
    p.k = view_of<const Element>(a.k, batch);
    p.v = view_of<const Element>(a.v, batch);
    p.out = view_of<Element>(a.out, batch);
    p.lse = a.lse.as<float>() + batch * a.num_heads * a.seqlen_q;
    p.num_heads = static_cast<unsigned>(a.num_heads);
    p.group = static_cast<unsigned>(a.num_heads / a.num_heads_kv);
    p.num_tiles_m = static_cast<unsigned>(num_tiles_m);
    p.seqlen_q = static_cast<int>(a.seqlen_q);
    p.seqlen_k = static_cast<int>(a.seqlen_k);
    p.softmax_scale = static_cast<float>(a.softmax_scale);
    p.softmax_scale_log2 = log2_scale(a.softmax_scale);
    p.first_batch = static_cast<int>(batch);
    return p;
}

constexpr auto kKernel = &fwd_d192v128_bf16_causal_sm80;

bool run(Arguments& in, const AttentionArgs& a, const ProgramArgs& program) {
    check_alignment(in, "q", a.q);
    check_alignment(in, "k", a.k);
    check_alignment(in, "v", a.v);
    check_alignment(in, "out", a.out);
    if (!in.ok()) return false;
    const int64_t num_tiles_m = (a.seqlen_q + kTileM - 1) / kTileM;
    const int64_t blocks_per_batch = num_tiles_m * a.num_heads;
    if (a.batch == 0 || blocks_per_batch == 0) return true;
    const DeviceGuard guard(in, a.device.device_id);
    if (!in.ok()) return false;
    // A grid has one long dimension; more blocks than it holds go in several launches.
    const int64_t batch_step = max(int64_t{1}, kMaxGrid / blocks_per_batch);
    for (int64_t batch = 0; batch < a.batch; batch += batch_step) {
        Params p = make_params(a, batch, num_tiles_m);
        const int64_t blocks = min(batch_step, a.batch - batch) * blocks_per_batch;
        p.program = program;
        const Grid grid = {blocks, kNumThreads, kSmemBytes};
        if (!launch_kernel<kKernel>(in, a.device, grid, p)) return false;
    }
    return true;
}

// A forward needs no workspace.
int64_t workspace_bytes(const WorkspaceSizes&) { return 0; }

}  // namespace

// ---- Entry points: packed arguments of the tvm-ffi C ABI ----
namespace {

constexpr AttentionTypes kTypes = {
    kDLCUDA,
    {kDLBfloat, 16, 1},  // q, k, v, out and their gradients
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
