// flashgen 0.1.0 | d128-bf16-causal | sm90 | bwd | generated: do not edit
//
// With S = softmax_scale * Q @ K^T, P = exp(S - lse) where visible, D = dropout's 0 or scale:
//   dV = (D * P)^T @ dO,   dP = D * (dO @ V^T),   dS = P * (dP - delta),
//   dQ = softmax_scale * dS @ K,   dK = softmax_scale * dS^T @ Q,
//   delta = rowsum(dO * out) - dlse.
// P is computed anew from Q, K and lse; nothing of size seqlen_q x seqlen_k exists. A thread block
// owns kTileN keys of one K/V head and walks the queries that may see them, of all heads that share
// it. A warp brings tiles. Two warpgroups own 64 keys each: they compute the transposed tiles S^T
// and dS^T, which feed dV and dK from registers, and share dS^T through shared memory for dQ.
#include "device/element.cuh"
#include "device/mbarrier.cuh"
#include "device/quad.cuh"
#include "device/swizzled_tile.cuh"
#include "device/tensor_map.cuh"
#include "device/tile.cuh"
#include "device/wgmma.cuh"
#include "device/tile_walk.cuh"
#include "device/turns.cuh"
#include "device/view.cuh"
#include "host/attention_args.h"
#include "host/launch_chained.cuh"
#define FLASHGEN_HOOK __device__ __forceinline__

namespace {

using namespace flashgen;

// ---- Variant ----
using Element = Bf16;
using Acc = float;  // of scores, sums and the program
constexpr int kHeadDim = 128;  // of Q and K
constexpr int kHeadDimV = 128;  // of V and out

// ---- Plan ----
constexpr int kTileM = 64;  // queries of a step
constexpr int kTileN = 128;  // keys of a thread block
constexpr int kNumStages = 2;  // tiles of Q and dO in flight
constexpr int kNumWarps = 8;  // that compute
constexpr int kConsumers = 32 * kNumWarps;  // threads of them
constexpr int kNumThreads = kConsumers + 128;
constexpr int kProducerRegisters = 40;  // of a thread
constexpr int kConsumerRegisters = 232;
constexpr int kScoreM = 64;  // queries of a step that a warpgroup scores
constexpr int kBlocksM = kScoreM / 8;  // n8 blocks of a score tile
constexpr int kDepthQk = (kHeadDim + 15) / 16;  // products that a score takes
constexpr int kDepthV = (kHeadDimV + 15) / 16;
constexpr int kDqCols = 64;  // of dQ that a warpgroup computes
constexpr int kDqColsBytes = 16384;  // from those of one warpgroup to the other's
constexpr int kBlocksQk = 128 / 16;  // 16-column blocks of dQ
constexpr bool kSplitCols = true;  // the warpgroups share dQ by columns

using QTile = SwizzledTile<kTileM, kHeadDim>;
using KTile = SwizzledTile<kTileN, kHeadDim>;
using VTile = SwizzledTile<kTileN, kHeadDimV>;
using DoutTile = SwizzledTile<kTileM, kHeadDimV>;
using DsTile = SwizzledTile<kTileM, kTileN>;  // dS
using DkTile = SmemTile<kTileN, kDepthQk * 16>;
using DvTile = SmemTile<kTileN, kDepthV * 16>;

// Shared memory, in bytes
constexpr int kKOffset = 0;  // 32768: K; in the end dK, then dV
constexpr int kVOffset = 32768;  // 32768: V
constexpr int kQOffset = 65536;  // 32768: 2 tiles of Q
constexpr int kDoutOffset = 98304;  // 32768: 2 tiles of dO
constexpr int kDsOffset = 131072;  // 32768: dS of two steps
constexpr int kLseOffset = 163840;  // 512: 2 tiles of lse
constexpr int kDeltaOffset = 164352;  // 512: 2 tiles of delta
constexpr int kStepsOffset = 164864;  // 24: what each step is
constexpr int kWorkOffset = 164896;  // 8: the tile of keys
constexpr int kBarriersOffset = 164912;  // 56: mbarriers
constexpr int kSmemBytes = 164968;
constexpr int kBarriers = 7;
constexpr int kPollNs = 1000;  // between two questions whether a head is done
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

// Queries that some key of [kv_begin, kv_end) is visible to.
FLASHGEN_HOOK Range visible_queries(const Head& head, int kv_begin, int kv_end) {
    const int begin = max(0, kv_begin - (head.kv_len - head.q_len));
    const int end = head.q_len;
    return {begin, max(begin, end)};
}

// Queries that see every key of [kv_begin, kv_end).
[[maybe_unused]] FLASHGEN_HOOK Range full_queries(const Head& head, int kv_begin, int kv_end) {
    const int begin = max(0, kv_end - 1 - (head.kv_len - head.q_len));
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
    unsigned section;  // K/V heads whose thread blocks are dealt out together
    unsigned num_sequence_heads;  // K/V heads of all elements of this launch's batch
    unsigned num_work;  // tiles of keys of all K/V heads
    unsigned* next_work;  // how many of them were taken
    unsigned num_conversions;  // tiles of queries of all heads
    unsigned* next_conversion;  // how many of them were taken
    int* tiles_done;  // [batch, num_heads_kv]: tiles of keys
    ProgramArgs program;
};

// Of the main kernel.
struct MainParams {
    Params p;
    TensorMap q, k, v, dout;  // of whole tensors; kTileM or kTileN rows a box
};

constexpr CUtensorMapDataType kTensorMapType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

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
    bwd_d128_bf16_causal_sm90_delta(const __grid_constant__ Params p) {
    start_next_kernel();
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
    if (blockIdx.x == 0 && threadIdx.x == 0) *p.next_work = 0;
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) *p.next_conversion = 0;
        if (own.tile == 0 && own.h % p.group == 0) {
            p.tiles_done[sequence.b * p.num_heads_kv + own.h / p.group] = 0;
        }
    }
    constexpr int kTileElems = kTileM * kBlocksQk * 16;
    float4* dq_tile = reinterpret_cast<float4*>(p.dq_accum + tile * kTileElems);
    for (int i = threadIdx.x; i < kTileElems / 4; i += kDeltaThreads) dq_tile[i] = {0, 0, 0, 0};
}

