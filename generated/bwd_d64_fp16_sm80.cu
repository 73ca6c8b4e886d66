// flashgen 0.1.0 | d64-fp16 | sm80 | bwd | generated: do not edit
//
// With S = softmax_scale * Q @ K^T, P = exp(S - lse) where visible, D = dropout's 0 or scale:
//   dV = (D * P)^T @ dO,   dP = D * (dO @ V^T),   dS = P * (dP - delta),
//   dQ = softmax_scale * dS @ K,   dK = softmax_scale * dS^T @ Q,
//   delta = rowsum(dO * out) - dlse.
// P is computed anew from Q, K and lse; nothing of size seqlen_q x seqlen_k exists. A thread block
// owns kTileN keys of one K/V head and walks the queries that may see them, of all heads that share
// it. A warp computes the transposed tiles S^T and dS^T of its own keys, so both feed dV and dK
// from registers.
#include "device/copy_async.cuh"
#include "device/product.cuh"
#include "device/view.cuh"
#include "host/attention_args.h"
#include "host/launch.cuh"
#define FLASHGEN_HOOK __device__ __forceinline__

namespace {

using namespace flashgen;

// ---- Variant ----
using Element = Fp16;
using Acc = float;  // of scores, sums and the program
constexpr int kHeadDim = 64;  // of Q and K
constexpr int kHeadDimV = 64;  // of V and out

// ---- Plan ----
constexpr int kTileM = 64;  // queries of a step
constexpr int kTileN = 128;  // keys of a thread block
constexpr int kNumStages = 1;  // tiles of Q and dO in shared memory
constexpr bool kLoadsAhead = false;  // the next step's tiles during this one, not at its end
constexpr int kNumWarps = 4;
constexpr int kNumThreads = 32 * kNumWarps;
constexpr int kMinBlocks = 2;  // resident on a multiprocessor
constexpr int kKeyAtoms = 2;  // blocks of 16 keys of a warp
constexpr int kHeadSplits = 1;  // warps that share keys; each owns columns of dK and dV
constexpr int kOwnM = kTileM / kHeadSplits;  // queries of a step that a warp scores,
constexpr int kScoreSplits = 2;  // in this many parts,
constexpr int kScoreM = kOwnM / kScoreSplits;  // of so many
constexpr int kBlocksM = kScoreM / 8;  // n8 blocks of a score tile
constexpr int kBlocksQk = 64 / 16;  // 16-column blocks of dQ and dK
constexpr int kBlocksV = 64 / 16;  // of dV
constexpr int kOwnBlocksQk = (kBlocksQk + kHeadSplits - 1) / kHeadSplits;  // a warp's share
constexpr int kOwnBlocksV = (kBlocksV + kHeadSplits - 1) / kHeadSplits;

using QTile = SmemTile<kTileM, 64>;
using KTile = SmemTile<kTileN, 64>;
using VTile = SmemTile<kTileN, 64>;
using DoutTile = SmemTile<kTileM, 64>;
using QCopy = TileCopy<QTile, kHeadDim, kNumThreads>;
using DoutCopy = TileCopy<DoutTile, kHeadDimV, kNumThreads>;
using ScoreTile = SmemTile<kTileN, kTileM>;  // dS^T

// Shared memory, in bytes
constexpr int kKOffset = 0;  // 18432: K, then dK
constexpr int kVOffset = 18432;  // 18432: V, then dV
constexpr int kQOffset = 36864;  // 9216: 1 tiles of Q
constexpr int kDoutOffset = 46080;  // 9216: 1 tiles of dO
constexpr int kLseOffset = 55296;  // 256: 1 tiles of lse
constexpr int kDeltaOffset = 55552;  // 256: 1 tiles of delta
constexpr int kDsOffset = 55808;  // 18432: dS, transposed
constexpr int kSmemBytes = 74240;

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

struct Params {
    View<const Element> q;  // [batch, seqlen_q, num_heads, kHeadDim]
    View<const Element> k;  // [batch, seqlen_k, num_heads_kv, kHeadDim]
    View<const Element> v;  // [batch, seqlen_k, num_heads_kv, kHeadDimV]
    View<const Element> out;  // [batch, seqlen_q, num_heads, kHeadDimV]
    View<const Element> dout;  // like out
    View<Element> dq, dk, dv;  // like q, k, v
    const float* lse;  // [batch, num_heads, seqlen_q], natural log
    const float* dlse;  // like lse, or null
    float* delta;  // [batch, num_heads, num_tiles_m * kTileM]
    float* dq_accum;  // [batch, num_heads, num_tiles_m] tiles, see dq_block
    unsigned num_heads, num_heads_kv;
    unsigned group;  // num_heads / num_heads_kv
    unsigned num_tiles_m, num_tiles_n;
    int seqlen_q, seqlen_k;
    float softmax_scale;
    float softmax_scale_log2;  // softmax_scale * log2(e)
    int first_batch;  // of this launch
    ProgramArgs program;
};

constexpr float kLog2EFloat = static_cast<float>(kLog2E);

// One element of the batch, counted from the launch's first.
struct Sequence {
    int b;
    int q_len, kv_len;
    static constexpr int q_start = 0, kv_start = 0;