// ---- dQ: summed in fp32 by all thread blocks, then converted ----
// Where block (row_block, column_block) of 16 x 16 lies in a tile of dq_accum. Within it, a lane's
// four values of an accumulator are neighbours, so that a warp adds 512 contiguous bytes at once.
__device__ __forceinline__ int dq_block(int row_block, int column_block) {
    return (column_block * (kTileM / 16) + row_block) * 256;
}

// The keys that a thread block owns.
struct Position {
    Sequence sequence;
    int h_kv;
    int kv_begin, num_keys;
};

// The first keys come first, of all heads of a section: with a causal mask they have the most
// queries, and the last thread blocks to run are short. Called again after the loop, since
// computing this twice is cheaper than holding it.
__device__ __forceinline__ Position locate(const Params& p, unsigned number) {
    const unsigned block = opaque(number);
    const unsigned first = block / (p.section * p.num_tiles_n) * p.section;  // head of the section
    const unsigned heads = min(p.section, p.num_sequence_heads - first);
    const unsigned place = block - first * p.num_tiles_n;
    const unsigned head = first + place % heads;
    Position at;
    at.sequence = {static_cast<int>(head / p.num_heads_kv), p.seqlen_q, p.seqlen_k};
    at.h_kv = head % p.num_heads_kv;
    at.kv_begin = place / heads * kTileN;
    at.num_keys = min(kTileN, p.seqlen_k - at.kv_begin);
    return at;
}

enum class TileClass { kEmpty, kPartial, kFull };

// Walks the tiles of queries that some key of a thread block is visible to, of one query head after
// another.
struct QueryWalk {
    Position own;
    int h;
    TileWalk<TileClass, 1> tiles;

    // Starts with the first query head of the keys `position`; whether there is any step.
    __device__ __forceinline__ bool start(const Params& p, const Position& position, int lane) {
        own = position;
        h = own.h_kv * p.group - 1;
        return next_head(p, lane);
    }

    // Goes to the next step; false where there is none.
    __device__ __forceinline__ bool next(const Params& p, int lane) {
        const Head head = head_of(p, own.sequence, h);
        tiles.next(lane, [&](int tile) { return classify(p, head, tile); });
        return tiles.any() || next_head(p, lane);
    }

  private:
    __device__ __forceinline__ bool next_head(const Params& p, int lane) {
        do {
            ++h;
            if (h / p.group != own.h_kv) return false;
            const Head head = head_of(p, own.sequence, h);
            const Range visible = visible_queries(head, own.kv_begin, own.kv_begin + own.num_keys);
            const int first = visible.begin / kTileM;
            const int last = visible.begin < visible.end ? (visible.end - 1) / kTileM : first - 1;
            tiles.start(first, last, lane, [&](int tile) { return classify(p, head, tile); });
        } while (!tiles.any());
        return true;
    }

    __device__ __forceinline__ TileClass classify(const Params& p, const Head& head,
                                                  int tile) const {
        const int q_first = tile * kTileM;
        const int q_end = min(q_first + kTileM, own.sequence.q_len);
        const int kv_end = own.kv_begin + own.num_keys;
        const Range full = full_queries(head, own.kv_begin, kv_end);
        return q_first >= full.begin && q_end <= full.end ? TileClass::kFull : TileClass::kPartial;
    }
};