    __device__ __forceinline__ int batch() const { return b; }  // of its rows in the tensors

    // Itself; what is computed from it is not held in registers, see ptx.cuh.
    __device__ __forceinline__ Sequence opaque() const {
        return {flashgen::opaque(b), q_len, kv_len};
    }
};

// Element of lse and dlse: query `row` of head h.
__device__ __forceinline__ int64_t stats_row(const Params& p, const Sequence& s, int h, int row) {
    const int64_t head = int64_t{s.b} * p.num_heads + h;
    return head * p.seqlen_q + row;
}

// Tile of delta and dq_accum: the `tile`-th of head h's queries.
__device__ __forceinline__ int64_t stats_tile(const Params& p, const Sequence& s, int h, int tile) {
    const int64_t head = int64_t{s.b} * p.num_heads + h;
    return head * p.num_tiles_m + tile;
}

// What the program sees of a query head.
__device__ __forceinline__ Head head_of(const Params& p, const Sequence& s, int h) {
    return make_head(p.program, p.first_batch + s.b, h, h / p.group, p.seqlen_q, p.seqlen_k,
                     p.num_heads);
}

// A tile of one head's queries, as a block of the kernels beside the main one owns it.
struct QueryTile {
    Sequence sequence;
    int h;
    int tile;  // of the sequence
};

// The tile of this block, where a head has `num_tiles` of kTile queries.
template <int kTile>
__device__ __forceinline__ QueryTile locate_queries(const Params& p, unsigned num_tiles) {
    const int tile = blockIdx.x % num_tiles;
    const int h = blockIdx.x / num_tiles % p.num_heads;
    const int b = blockIdx.x / num_tiles / p.num_heads;
    return {{b, p.seqlen_q, p.seqlen_k}, h, tile};
}

// ---- delta ----
constexpr int kDeltaThreads = 128;
constexpr int kLanesPerRow = 8;

// delta = rowsum(dO * out) - dlse, and zeroes for what dQ is summed into. A block owns kTileM
// queries of one head.
__global__ void __launch_bounds__(kDeltaThreads, 1)
    bwd_d64_fp16_sm80_delta(const __grid_constant__ Params p) {
    const QueryTile own = locate_queries<kTileM>(p, p.num_tiles_m);
    const Sequence sequence = own.sequence;
    const int64_t tile = stats_tile(p, sequence, own.h, own.tile);
    const int lane = threadIdx.x % kLanesPerRow;
#pragma unroll 1
    for (int i = threadIdx.x / kLanesPerRow; i < kTileM; i += kDeltaThreads / kLanesPerRow) {
        const int row = own.tile * kTileM + i;
        float sum = 0.0f;
        if (row < sequence.q_len) {
            const Element* out = p.out.row(sequence.batch(), own.h, sequence.q_start + row);
            const Element* dout = p.dout.row(sequence.batch(), own.h, sequence.q_start + row);
#pragma unroll
            for (int col = lane * 8; col < kHeadDimV; col += kLanesPerRow * 8) {
                const uint4 x = *reinterpret_cast<const uint4*>(out + col);
                const uint4 y = *reinterpret_cast<const uint4*>(dout + col);
                sum += dot_pair<Element>(x.x, y.x) + dot_pair<Element>(x.y, y.y);
                sum += dot_pair<Element>(x.z, y.z) + dot_pair<Element>(x.w, y.w);
            }
        }
#pragma unroll
        for (int step = kLanesPerRow / 2; step > 0; step /= 2) {
            sum += __shfl_xor_sync(0xffffffff, sum, step);
        }
        if (lane == 0) {
            if (row < sequence.q_len) {
                const int64_t index = stats_row(p, sequence, own.h, row);
                if (p.dlse != nullptr) sum -= p.dlse[index];
                // A row without keys has no gradient, whatever comes in: 0 * NaN would be one.
                const float lse = p.lse[index];
                if (lse == -INFINITY) sum = 0.0f;
            }
            p.delta[tile * kTileM + i] = sum;
        }
    }
    constexpr int kTileElems = kTileM * kBlocksQk * 16;
    float4* dq_tile = reinterpret_cast<float4*>(p.dq_accum + tile * kTileElems);
    for (int i = threadIdx.x; i < kTileElems / 4; i += kDeltaThreads) dq_tile[i] = {0, 0, 0, 0};
}

// ---- dQ: summed in fp32 by all thread blocks, then converted ----
constexpr int kDqAtoms = 2;  // blocks of 16 queries of a warp
constexpr int kDqWarpsM = kTileM / 16 / kDqAtoms;  // the other warps split the columns
constexpr int kDqWarpsN = kNumWarps / kDqWarpsM;
constexpr int kDqBlocks = (kBlocksQk + kDqWarpsN - 1) / kDqWarpsN;  // 16-column blocks of a warp

// Where block (row_block, column_block) of 16 x 16 lies in a tile of dq_accum. Within it, a lane's
// four values of an accumulator are neighbours, so that a warp adds 512 contiguous bytes at once.
__device__ __forceinline__ int dq_block(int row_block, int column_block) {
    return (column_block * (kTileM / 16) + row_block) * 256;
}

// dQ += dS @ K  [kTileM, kHeadDim], summed over the thread blocks in global memory
__device__ __forceinline__ void add_dq(float* dq_tile, ScoreTile ds_smem, KTile k_smem, int warp,
                                       int lane) {
    const int row_block = warp % kDqWarpsM * kDqAtoms;
    const int first_block = warp / kDqWarpsM * kDqBlocks;
    float dq[kDqAtoms][kDqBlocks][2][4] = {};
    multiply_transposed<Element, kBlocksQk, kDqWarpsN>(dq, ds_smem, row_block * 16, k_smem,
                                                       first_block, lane);
#pragma unroll
    for (int n = 0; n < kDqBlocks; ++n) {
        if (kDqWarpsN * kDqBlocks == kBlocksQk || first_block + n < kBlocksQk) {
#pragma unroll
            for (int m = 0; m < kDqAtoms; ++m) {
                float* block = dq_tile + dq_block(row_block + m, first_block + n) + lane * 4;
                red_add_4(block, dq[m][n][0]);
                red_add_4(block + 128, dq[m][n][1]);
            }
        }
    }
}

constexpr int kConvertThreads = 128;
using DqTile = SmemTile<kTileM, kBlocksQk * 16>;

// dq = softmax_scale * dq_accum. A block owns kTileM queries of one head.
__global__ void __launch_bounds__(kConvertThreads)
    bwd_d64_fp16_sm80_convert(const __grid_constant__ Params p) {
    __shared__ __align__(128) uint8_t smem[DqTile::kBytes];
    const DqTile dq_smem{smem_address(smem)};
    const QueryTile own = locate_queries<kTileM>(p, p.num_tiles_m);
    const Sequence sequence = own.sequence;
    const float4* dq_tile = reinterpret_cast<const float4*>(
        p.dq_accum + stats_tile(p, sequence, own.h, own.tile) * (kTileM * kBlocksQk * 16));
    for (int i = threadIdx.x; i < kTileM * kBlocksQk * 4; i += kConvertThreads) {
        const int lane = i % 32;
        const int row_block = i / 64 % (kTileM / 16);
        const int col = i / 64 / (kTileM / 16) * 16 + i / 32 % 2 * 8 + fragment_col(lane, 0);
        const int row = row_block * 16 + fragment_row(lane, 0);
        const float4 v = dq_tile[i];
        dq_smem.store_pair(row, col, Element::pack(v.x * p.softmax_scale, v.y * p.softmax_scale));
        dq_smem.store_pair(row + 8, col,
                           Element::pack(v.z * p.softmax_scale, v.w * p.softmax_scale));
    }
    __syncthreads();  // the tile is complete
    const int q_begin = own.tile * kTileM;
    dq_smem.store<kHeadDim, kConvertThreads>(
        p.dq.row(sequence.batch(), own.h, sequence.q_start + q_begin), p.dq.row_stride,
        sequence.q_len - q_begin);
}

// Turns S^T into P^T [16 keys, kScoreM]; `masked` where some key may be hidden from some query.
__device__ __forceinline__ void probabilities(float (&s)[kBlocksM][4], const float* lse_smem,
                                              bool masked, int q_begin, int kv_first,
                                              const Head& head, const Params& p, int lane) {
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float lse_log2 = lse_smem[m * 8 + fragment_col(lane, i)] * kLog2EFloat;
            s[m][i] = exp2_approx(s[m][i] * p.softmax_scale_log2 - lse_log2);
        }
    }
    if (!masked) return;
    lane = opaque(lane);  // or the compiler holds what the keys decide from step to step
    // After the exponential: a row that sees no key has lse = -inf, and exp2(s + inf) is no number.
#pragma unroll
    for (int m = 0; m < kBlocksM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int q_idx = q_begin + m * 8 + fragment_col(lane, i);
            const int kv_idx = kv_first + fragment_row(lane, i);
            const Row row = make_row(p.program, head, q_idx);
            const Column column = make_column(p.program, head, kv_idx);
            const bool visible =
                kv_idx < head.kv_len && mask_mod(p.program, head, row, column, q_idx, kv_idx);
            if (!visible) s[m][i] = 0.0f;
        }
    }
}

// The keys that a thread block owns.
struct Position {
    Sequence sequence;
    int h_kv;
    int kv_begin, num_keys;
};

// The first keys come first: with a causal mask they have the most queries. Called again after the
// loop, since computing this twice is cheaper than holding it.
__device__ __forceinline__ Position locate(const Params& p, unsigned number) {
    const unsigned block = opaque(number);
    const unsigned head = block / p.num_tiles_n;
    Position at;
    at.sequence = {static_cast<int>(head / p.num_heads_kv), p.seqlen_q, p.seqlen_k};
    at.h_kv = head % p.num_heads_kv;
    at.kv_begin = block % p.num_tiles_n * kTileN;
    at.num_keys = min(kTileN, p.seqlen_k - at.kv_begin);
    return at;
}