// What a thread block works on: the keys of one tile and K/V head.
struct Work {
    unsigned number;  // as locate takes it; kNoWork at the end
    bool has_steps;
};

constexpr unsigned kNoWork = ~0u;

// What the consumers are told of a step.
struct Step {
    int h;  // query head
    int q_begin;
    bool masked;  // some key may be hidden from some query, or one of them doesn't exist
    bool last;
};

// The thread block's shared memory.
struct Shared {
    uint8_t* smem;
    uint32_t base;  // its address, 1024-byte aligned

    __device__ __forceinline__ KTile k() const { return {base + kKOffset}; }
    __device__ __forceinline__ VTile v() const { return {base + kVOffset}; }
    __device__ __forceinline__ QTile q(int stage) const {
        return {base + kQOffset + stage * QTile::kBytes};
    }
    __device__ __forceinline__ DoutTile dout(int stage) const {
        return {base + kDoutOffset + stage * DoutTile::kBytes};
    }
    __device__ __forceinline__ DsTile ds(int buffer) const {
        return {base + kDsOffset + buffer * DsTile::kBytes};
    }
    // Row statistics of a stage.
    __device__ __forceinline__ float* lse(int stage) const {
        return reinterpret_cast<float*>(smem + kLseOffset) + stage * kTileM;
    }
    __device__ __forceinline__ float* delta(int stage) const {
        return reinterpret_cast<float*>(smem + kDeltaOffset) + stage * kTileM;
    }
    __device__ __forceinline__ Step& step(int stage) const {
        return reinterpret_cast<Step*>(smem + kStepsOffset)[stage];
    }
    __device__ __forceinline__ Work& work() const {
        return *reinterpret_cast<Work*>(smem + kWorkOffset);
    }
    __device__ __forceinline__ Barrier keys_full() const { return barrier(0); }
    __device__ __forceinline__ Barrier ds_full() const { return barrier(1); }
    __device__ __forceinline__ Barrier full(int stage) const { return barrier(2 + stage); }
    __device__ __forceinline__ Barrier empty(int stage) const {
        return barrier(2 + kNumStages + stage);
    }
    __device__ __forceinline__ Barrier keys_empty() const { return barrier(kBarriers - 1); }
    __device__ __forceinline__ void init_barriers() const {
        keys_full().init(1);
        keys_empty().init(kNumWarps + 1);  // all that read what the work is
        ds_full().init(kNumWarps);
        for (int stage = 0; stage < kNumStages; ++stage) {
            full(stage).init(1 + 32);  // the bulk copies, and each lane's copies of statistics
            empty(stage).init(kNumWarps);
        }
    }

  private:
    __device__ __forceinline__ Barrier barrier(int i) const {
        return {base + kBarriersOffset + i * Barrier::kBytes};
    }
};

// A warp brings K and V of a tile, then Q, dO and their row statistics for one step after another.
__device__ __forceinline__ void bring_tile(const MainParams& main, const Shared& shared,
                                           Ring<kNumStages>& ring, unsigned number, Ring<1>& keys) {
    const Params& p = main.p;
    const int lane = threadIdx.x % 32;
    const Position own = locate(p, number);
    const int batch = p.first_batch + own.sequence.b;
    const int row = own.sequence.kv_start + own.kv_begin;
    QueryWalk walk;
    bool more = walk.start(p, own, lane);
    shared.keys_empty().wait(keys.parity ^ 1);
    keys.next();
    if (lane == 0) {
        shared.work() = {number, more};
        shared.keys_full().arrive_expecting(KTile::kBytes + VTile::kBytes);
        shared.k().load(main.k, shared.keys_full(), row, own.h_kv, batch);
        shared.v().load(main.v, shared.keys_full(), row, own.h_kv, batch);
    }
    while (more) {
        const int h = walk.h;
        const int tile = walk.tiles.tile;
        const int q_begin = tile * kTileM;
        const bool masked = !walk.tiles.full() || own.kv_begin + kTileN > own.sequence.kv_len ||
                            q_begin + kTileM > own.sequence.q_len;
        more = walk.next(p, lane);
        const Barrier full = shared.full(ring.stage);
        shared.empty(ring.stage).wait(ring.parity ^ 1);
        if (lane == 0) {
            shared.step(ring.stage) = {h, q_begin, masked, !more};
            full.arrive_expecting(QTile::kBytes + DoutTile::kBytes);
            shared.q(ring.stage).load(main.q, full, own.sequence.q_start + q_begin, h, batch);
            shared.dout(ring.stage).load(main.dout, full, own.sequence.q_start + q_begin, h, batch);
        }
        const float* lse = p.lse + stats_row(p, own.sequence, h, q_begin);
        const float* delta = p.delta + stats_tile(p, own.sequence, h, tile) * kTileM;
#pragma unroll
        for (int row = lane; row < kTileM; row += 32) {
            cp_async_4(smem_address(shared.lse(ring.stage) + row), lse + row,
                       q_begin + row < own.sequence.q_len);
            cp_async_4(smem_address(shared.delta(ring.stage) + row), delta + row, true);
        }
        full.arrive_after_copies();
        ring.next();
    }
}

// The next tile of keys, or kNoWork; whole warps ask. Called once all steps of the last one are
// under way, so that the answer comes before they are done. No tile is a thread block's own from
// the start: where not all of them run at once, those that do must not wait for the others.
__device__ __forceinline__ unsigned take_work(const Params& p) {
    wait_for_previous_kernel();  // which resets the counter, and makes delta
    unsigned taken = 0;
    if (threadIdx.x % 32 == 0) taken = atomicAdd(p.next_work, 1u);
    taken = __shfl_sync(0xffffffff, taken, 0);
    return taken < p.num_work ? taken : kNoWork;
}

// What the warp that loads does from start to end.
__device__ __forceinline__ void produce(const MainParams& main, const Shared& shared) {
    Ring<kNumStages> ring;
    Ring<1> keys;
    while (true) {
        const unsigned number = take_work(main.p);
        if (number == kNoWork) break;
        bring_tile(main, shared, ring, number, keys);
    }
    shared.keys_empty().wait(keys.parity ^ 1);
    if (threadIdx.x % 32 == 0) {
        shared.work().number = kNoWork;
        shared.keys_full().arrive();
    }
}

// Warps that would wait convert dQ, one K/V head's queries after another's, once all tiles of that
// head's keys are done: what they read is still in the L2 cache.

// dq = softmax_scale * dq_accum, of a tile of queries of head h.
__device__ __forceinline__ void convert_tile(const Params& p, const Sequence& sequence, int h,
                                             int tile, int lane) {
    const float* tile_sums =
        p.dq_accum + stats_tile(p, sequence, h, tile) * (kTileM * kBlocksQk * 16) + lane * 4;
    const int q_begin = tile * kTileM;
    const int num_rows = sequence.q_len - q_begin;
    Element* rows = p.dq.row(sequence.batch(), h, q_begin);
#pragma unroll 1
    for (int row_block = 0; row_block < kTileM / 16; ++row_block) {
        const int row = row_block * 16 + fragment_row(lane, 0);
#pragma unroll 1
        for (int block = 0; block < kBlocksQk; block += 2) {
            float sums[4][4] = {};  // all on their way before the first is used
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (block + i / 2 >= kBlocksQk) continue;
                ld_sums_4(sums[i], tile_sums + dq_block(row_block, block + i / 2) + i % 2 * 128);
            }
            uint32_t upper[4], lower[4];  // of rows 8 apart
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const auto& v = sums[i];
                upper[i] = Element::pack(v[0] * p.softmax_scale, v[1] * p.softmax_scale);
                lower[i] = Element::pack(v[2] * p.softmax_scale, v[3] * p.softmax_scale);
            }
            transpose_quad(upper, lane);
            transpose_quad(lower, lane);
            const int col = block * 16 + lane % 4 * 8;
            if (col >= kHeadDim) continue;
            Element* place = rows + row * p.dq.row_stride + col;
            if (row < num_rows) {
                *reinterpret_cast<uint4*>(place) = {upper[0], upper[1], upper[2], upper[3]};
            }
            if (row + 8 < num_rows) {
                *reinterpret_cast<uint4*>(place + 8 * p.dq.row_stride) = {lower[0], lower[1],
                                                                          lower[2], lower[3]};
            }
        }
    }
}

// Converts tiles of queries until all are taken.
__device__ __forceinline__ void convert_tiles(const Params& p) {
    const int lane = threadIdx.x % 32;
    const unsigned tiles = p.group * p.num_tiles_m;  // of a K/V head
    while (true) {
        unsigned number = 0;
        if (lane == 0) number = atomicAdd(p.next_conversion, 1u);
        number = __shfl_sync(0xffffffff, number, 0);
        if (number >= p.num_conversions) return;
        const unsigned head = number / tiles;  // of all K/V heads, as they are dealt out
        if (lane == 0) {
            while (ld_acquire(p.tiles_done + head) != static_cast<int>(p.num_tiles_n)) {
                sleep_ns<kPollNs>();
            }
        }
        __syncwarp();
        const Sequence sequence = {static_cast<int>(head / p.num_heads_kv), p.seqlen_q, p.seqlen_k};
        const int h = head % p.num_heads_kv * p.group + number % tiles / p.num_tiles_m;
        convert_tile(p, sequence, h, number % p.num_tiles_m, lane);
    }
}