__global__ void __launch_bounds__(kNumThreads, kMinBlocks)
    bwd_d64_fp16_sm80(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) uint8_t smem[];
    const uint32_t smem_base = smem_address(smem);
    const KTile k_smem{smem_base + kKOffset};
    const VTile v_smem{smem_base + kVOffset};
    const float* lse_smem = reinterpret_cast<const float*>(smem + kLseOffset);
    const float* delta_smem = reinterpret_cast<const float*>(smem + kDeltaOffset);
    const ScoreTile ds_smem{smem_base + kDsOffset};
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int key_block = warp / kHeadSplits * kKeyAtoms;  // its first 16 keys
    const int part = warp % kHeadSplits;  // of the queries, and of the columns of dK and dV

    const Position own = locate(p, blockIdx.x);
    const Sequence sequence = own.sequence;
    const int h_kv = own.h_kv;
    const int kv_begin = own.kv_begin;
    const int num_keys = own.num_keys;
    const Head any_head = head_of(p, sequence, h_kv * p.group);  // of which the band doesn't depend
    const Range visible = visible_queries(any_head, kv_begin, kv_begin + num_keys);
    const Range full = full_queries(any_head, kv_begin, kv_begin + num_keys);
    const int first_tile = visible.begin / kTileM;
    const bool any_visible = visible.begin < visible.end;
    QCopy q_copy;
    DoutCopy dout_copy;
    FloatCopy lse_copy, delta_copy;  // of the first kTileM threads
    // Starts copying what a step reads: Q, dO and their row statistics.
    const auto load_step = [&](int stage, int h, int tile) {
        const Sequence here = sequence.opaque();
        const int q_begin = tile * kTileM;
        const int num_rows = here.q_len - q_begin;
        const QTile q_smem{smem_base + kQOffset + stage * QTile::kBytes};
        const DoutTile dout_smem{smem_base + kDoutOffset + stage * DoutTile::kBytes};
        const Element* q = p.q.row(here.batch(), h, here.q_start + q_begin);
        q_copy.start(q_smem, QCopy::Share::source(q, p.q.row_stride), p.q.row_stride, num_rows);
        const Element* dout = p.dout.row(here.batch(), h, here.q_start + q_begin);
        dout_copy.start(dout_smem, DoutCopy::Share::source(dout, p.dout.row_stride),
                        p.dout.row_stride, num_rows);
        if (threadIdx.x < kTileM) {
            const int row = opaque(threadIdx.x);
            const uint32_t offset = (stage * kTileM + row) * sizeof(float);
            lse_copy.start(smem_base + kLseOffset + offset,
                           p.lse + stats_row(p, here, h, q_begin + row), row < num_rows);
            delta_copy.start(smem_base + kDeltaOffset + offset,
                             p.delta + stats_tile(p, here, h, tile) * kTileM + row, true);
        }
        commit_copies();
    };
    // Ends what load_step started for `stage`; a barrier shows it to the others.
    const auto finish_load = [&](int stage) {
        q_copy.finish(QTile{smem_base + kQOffset + stage * QTile::kBytes});
        dout_copy.finish(DoutTile{smem_base + kDoutOffset + stage * DoutTile::kBytes});
        if (threadIdx.x < kTileM) {
            const uint32_t offset = (stage * kTileM + threadIdx.x) * sizeof(float);
            lse_copy.finish(smem_base + kLseOffset + offset);
            delta_copy.finish(smem_base + kDeltaOffset + offset);
        }
        wait_for_copies();
    };

    k_smem.clear_padding<kHeadDim, kNumThreads>();
    v_smem.clear_padding<kHeadDimV, kNumThreads>();
#pragma unroll
    for (int stage = 0; stage < kNumStages; ++stage) {
        QTile{smem_base + kQOffset + stage * QTile::kBytes}.clear_padding<kHeadDim, kNumThreads>();
        DoutTile{smem_base + kDoutOffset + stage * DoutTile::kBytes}
            .clear_padding<kHeadDimV, kNumThreads>();
    }
    copy_rows<kHeadDim, kNumThreads>(k_smem,
                                     p.k.row(sequence.batch(), h_kv, sequence.kv_start + kv_begin),
                                     p.k.row_stride, num_keys);
    copy_rows<kHeadDimV, kNumThreads>(v_smem,
                                      p.v.row(sequence.batch(), h_kv, sequence.kv_start + kv_begin),
                                      p.v.row_stride, num_keys);
    int h = h_kv * p.group;
    int tile = first_tile;
    if (any_visible) load_step(0, h, tile);
    float dk[kKeyAtoms][kOwnBlocksQk][2][4] = {};
    float dv[kKeyAtoms][kOwnBlocksV][2][4] = {};
    // Steps: the tiles of one query head, then those of the next.
    for (int stage = 0; any_visible && h / p.group == opaque(h_kv);
         stage = (stage + 1) % kNumStages) {
        const int q_begin = tile * kTileM;
        const QTile q_smem{smem_base + kQOffset + stage * QTile::kBytes};
        const DoutTile dout_smem{smem_base + kDoutOffset + stage * DoutTile::kBytes};
        const Head head = head_of(p, sequence, h);
        const bool next_head = (tile + 1) * kTileM >= visible.end;  // this was its last tile
        const int next_h = next_head ? h + 1 : h;
        const int next_tile = next_head ? first_tile : tile + 1;
        finish_load(stage);
        __syncthreads();  // this step's tiles have landed; everyone is done with the last step
        if (kLoadsAhead && next_h / p.group == opaque(h_kv)) {
            load_step((stage + 1) % kNumStages, next_h, next_tile);
        }
        const bool masked = kv_begin + kTileN > sequence.kv_len || q_begin < full.begin ||
                            min(q_begin + kTileM, sequence.q_len) > full.end;
        // A warp scores its keys with its share of the queries; kScoreM of them at once.
#pragma unroll 1
        for (int split = 0; split < kScoreSplits; ++split) {
            const int first_q = part * kOwnM + split * kScoreM;
            const auto q_rows = q_smem.rows<kScoreM>(first_q);
            const auto dout_rows = dout_smem.rows<kScoreM>(first_q);
            const int stats = stage * kTileM + first_q;  // of lse and delta

            // S^T = K @ Q^T, then P^T  [16 * kKeyAtoms keys, kScoreM]
            float s[kKeyAtoms][kBlocksM][4] = {};
            multiply_rows<Element>(s, k_smem, key_block * 16, q_rows, lane);
#pragma unroll
            for (int m = 0; m < kKeyAtoms; ++m) {
                const int kv_first = kv_begin + (key_block + m) * 16;
                probabilities(s[m], lse_smem + stats, masked, q_begin + first_q, kv_first, head, p,
                              lane);
            }

            // dV += P^T @ dO
            multiply_accumulated<Element, kBlocksV, kHeadSplits>(dv, s, dout_rows,
                                                                 part * kOwnBlocksV, lane);
            // dP^T = D * (V @ dO^T), then dS^T = P^T * (dP^T - delta)
            float ds[kKeyAtoms][kBlocksM][4] = {};
            multiply_rows<Element>(ds, v_smem, key_block * 16, dout_rows, lane);
#pragma unroll
            for (int m = 0; m < kKeyAtoms; ++m) {
#pragma unroll
                for (int n = 0; n < kBlocksM; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const float delta = delta_smem[stats + n * 8 + fragment_col(lane, i)];
                        ds[m][n][i] = s[m][n][i] * (ds[m][n][i] - delta);
                    }
                }
                store_tile<Element>(ds[m], ds_smem, (key_block + m) * 16, first_q, lane);
            }

            // dK += dS^T @ Q
            multiply_accumulated<Element, kBlocksQk, kHeadSplits>(dk, ds, q_rows,
                                                                  part * kOwnBlocksQk, lane);
        }

        __syncthreads();  // dS is complete; everyone is done with this step's tiles
        if (!kLoadsAhead && next_h / p.group == opaque(h_kv)) load_step(0, next_h, next_tile);
        add_dq(p.dq_accum + stats_tile(p, sequence.opaque(), h, tile) * (kTileM * kBlocksQk * 16),
               ds_smem, k_smem, warp, lane);
        h = next_h;
        tile = next_tile;
    }

    wait_for_all_copies();  // K and V, where there was no step to wait for
    __syncthreads();  // everyone is done with K and V, whose places dK and dV take
    store_blocks<Element, kBlocksQk, kHeadSplits>(dk, p.softmax_scale, k_smem, key_block * 16,
                                                  part * kOwnBlocksQk, lane);
    const float dv_scale = 1.0f;
    store_blocks<Element, kBlocksV, kHeadSplits>(dv, dv_scale, v_smem, key_block * 16,
                                                 part * kOwnBlocksV, lane);
    __syncthreads();  // rows of a tile come from several warps where a store crosses them
    const Position at = locate(p, blockIdx.x);
    const int64_t row = at.sequence.kv_start + at.kv_begin;
    k_smem.store<kHeadDim, kNumThreads>(p.dk.row(at.sequence.batch(), at.h_kv, row),
                                        p.dk.row_stride, at.num_keys);
    v_smem.store<kHeadDimV, kNumThreads>(p.dv.row(at.sequence.batch(), at.h_kv, row),
                                         p.dv.row_stride, at.num_keys);
}