// What the warp does that tells the others, of all thread blocks, which tiles of keys are done.
__device__ __forceinline__ void count_tiles(const Params& p, const Shared& shared) {
    const int lane = threadIdx.x % 32;
    Ring<1> keys;
    while (true) {
        shared.keys_full().wait(keys.parity);
        const unsigned number = shared.work().number;
        if (number == kNoWork) return;
        __syncwarp();
        if (lane == 0) shared.keys_empty().arrive();
        shared.keys_empty().wait(keys.parity);  // everything has been added to dQ
        const Position own = locate(p, number);
        const int head = own.sequence.b * p.num_heads_kv + own.h_kv;
        if (lane == 0) add_release(p.tiles_done + head, 1);
        keys.next();
    }
}

// ---- Products of a warpgroup ----
// acc[64, 8 * blocks] += A[64, 16] @ B[16, 8 * blocks], or = where !accumulate, without waiting.
// Warp w of the four has rows 16 * w up; each 16 x 8 block lies in its lanes as one of mma.m16n8.
// clang-format off
// S^T and dP^T
__device__ __forceinline__ void wgmma_scores(float (&acc)[8][4], uint64_t a, uint64_t b,
                                                bool accumulate = true) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, "
        "%32, %33, p, 1, 1, 0, 0;\n}\n"
        :
          "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]),
          "+f"(acc[1][0]), "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3]),
          "+f"(acc[2][0]), "+f"(acc[2][1]), "+f"(acc[2][2]), "+f"(acc[2][3]),
          "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]), "+f"(acc[3][3]),
          "+f"(acc[4][0]), "+f"(acc[4][1]), "+f"(acc[4][2]), "+f"(acc[4][3]),
          "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]),
          "+f"(acc[6][0]), "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]),
          "+f"(acc[7][0]), "+f"(acc[7][1]), "+f"(acc[7][2]), "+f"(acc[7][3])
        : "l"(a), "l"(b), "r"(int{accumulate}));
}

// dV
__device__ __forceinline__ void wgmma_dv(float (&acc)[16][4], const uint32_t (&a)[4], uint64_t b,
                                                bool accumulate = true) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
        :
          "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]),
          "+f"(acc[1][0]), "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3]),
          "+f"(acc[2][0]), "+f"(acc[2][1]), "+f"(acc[2][2]), "+f"(acc[2][3]),
          "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]), "+f"(acc[3][3]),
          "+f"(acc[4][0]), "+f"(acc[4][1]), "+f"(acc[4][2]), "+f"(acc[4][3]),
          "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]),
          "+f"(acc[6][0]), "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]),
          "+f"(acc[7][0]), "+f"(acc[7][1]), "+f"(acc[7][2]), "+f"(acc[7][3]),
          "+f"(acc[8][0]), "+f"(acc[8][1]), "+f"(acc[8][2]), "+f"(acc[8][3]),
          "+f"(acc[9][0]), "+f"(acc[9][1]), "+f"(acc[9][2]), "+f"(acc[9][3]),
          "+f"(acc[10][0]), "+f"(acc[10][1]), "+f"(acc[10][2]), "+f"(acc[10][3]),
          "+f"(acc[11][0]), "+f"(acc[11][1]), "+f"(acc[11][2]), "+f"(acc[11][3]),
          "+f"(acc[12][0]), "+f"(acc[12][1]), "+f"(acc[12][2]), "+f"(acc[12][3]),
          "+f"(acc[13][0]), "+f"(acc[13][1]), "+f"(acc[13][2]), "+f"(acc[13][3]),
          "+f"(acc[14][0]), "+f"(acc[14][1]), "+f"(acc[14][2]), "+f"(acc[14][3]),
          "+f"(acc[15][0]), "+f"(acc[15][1]), "+f"(acc[15][2]), "+f"(acc[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{accumulate}));
}