// ---- Host ----
struct ProgramGradients {};

// Tiles of one head that a launch counts: of an element of the batch, or of all packed sequences.
int64_t num_tiles(const WorkspaceSizes& s, int64_t seqlen, int tile) {
    static_cast<void>(s);
    return (seqlen + tile - 1) / tile;
}

// Elements of the batch, as the tensors count them.
int64_t num_batches(const WorkspaceSizes& s) { return s.batch; }

// Where the parts of the workspace begin, in bytes.
struct Workspace {
    int64_t delta;  // fp32, kTileM for each tile of queries
    int64_t dq_accum;  // fp32, a padded tile of dQ for each tile of queries
    int64_t bytes;  // of all
};

Workspace workspace_of(const WorkspaceSizes& s) {
    Workspace w = {};
    // Each part begins at a multiple of 16 bytes, behind the last one.
    const auto place = [&w](int64_t bytes) {
        const int64_t offset = w.bytes;
        w.bytes += (bytes + 15) / 16 * 16;
        return offset;
    };
    const int64_t tiles = num_batches(s) * s.num_heads * num_tiles(s, s.seqlen_q, kTileM);
    w.delta = place(tiles * kTileM * int64_t{sizeof(float)});
    w.dq_accum = place(tiles * kTileM * (kBlocksQk * 16) * int64_t{sizeof(float)});
    return w;
}