// dK
__device__ __forceinline__ void wgmma_dk(float (&acc)[16][4], const uint32_t (&a)[4], uint64_t b,
                                                bool accumulate = true) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
        :
          "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]),
          "+f"(acc[1][0]), "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3]),
          "+f"(acc[2][0]), "+f"(acc[2][1]), "+f"(acc[2][2]), "+f"(acc[2][3]),
          "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]), "+f"(acc[3][3]),
          "+f"(acc[4][0]), "+f"(acc[4][1]), "+f"(acc[4][2]), "+f"(acc[4][3]),
          "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]),
          "+f"(acc[6][0]), "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]),
          "+f"(acc[7][0]), "+f"(acc[7][1]), "+f"(acc[7][2]), "+f"(acc[7][3]),
          "+f"(acc[8][0]), "+f"(acc[8][1]), "+f"(acc[8][2]), "+f"(acc[8][3]),
          "+f"(acc[9][0]), "+f"(acc[9][1]), "+f"(acc[9][2]), "+f"(acc[9][3]),
          "+f"(acc[10][0]), "+f"(acc[10][1]), "+f"(acc[10][2]), "+f"(acc[10][3]),
          "+f"(acc[11][0]), "+f"(acc[11][1]), "+f"(acc[11][2]), "+f"(acc[11][3]),
          "+f"(acc[12][0]), "+f"(acc[12][1]), "+f"(acc[12][2]), "+f"(acc[12][3]),
          "+f"(acc[13][0]), "+f"(acc[13][1]), "+f"(acc[13][2]), "+f"(acc[13][3]),
          "+f"(acc[14][0]), "+f"(acc[14][1]), "+f"(acc[14][2]), "+f"(acc[14][3]),
          "+f"(acc[15][0]), "+f"(acc[15][1]), "+f"(acc[15][2]), "+f"(acc[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{accumulate}));
}

// dQ
__device__ __forceinline__ void wgmma_dq(float (&acc)[8][4], uint64_t a, uint64_t b,
                                                bool accumulate = true) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, "
        "%32, %33, p, 1, 1, 0, 1;\n}\n"
        :
          "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]),
          "+f"(acc[1][0]), "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3]),
          "+f"(acc[2][0]), "+f"(acc[2][1]), "+f"(acc[2][2]), "+f"(acc[2][3]),
          "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]), "+f"(acc[3][3]),
          "+f"(acc[4][0]), "+f"(acc[4][1]), "+f"(acc[4][2]), "+f"(acc[4][3]),
          "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]),
          "+f"(acc[6][0]), "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]),
          "+f"(acc[7][0]), "+f"(acc[7][1]), "+f"(acc[7][2]), "+f"(acc[7][3])
        : "l"(a), "l"(b), "r"(int{accumulate}));
}

// clang-format on
// A named barrier of all consumers; 0 is that of __syncthreads().
[[maybe_unused]] constexpr int kConsumerBarrier = 1;

// S^T or dS^T as the left operands of dV and dK: the layouts agree.
using KeyOperands = uint32_t[kScoreM / 16][4];
__device__ __forceinline__ void pack_keys(KeyOperands& a, const float (&x)[kBlocksM][4]) {
#pragma unroll
    for (int i = 0; i < kScoreM / 16; ++i) accumulator_to_a<Element>(a[i], x[2 * i], x[2 * i + 1]);
}

// acc = A @ B^T  [64, kScoreM] over kDepth * 16 columns, without waiting
template <int kDepth, typename ATile, typename BTile>
__device__ __forceinline__ void multiply_keys(float (&acc)[kBlocksM][4], ATile a, BTile b) {
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
        wgmma_scores(acc, a.depth_columns(16 * i), b.depth_columns(16 * i), i > 0);
    }
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

// dQ += dS @ K  [kTileM, kHeadDim], of which a warpgroup computes its half, in global memory
__device__ __forceinline__ void add_dq(float* dq_tile, DsTile ds, KTile k, int warp, int lane) {
    const int group = warp / 4;
    float dq[kDqCols / 8][4];
    const DsTile rows = {ds.base + (kSplitCols ? 0 : group * 64 * 128)};
    const KTile columns = {k.base + (kSplitCols ? group * kDqColsBytes : 0)};
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTileN / 16; ++i) {
        wgmma_dq(dq, rows.depth_columns(16 * i), columns.depth_rows(16 * i), i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin_accumulators(dq);
    const int row_block = kSplitCols ? warp % 4 : warp;
    const int column_block = kSplitCols ? group * (kDqCols / 16) : 0;
#pragma unroll
    for (int n = 0; n < kDqCols / 8; ++n) {
        red_add_4(dq_tile + dq_block(row_block, column_block + n / 2) + n % 2 * 128 + lane * 4,
                  dq[n]);
    }
}

// Writes a warp's 16 rows, scaled: `rows` are those of its tile of keys, `num_rows` of which exist.
template <int kCols, int kBlocks>
__device__ __forceinline__ void write_keys(const float (&acc)[kBlocks][4], float scale,
                                           Element* rows, int64_t row_stride, int num_rows,
                                           int warp, int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = warp * 16 + fragment_row(lane, 2 * r);
        Element* cols = rows + row * row_stride + lane % 4 * 8;
#pragma unroll
        for (int n = 0; n < kBlocks; n += 4) {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool exists = n + i < kBlocks;
                words[i] = exists ? Element::pack(acc[exists ? n + i : 0][2 * r] * scale,
                                                  acc[exists ? n + i : 0][2 * r + 1] * scale)
                                  : 0;
            }
            transpose_quad(words, lane);
            if (row < num_rows && n * 8 + lane % 4 * 8 < kCols) {
                *reinterpret_cast<uint4*>(cols + n * 8) = {words[0], words[1], words[2], words[3]};
            }
        }
    }
}