// What one call brings.
struct Call {
    const AttentionArgs& attention;
    const ProgramArgs& program;
    const ProgramGradients& gradients;
};

// The launch that starts at batch `batch`.
Params make_params(const Call& call, int64_t batch) {
    const AttentionArgs& a = call.attention;
    const WorkspaceSizes sizes = workspace_sizes(a);
    const Workspace offsets = workspace_of(sizes);
    uint8_t* workspace = a.workspace.as<uint8_t>();
    Params p = {};
    p.q = view_of<const Element>(a.q, batch);
    p.k = view_of<const Element>(a.k, batch);
    p.v = view_of<const Element>(a.v, batch);
    p.out = view_of<const Element>(a.out, batch);
    p.dout = view_of<const Element>(a.dout, batch);
    p.dq = view_of<Element>(a.dq, batch);
    p.dk = view_of<Element>(a.dk, batch);
    p.dv = view_of<Element>(a.dv, batch);
    const int64_t first_row = batch * a.num_heads * a.seqlen_q;
    p.lse = a.lse.as<const float>() + first_row;
    p.dlse = a.dlse.ndim != 0 ? a.dlse.as<const float>() + first_row : nullptr;
    const int64_t tiles_m = num_tiles(sizes, a.seqlen_q, kTileM);
    const int64_t first_tile = batch * a.num_heads * tiles_m;
    p.delta = reinterpret_cast<float*>(workspace + offsets.delta) + first_tile * kTileM;
    p.dq_accum = reinterpret_cast<float*>(workspace + offsets.dq_accum) +
                 first_tile * (kTileM * kBlocksQk * 16);
    p.num_heads = static_cast<unsigned>(a.num_heads);
    p.num_heads_kv = static_cast<unsigned>(a.num_heads_kv);
    p.group = static_cast<unsigned>(a.num_heads / a.num_heads_kv);
    p.num_tiles_m = static_cast<unsigned>(tiles_m);
    p.num_tiles_n = static_cast<unsigned>(num_tiles(sizes, a.seqlen_k, kTileN));
    p.seqlen_q = static_cast<int>(a.seqlen_q);
    p.seqlen_k = static_cast<int>(a.seqlen_k);
    p.softmax_scale = static_cast<float>(a.softmax_scale);
    p.softmax_scale_log2 = log2_scale(a.softmax_scale);
    p.first_batch = static_cast<int>(batch);
    p.program = call.program;
    return p;
}

bool check_tensors(Arguments& in, const AttentionArgs& a) {
    check_alignment(in, "q", a.q);
    check_alignment(in, "k", a.k);
    check_alignment(in, "v", a.v);
    check_alignment(in, "out", a.out);
    check_alignment(in, "dout", a.dout);
    check_alignment(in, "dq", a.dq);
    check_alignment(in, "dk", a.dk);
    check_alignment(in, "dv", a.dv);
    return check_workspace(in, a, workspace_of(workspace_sizes(a)).bytes);
}

constexpr auto kDeltaKernel = &bwd_d64_fp16_sm80_delta;
constexpr auto kMainKernel = &bwd_d64_fp16_sm80;
constexpr auto kConvertKernel = &bwd_d64_fp16_sm80_convert;
// Every kernel over the whole batch.
bool launch_kernels(Arguments& in, const Call& call) {
    const AttentionArgs& a = call.attention;
    const WorkspaceSizes sizes = workspace_sizes(a);
    // Of one element of the batch.
    const int64_t heads = a.num_heads, heads_kv = a.num_heads_kv, repeats = a.batch;
    const int64_t tiles_m = num_tiles(sizes, a.seqlen_q, kTileM) * heads;
    const int64_t tiles_n = num_tiles(sizes, a.seqlen_k, kTileN) * heads_kv;
    const int64_t blocks = max(max(tiles_m, tiles_n), int64_t{1});
    // A grid has one long dimension; more blocks than it holds go in several launches.
    const int64_t step = max(int64_t{1}, kMaxGrid / blocks);
    for (int64_t first = 0; first < repeats; first += step) {
        const int64_t count = min(step, repeats - first);
        Params p = make_params(call, first);
        const Grid delta_grid = {count * tiles_m, kDeltaThreads, 0};
        if (!launch_kernel<kDeltaKernel>(in, a.device, delta_grid, p)) return false;
        const Grid grid = {count * tiles_n, kNumThreads, kSmemBytes};
        if (!launch_kernel<kMainKernel>(in, a.device, grid, p)) return false;
        const Grid convert_grid = {count * tiles_m, kConvertThreads, 0};
        if (!launch_kernel<kConvertKernel>(in, a.device, convert_grid, p)) return false;
    }
    return true;
}

bool run(Arguments& in, const AttentionArgs& a, const ProgramArgs& program,
         const ProgramGradients& gradients) {
    if (!check_tensors(in, a)) return false;
    if (a.num_heads == 0) return true;
    Call call = {a, program, gradients};
    const DeviceGuard guard(in, a.device.device_id);
    if (!in.ok()) return false;
    if (!launch_kernels(in, call)) return false;
    return true;
}

int64_t workspace_bytes(const WorkspaceSizes& sizes) { return workspace_of(sizes).bytes; }

}  // namespace

// ---- Entry points: packed arguments of the tvm-ffi C ABI ----
namespace {

constexpr AttentionTypes kTypes = {
    kDLCUDA,
    {kDLFloat, 16, 1},  // q, k, v, out and their gradients
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