// Where a warp that computes stands in what is handed round.
struct Rings {
    Ring<kNumStages> steps;
    Ring<2> ds;  // its stage has the place of dS, its parity is that of the one barrier
};

// dK and dV of a tile of keys, and their part of dQ.
__device__ __forceinline__ void sum_tile(const Params& p, const Shared& shared, Rings& rings,
                                         const Work& work, int warp) {
    const int lane = threadIdx.x % 32;
    const int group_row = warp / 4 * 64;  // this warpgroup's first key of the block
    const KTile k_own = {shared.k().base + group_row * 128};
    const VTile v_own = {shared.v().base + group_row * 128};
    const auto release = [&](Barrier barrier) {
        __syncwarp();
        if (lane == 0) barrier.arrive();
    };
    float dk[kDepthQk * 2][4] = {};
    float dv[kDepthV * 2][4] = {};
    pin_accumulators(dk);
    pin_accumulators(dv);
    const Position own = locate(p, work.number);
    const int kv_first = own.kv_begin + warp * 16;
    Ring<kNumStages>& ring = rings.steps;
    Ring<2>& ds_ring = rings.ds;
    bool more = work.has_steps;
    while (more) {
        shared.full(ring.stage).wait(ring.parity);
        const Step step = shared.step(ring.stage);
        const QTile q = shared.q(ring.stage);
        const DoutTile dout = shared.dout(ring.stage);
        const Head head = head_of(p, own.sequence, step.h);

        // S^T = K @ Q^T and V @ dO^T  [64 keys, kTileM]
        float s[kBlocksM][4], ds[kBlocksM][4];
        wgmma_fence();
        multiply_keys<kDepthQk>(s, k_own, q);
        multiply_keys<kDepthV>(ds, v_own, dout);
        wgmma_commit();
        wgmma_wait<0>();
        pin_accumulators(s);
        pin_accumulators(ds);
        KeyOperands p_keys, ds_keys;
        probabilities(s, shared.lse(ring.stage), step.masked, step.q_begin, kv_first, head, p,
                      lane);
        pack_keys(p_keys, s);
        // dS^T = P^T * (dP^T - delta)
        const float* delta_smem = shared.delta(ring.stage);
#pragma unroll
        for (int m = 0; m < kBlocksM; ++m) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                ds[m][i] = s[m][i] * (ds[m][i] - delta_smem[m * 8 + fragment_col(lane, i)]);
            }
        }
        pack_keys(ds_keys, ds);
        const DsTile ds_tile = shared.ds(ds_ring.stage);
#pragma unroll
        for (int i = 0; i < kTileM / 16; ++i) {
            ds_tile.store_a_trans(ds_keys[i], 16 * i, warp * 16, lane);
        }
        fence_async_proxy();
        release(shared.ds_full());

        // dV += (D * P)^T @ dO
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kTileM / 16; ++i) wgmma_dv(dv, p_keys[i], dout.depth_rows(16 * i));
        wgmma_commit();
        wgmma_wait<0>();
        pin_accumulators(dv);

        // Where dS is double-buffered, this also says that everyone is done with the other place.
        shared.ds_full().wait(ds_ring.stage);
        add_dq(p.dq_accum + stats_tile(p, own.sequence.opaque(), step.h, step.q_begin / kTileM) *
                                (kTileM * kBlocksQk * 16),
               ds_tile, shared.k(), warp, lane);
        ds_ring.next();

        // dK += dS^T @ Q
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < kTileM / 16; ++i) wgmma_dk(dk, ds_keys[i], q.depth_rows(16 * i));
        wgmma_commit();
        wgmma_wait<0>();
        pin_accumulators(dk);
        more = !step.last;
        release(shared.empty(ring.stage));
        ring.next();
    }

    const Position at = locate(p, shared.work().number);
    release(shared.keys_empty());
    const float dv_scale = 1.0f;
    const int64_t row = at.sequence.kv_start + at.kv_begin;
    write_keys<kHeadDim>(dk, p.softmax_scale, p.dk.row(at.sequence.batch(), at.h_kv, row),
                         p.dk.row_stride, at.num_keys, warp, lane);
    write_keys<kHeadDimV>(dv, dv_scale, p.dv.row(at.sequence.batch(), at.h_kv, row),
                          p.dv.row_stride, at.num_keys, warp, lane);
}

// What a warp that computes does from start to end.
__device__ __forceinline__ void consume(const Params& p, const Shared& shared, int warp) {
    Rings rings;
    wait_for_previous_kernel();  // which makes the zeroes that dQ is added to
    Ring<1> keys;
    while (true) {
        shared.keys_full().wait(keys.parity);
        const Work work = shared.work();
        if (work.number == kNoWork) break;
        sum_tile(p, shared, rings, work, warp);
        keys.next();
    }
}

__global__ void __launch_bounds__(kNumThreads, 1)
    bwd_d128_bf16_causal_sm90(const __grid_constant__ MainParams main) {
    extern __shared__ __align__(1024) uint8_t smem[];
    const Shared shared{smem, smem_address(smem)};
    start_next_kernel();
    if (threadIdx.x == 0) {
        shared.init_barriers();
        fence_barrier_init();
    }
    __syncthreads();
    // The same in all lanes, in a way that the compiler sees.
    const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 32), 0);
    if (warp >= kNumWarps) {
        lower_registers<kProducerRegisters>();
        if (warp == kNumWarps) produce(main, shared);
        if (warp != kNumWarps) {
            wait_for_previous_kernel();  // which resets the counters
            if (warp == kNumWarps + 1) count_tiles(main.p, shared);
            convert_tiles(main.p);
        }
    } else {
        raise_registers<kConsumerRegisters>();
        consume(main.p, shared, warp);
        convert_tiles(main.p);
    }
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
    int64_t next_work;  // 32 bits
    int64_t next_conversion;  // 32 bits
    int64_t tiles_done;  // 32 bits for each K/V head
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
    w.next_work = place(int64_t{sizeof(unsigned)});
    w.next_conversion = place(int64_t{sizeof(unsigned)});
    w.tiles_done = place(num_batches(s) * s.num_heads_kv * int64_t{sizeof(int)});
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
    p.next_work = reinterpret_cast<unsigned*>(workspace + offsets.next_work);
    p.next_conversion = reinterpret_cast<unsigned*>(workspace + offsets.next_conversion);
    p.tiles_done = reinterpret_cast<int*>(workspace + offsets.tiles_done);
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

// K/V heads of `num_heads_kv` whose thread blocks are dealt out together: as many as leave what
// they read and sum up in the L2 cache, and no more than even out the ends of short loops. Q, dO
// and dQ's sums are what every thread block of a head goes through.
unsigned section_heads(const AttentionArgs& a, int64_t num_heads_kv) {
    constexpr int64_t kSectionHeads = 32;
    constexpr int64_t kSectionBytes = 32 << 20;
    constexpr int64_t kQueryBytes = 2 * kHeadDim + 2 * kHeadDimV + 4 * kHeadDim;
    const int64_t head_bytes = a.seqlen_q * (a.num_heads / a.num_heads_kv) * kQueryBytes;
    int64_t heads = 1;
    const int64_t most = num_heads_kv < kSectionHeads ? num_heads_kv : kSectionHeads;
    while (2 * heads <= most && 2 * heads * head_bytes <= kSectionBytes) heads *= 2;
    return static_cast<unsigned>(heads);
}

// Where there are no queries, and so no kernel before the main one that does it.
bool reset_counter(Arguments& in, Device device, unsigned* counter) {
    const cudaStream_t stream = current_stream(device);
    return check_cuda(in, cudaMemsetAsync(counter, 0, sizeof(unsigned), stream), "counter");
}

constexpr auto kDeltaKernel = &bwd_d128_bf16_causal_sm90_delta;
constexpr auto kMainKernel = &bwd_d128_bf16_causal_sm90;
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
        p.num_sequence_heads = static_cast<unsigned>(count * heads_kv);
        p.section = section_heads(a, count * heads_kv);
        p.num_work = static_cast<unsigned>(count * tiles_n);
        p.num_conversions = static_cast<unsigned>(count * tiles_m);
        MainParams main = {p};
        // An empty tensor has no address, and nothing is copied from it.
        const auto make_map = [&in](const char* name, const Tensor& t, int rows, TensorMap& map) {
            return t.data == nullptr || make_tensor_map(in, name, kTensorMapType, t, rows, map);
        };
        if (!make_map("q", a.q, kTileM, main.q) || !make_map("k", a.k, kTileN, main.k) ||
            !make_map("v", a.v, kTileN, main.v) || !make_map("dout", a.dout, kTileM, main.dout)) {
            return false;
        }
        int num_sms = 0;
        if (!count_multiprocessors(in, a.device, num_sms)) return false;
        if (tiles_m == 0 && !reset_counter(in, a.device, p.next_work)) return false;
        // Without keys dQ is still to be zeroed.
        const int64_t work = max(count * tiles_n, int64_t{1});
        const Grid grid = {min(int64_t{num_sms}, work), kNumThreads, kSmemBytes};
        if (!launch_chained<kMainKernel>(in, a.device, grid, main)) return false;
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
