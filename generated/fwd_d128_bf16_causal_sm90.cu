// flashgen 0.1.0 | d128-bf16-causal | sm90 | fwd | generated: do not edit
//
// out = dropout(softmax(mask(softmax_scale * Q @ K^T))) @ V, one pass over the keys with an online
// softmax; nothing of size seqlen_q x seqlen_k exists. A thread block stays on its multiprocessor
// and works on one block of queries after another. One warpgroup brings tiles: a warp Q and K, a
// warp V. The others own 64 queries each and compute: while the tensor cores are at the next scores
// and the last output of one warpgroup, another one is at its softmax.
#include "device/element.cuh"
#include "device/mbarrier.cuh"
#include "device/quad.cuh"
#include "device/swizzled_tile.cuh"
#include "device/tensor_map.cuh"
#include "device/view.cuh"
#include "device/wgmma.cuh"
#include "host/attention_args.h"
#include "host/launch.cuh"
#define FLASHGEN_HOOK __device__ __forceinline__

namespace {

using namespace flashgen;

// ---- Variant ----
using Element = Bf16;
using Acc = float;  // of scores, sums and the program
constexpr int kHeadDim = 128;  // of Q and K
constexpr int kHeadDimV = 128;  // of V and out
constexpr int kBlocksV = kHeadDimV / 8;  // n8 blocks of an output tile

// ---- Plan ----
// 2 warpgroups that compute, 128 keys a step
struct Tiles128x128 {
    static constexpr int kTileM = 128;  // queries of a block: 64 a warpgroup
    static constexpr int kTileN = 128;  // keys of a step
    static constexpr int kNumStages = 2;  // tiles of K, and of V, in flight
    static constexpr bool kHoldQ = true;  // Q in registers, so that its memory is free
    static constexpr int kQSlots = 1;  // blocks of queries in shared memory
    static constexpr bool kChain = true;  // the next block's first S behind the last P V
    static constexpr int kTeams = 1;  // each at a block of queries of its own
    static constexpr int kProducerRegisters = 40;  // of a thread
    static constexpr int kConsumerRegisters = 232;
    // Shared memory, in bytes
    static constexpr int kQOffset = 0;  // 32768: Q, 64 rows after another
    static constexpr int kKOffset = 32768;  // 65536: 2 tiles of K
    static constexpr int kVOffset = 98304;  // 65536: 2 tiles of V
    static constexpr int kJobsOffset = 163840;  // 96: blocks of queries handed out
    static constexpr int kStepsOffset = 163936;  // 8: what each tile of K is
    static constexpr int kBarriersOffset = 163952;  // 112: mbarriers
    static constexpr int kSmemBytes = 164064;

    static constexpr int kGroups = kTileM / 64;  // warpgroups of a team that compute
    static constexpr int kNumThreads = 128 * (1 + kTeams * kGroups);
    static constexpr int kBlocksN = kTileN / 8;  // n8 blocks of a score tile
    using QTile = SwizzledTile<64, kHeadDim>;  // of a warpgroup
    using KTile = SwizzledTile<kTileN, kHeadDim>;
    using VTile = SwizzledTile<kTileN, kHeadDimV>;
};

constexpr int kWorkSlots = 2;  // blocks of queries that the producer is ahead, and one

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
    TensorMap q;  // [batch, seqlen_q, num_heads, kHeadDim], 64 rows a box
    TensorMap k, v;  // [batch, seqlen_k, num_heads_kv, kHeadDim or kHeadDimV], kTileN rows
    View<Element> out;  // [batch, seqlen_q, num_heads, kHeadDimV]
    float* lse;  // [batch, num_heads, seqlen_q], natural log
    unsigned num_heads;
    unsigned group;  // num_heads / num_heads_kv
    int seqlen_q, seqlen_k;
    unsigned num_work;  // blocks of queries of all heads
    unsigned num_tiles_m;  // of one head
    unsigned num_heads_all;  // of all batches
    unsigned* next_work;  // work that no thread block has begun with, 0 at the launch
    unsigned tail_heads;  // heads at the end, whose blocks are interleaved
    float softmax_scale;
    float exponent_scale;  // of the softmax's scores in its exponentials, which are powers of two
    ProgramArgs program;
};

// Queries of one head that a thread block works on.
struct Position {
    int b, h, h_kv;  // sequence or batch, and heads
    int q_begin, num_rows;
    int q_len, kv_len;
    static constexpr int q_start = 0, kv_start = 0;
};

// Number `index` of all work: a head and a tile of it, the last queries first, since with a causal
// mask they have the most keys. Heads come one after another, so that a head's K and V stay in the
// L2 cache; those at the end are interleaved, longest tiles first, so that all thread blocks end at
// about the same time.
struct Work {
    unsigned head, tile;
};

__device__ __forceinline__ Work work_at(const Params& p, unsigned index) {
    const unsigned first = (p.num_heads_all - p.tail_heads) * p.num_tiles_m;
    if (index >= first) {
        const unsigned rank = (index - first) / p.tail_heads;
        return {p.num_heads_all - p.tail_heads + (index - first) % p.tail_heads,
                p.num_tiles_m - 1 - rank};
    }
    return {index / p.num_tiles_m, p.num_tiles_m - 1 - index % p.num_tiles_m};
}

// Where that is; whole warps ask. There are no rows where a number has no work.
template <class C>
__device__ __forceinline__ Position locate(const Params& p, unsigned index) {
    const Work work = work_at(p, index);
    Position at;
    at.b = work.head / p.num_heads;
    at.h = work.head % p.num_heads;
    at.q_begin = work.tile * C::kTileM;
    at.q_len = p.seqlen_q;
    at.kv_len = p.seqlen_k;
    at.h_kv = at.h / p.group;
    at.num_rows = min(C::kTileM, at.q_len - at.q_begin);
    return at;
}

// The batch of the tensors.
__device__ __forceinline__ int batch_of(const Position& at) { return at.b; }
// The place of the first query in lse.
__device__ __forceinline__ int64_t lse_row(const Params& p, const Position& at) {
    return (int64_t{at.b} * p.num_heads + at.h) * p.seqlen_q + at.q_begin;
}

__device__ __forceinline__ Head head_of(const Params& p, const Position& at) {
    return make_head(p.program, at.b, at.h, at.h_kv, at.q_len, at.kv_len, p.num_heads);
}

// What a consumer is told of a tile of keys, in one word. The first two are shifted by a
// warpgroup's number.
constexpr uint32_t kFull = 1;  // each of its queries sees all of the tile
constexpr uint32_t kEmpty = 1 << 3;  // none of its queries sees any of it
constexpr uint32_t kLast = 1 << 6;  // no further tile of this block of queries
constexpr int kTileShift = 8;  // the tile's number

// The first key of a word's tile.
template <class C>
__device__ __forceinline__ int tile_begin(uint32_t word) {
    return static_cast<int>(word >> kTileShift) * C::kTileN;
}

// A block of queries, as the producer hands it out.
struct Job {
    enum State { kDone, kNoKeys, kKeys };
    Position at;
    State state;
};

// The shared memory of a thread block, or of one of its teams.
template <class C>
struct Shared {
    uint8_t* smem;
    uint32_t base;  // its address, 1024-byte aligned
    static constexpr int team = 0;
    __device__ __forceinline__ typename C::QTile q(int slot, int group) const {
        return {base + C::kQOffset + (slot * C::kGroups + group) * C::QTile::kBytes};
    }
    __device__ __forceinline__ typename C::KTile k(int stage) const {
        return {base + C::kKOffset + stage * C::KTile::kBytes};
    }
    __device__ __forceinline__ typename C::VTile v(int stage) const {
        return {base + C::kVOffset + stage * C::VTile::kBytes};
    }
    // Each stage of K has the word about its tile.
    __device__ __forceinline__ uint32_t& step(int stage) const {
        return reinterpret_cast<uint32_t*>(smem + C::kStepsOffset)[stage];
    }
    __device__ __forceinline__ Job& job(int slot) const {
        return reinterpret_cast<Job*>(smem + C::kJobsOffset)[slot];
    }
    __device__ __forceinline__ Barrier q_full(int slot) const { return barrier(slot); }
    __device__ __forceinline__ Barrier q_empty(int slot) const {
        return barrier(C::kQSlots + slot);
    }
    __device__ __forceinline__ Barrier job_full(int slot) const {
        return barrier(2 * C::kQSlots + slot);
    }
    __device__ __forceinline__ Barrier job_empty(int slot) const {
        return barrier(2 * C::kQSlots + kWorkSlots + slot);
    }
    __device__ __forceinline__ Barrier k_full(int stage) const { return stages(0, stage); }
    __device__ __forceinline__ Barrier k_empty(int stage) const { return stages(1, stage); }
    __device__ __forceinline__ Barrier v_full(int stage) const { return stages(2, stage); }
    __device__ __forceinline__ Barrier v_empty(int stage) const { return stages(3, stage); }
    __device__ __forceinline__ void init_barriers() const {
        constexpr int kWarps = 4 * C::kGroups;  // that consume
        for (int slot = 0; slot < C::kQSlots; ++slot) {
            q_full(slot).init(1);
            q_empty(slot).init(kWarps);
        }
        for (int slot = 0; slot < kWorkSlots; ++slot) {
            job_full(slot).init(1);
            job_empty(slot).init(kWarps + 1);  // and the warp that brings V
        }
        for (int stage = 0; stage < C::kNumStages; ++stage) {
            k_full(stage).init(1);
            k_empty(stage).init(kWarps);
            v_full(stage).init(1);
            v_empty(stage).init(kWarps);
        }
    }

  private:
    __device__ __forceinline__ Barrier barrier(int i) const {
        return {base + C::kBarriersOffset + i * Barrier::kBytes};
    }
    __device__ __forceinline__ Barrier stages(int kind, int stage) const {
        return barrier(2 * C::kQSlots + 2 * kWorkSlots + kind * C::kNumStages + stage);
    }
};

// The tiles of keys that a block of queries needs, last one first; whole warps walk.
template <class C>
struct KeyWalk {
    __device__ __forceinline__ KeyWalk(const Params& p, const Head& head, const Position& at,
                                       int lane) {
        const int q_end = at.q_begin + at.num_rows;
        const Range visible = visible_keys(head, at.q_begin, q_end);
        tile_ = visible.begin < visible.end ? (visible.end - 1) / C::kTileN : -1;
        first_ = visible.begin < visible.end ? visible.begin / C::kTileN : 0;
        // Lane i looks at the queries of warpgroup i.
        const int begin = at.q_begin + 64 * min(lane, C::kGroups - 1);
        const int end = min(begin + 64, max(q_end, begin + 1));
        full_ = full_keys(head, begin, end);
        visible_ = visible_keys(head, begin, end);
    }

    __device__ __forceinline__ bool any() const { return tile_ >= first_; }
    __device__ __forceinline__ int tile() const { return tile_; }
    __device__ __forceinline__ void next() { --tile_; }

    // The word about the tile, but for kLast.
    __device__ __forceinline__ uint32_t step() const {
        const int begin = tile_ * C::kTileN;
        const int end = begin + C::kTileN;
        const bool full = begin >= full_.begin && end <= full_.end;
        const bool empty = end <= visible_.begin || begin >= visible_.end;
        uint32_t word = static_cast<uint32_t>(tile_) << kTileShift;
        word |= (__ballot_sync(0xffffffff, full) & ((1u << C::kGroups) - 1)) * kFull;
        word |= (__ballot_sync(0xffffffff, empty) & ((1u << C::kGroups) - 1)) * kEmpty;
        return word;
    }

  private:
    int tile_, first_;
    Range full_, visible_;  // of the lane's warpgroup
};

// Warp 0: hands out the work, and brings Q and K.
template <class C>
__device__ __forceinline__ void produce_keys(const Params& p, const Shared<C>& shared) {
    const int lane = threadIdx.x % 32;
    Ring<kWorkSlots> slot;
    Ring<C::kNumStages> k;
    Ring<C::kQSlots> q;
    const unsigned workers = gridDim.x;
    unsigned index = blockIdx.x;
    while (index < p.num_work) {
        const Position at = locate<C>(p, index);
        if (lane == 0) index = workers + atomicAdd(p.next_work, 1);
        index = __shfl_sync(0xffffffff, index, 0);
        const Head head = head_of(p, at);
        KeyWalk<C> walk(p, head, at, lane);
        bool first = true;
        shared.job_empty(slot.stage).wait(slot.parity ^ 1);
        if (lane == 0) {
            shared.job(slot.stage) = {at, walk.any() ? Job::kKeys : Job::kNoKeys};
            shared.job_full(slot.stage).arrive();
        }
        slot.next();
        while (walk.any()) {
            const uint32_t word = walk.step();
            const int row = at.kv_start + walk.tile() * C::kTileN;
            walk.next();
            shared.k_empty(k.stage).wait(k.parity ^ 1);
            if (lane == 0) {
                const Barrier full = shared.k_full(k.stage);
                shared.step(k.stage) = walk.any() ? word : word | kLast;
                full.arrive_expecting(C::KTile::kBytes);
                shared.k(k.stage).load(p.k, full, row, at.h_kv, batch_of(at));
            }
            k.next();
            if (first) {  // K comes first: the last queries may still be in use
                shared.q_empty(q.stage).wait(q.parity ^ 1);
                if (lane == 0) {
                    const Barrier full = shared.q_full(q.stage);
                    full.arrive_expecting(C::kGroups * C::QTile::kBytes);
                    const int row_q = at.q_start + at.q_begin;
                    for (int i = 0; i < C::kGroups; ++i) {
                        shared.q(q.stage, i).load(p.q, full, row_q + 64 * i, at.h, batch_of(at));
                    }
                }
                q.next();
                first = false;
            }
        }
    }
    shared.job_empty(slot.stage).wait(slot.parity ^ 1);
    if (lane == 0) {
        shared.job(slot.stage).state = Job::kDone;
        shared.job_full(slot.stage).arrive();
    }
}

// Warp 1: brings V, for the same tiles; it waits for other stages than K, so neither holds the
// other back.
template <class C>
__device__ __forceinline__ void produce_values(const Params& p, const Shared<C>& shared) {
    const int lane = threadIdx.x % 32;
    Ring<kWorkSlots> slot;
    Ring<C::kNumStages> v;
    while (true) {
        shared.job_full(slot.stage).wait(slot.parity);
        const Job job = shared.job(slot.stage);
        __syncwarp();
        if (lane == 0) shared.job_empty(slot.stage).arrive();
        slot.next();
        if (job.state == Job::kDone) return;
        if (job.state == Job::kNoKeys) continue;
        const Position& at = job.at;
        const Head head = head_of(p, at);
        for (KeyWalk<C> walk(p, head, at, lane); walk.any(); walk.next()) {
            const int row = at.kv_start + walk.tile() * C::kTileN;
            shared.v_empty(v.stage).wait(v.parity ^ 1);
            if (lane == 0) {
                const Barrier full = shared.v_full(v.stage);
                full.arrive_expecting(C::VTile::kBytes);
                shared.v(v.stage).load(p.v, full, row, at.h_kv, batch_of(at));
            }
            v.next();
        }
    }
}

// ---- Products of a warpgroup ----
// acc[64, 8 * blocks] += A[64, 16] @ B[16, 8 * blocks], or = where !accumulate, without waiting.
// Warp w of the four has rows 16 * w up; each 16 x 8 block lies in its lanes as one of mma.m16n8.
// clang-format off
// S, Q in registers
__device__ __forceinline__ void wgmma_held_qk(float (&acc)[16][4], const uint32_t (&a)[4], uint64_t b,
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
        "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}\n"
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

// the output
__device__ __forceinline__ void wgmma_pv(float (&acc)[16][4], const uint32_t (&a)[4], uint64_t b,
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

// clang-format on
// What a warpgroup keeps of its 64 queries, of which a lane holds two rows.
using Output = float[kBlocksV][4];
struct RowStats {
    float row_max[2];
    float row_sum[2];  // this lane's columns only, until the end
};

// A warpgroup's 64 queries as the left operand of S: where they lie in shared memory, or held in
// registers, so that the next ones may come.
template <class C>
struct Queries {
    typename C::QTile tile;
    uint32_t held[C::kHoldQ ? (kHeadDim + 15) / 16 : 1][4];  // 16 columns each

    // Whether they leave shared memory with this.
    __device__ __forceinline__ bool hold(int lane) {
        if constexpr (C::kHoldQ) {
#pragma unroll
            for (int i = 0; i < (kHeadDim + 15) / 16; ++i) {
                tile.load_a(held[i], threadIdx.x / 32 % 4 * 16, 16 * i, lane);
            }
        }
        return C::kHoldQ;
    }

    // S = Q @ K^T  [64, kTileN], without waiting
    __device__ __forceinline__ void multiply(float (&s)[C::kBlocksN][4],
                                             typename C::KTile k) const {
#pragma unroll
        for (int i = 0; i < (kHeadDim + 15) / 16; ++i) {
            wgmma_held_qk(s, held[i], k.depth_columns(16 * i), i > 0);
        }
    }
};

// out += P @ V  [64, kHeadDimV], or = where !accumulate, without waiting; P goes from accumulators
// to operands without leaving registers
template <class C>
__device__ __forceinline__ void multiply_pv(Output& out, const uint32_t (&p)[C::kTileN / 16][4],
                                            typename C::VTile v, bool accumulate) {
#pragma unroll
    for (int i = 0; i < C::kTileN / 16; ++i) {
        wgmma_pv(out, p[i], v.depth_rows(16 * i), accumulate || i > 0);
    }
}

// Where in the sequence the accumulators of a lane lie: element i of block n is query
// q_first + i / 2 * 8 and key kv_first + 8 * n + i % 2.
struct Place {
    int q_first, kv_first;
};

// `row` is the lane's first query, of those of the block.
template <class C>
__device__ __forceinline__ Place place_of(const Position& at, uint32_t word, int row, int lane) {
    return {at.q_begin + row, tile_begin<C>(word) + lane % 4 * 2};
}

// Hides the keys that a query may not see, and those past the sequence's end.
template <class C>
__device__ __forceinline__ void apply_mask(float (&s)[C::kBlocksN][4], const Params& p,
                                           const Head& head, const Place& place) {
    const Row rows[2] = {make_row(p.program, head, place.q_first),
                         make_row(p.program, head, place.q_first + 8)};
#pragma unroll
    for (int n = 0; n < C::kBlocksN; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int kv_idx = place.kv_first + n * 8 + c;
            const Column column = make_column(p.program, head, kv_idx);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int q_idx = place.q_first + i * 8;
                const bool visible = kv_idx < head.kv_len &&
                                     mask_mod(p.program, head, rows[i], column, q_idx, kv_idx);
                if (!visible) s[n][i * 2 + c] = -INFINITY;
            }
        }
    }
}

// How far a row's maximum may rise, as a power of two, before what was summed relative to the old
// one is rescaled. Sums are fp32 and P at most 2^8, so that nothing is lost, and in most steps the
// output stays as it is.
constexpr float kMaxRise = 8.0f;

// A row that has seen no key yet: exp2(-inf - 0) = 0, where -inf - -inf is NaN.
__device__ __forceinline__ float safe_max(float row_max) {
    return row_max == -INFINITY ? 0.0f : row_max;
}

// Raises the row maxima to those of these scores. Returns whether they moved, the same in the whole
// warp; `rescale` is then what the sums and the output take, and the sums have.
template <bool kFirst, int kBlocksN>
__device__ __forceinline__ bool raise_maxima(const float (&s)[kBlocksN][4], RowStats& stats,
                                             float scale, float (&rescale)[2]) {
    float top[2];
    bool rose = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        top[r] = kFirst ? -INFINITY : stats.row_max[r];
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n) {
            top[r] = fmaxf(top[r], fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        }
        // The four lanes of a quad share a row.
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffff, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffff, top[r], 2));
        if constexpr (!kFirst) rose |= (top[r] - stats.row_max[r]) * scale > kMaxRise;
    }
    const bool moved = kFirst || __any_sync(0xffffffff, rose);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float row_max = moved ? top[r] : stats.row_max[r];
        if constexpr (!kFirst) {
            // Maxima are subtracted before they are scaled: an unchanged one rescales by exactly 1.
            rescale[r] = exp2_approx((stats.row_max[r] - safe_max(row_max)) * scale);
            stats.row_sum[r] = moved ? stats.row_sum[r] * rescale[r] : stats.row_sum[r];
        }
        stats.row_max[r] = row_max;
    }
    return moved;
}

// Turns scores into probabilities relative to the row maxima, and adds them to the sums.
template <int kBlocksN>
__device__ __forceinline__ void exponentiate(float (&s)[kBlocksN][4], RowStats& stats,
                                             float scale) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float shift = safe_max(stats.row_max[r]) * scale;
#pragma unroll
        for (int n = 0; n < kBlocksN; ++n) {
#pragma unroll
            for (int i = 2 * r; i < 2 * r + 2; ++i) {
                s[n][i] = exp2_approx(s[n][i] * scale - shift);
                stats.row_sum[r] += s[n][i];
            }
        }
    }
}

__device__ __forceinline__ void rescale_output(Output& out, const float (&rescale)[2]) {
#pragma unroll
    for (int n = 0; n < kBlocksV; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[n][i] *= rescale[i / 2];
    }
}

// Probabilities as the left operands of P @ V: the layouts agree.
template <int kBlocksN>
__device__ __forceinline__ void pack_probabilities(uint32_t (&p)[kBlocksN / 2][4],
                                                   const float (&s)[kBlocksN][4]) {
#pragma unroll
    for (int n = 0; n < kBlocksN; ++n) {
        p[n / 2][n % 2 * 2] = Element::pack(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = Element::pack(s[n][2], s[n][3]);
    }
}

// Divides by the row sums, and writes lse and the output. `row` is this lane's first of the block's
// queries; the other is 8 further.
__device__ __forceinline__ void finish(const Output& out, const RowStats& stats, const Position& at,
                                       const Params& p, int row) {
    const int lane = threadIdx.x % 32;
    float* lse = p.lse + lse_row(p, at);
    Element* rows = p.out.row(batch_of(at), at.h, at.q_start + at.q_begin);
#pragma unroll
    for (int r = 0; r < 2; ++r, row += 8) {
        float row_sum = stats.row_sum[r];
        row_sum += __shfl_xor_sync(0xffffffff, row_sum, 1);
        row_sum += __shfl_xor_sync(0xffffffff, row_sum, 2);
        float row_max = stats.row_max[r] * p.softmax_scale;
        float scale = 1.0f;
        // A query without keys: output 0, lse -inf.
        const bool empty = row_sum == 0.0f;  // a NaN is not empty
        const bool mine = row < at.num_rows;
        if (lane % 4 == 0 && mine) lse[row] = empty ? -INFINITY : row_max + logf(row_sum);
        const float inverse = empty ? 0.0f : scale / row_sum;
#pragma unroll
        for (int n = 0; n < kBlocksV; n += 4) {
            uint32_t words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool exists = n + i < kBlocksV;
                words[i] = exists ? Element::pack(out[exists ? n + i : 0][2 * r] * inverse,
                                                  out[exists ? n + i : 0][2 * r + 1] * inverse)
                                  : 0;
            }
            transpose_quad(words, lane);
            if (mine && n + lane % 4 < kBlocksV) {
                *reinterpret_cast<uint4*>(rows + row * p.out.row_stride + (n + lane % 4) * 8) = {
                    words[0], words[1], words[2], words[3]};
            }
        }
    }
}

// Warpgroups take turns at the tensor cores: one issues its products while another is at its
// softmax. They go through the same tiles, so each has as many turns as the others.
template <class C>
struct Turn {
    static constexpr int kFirstBarrier = 1;  // of the named ones; 0 is __syncthreads()
    int group;
    int first;  // barrier of the team's

    __device__ __forceinline__ void start() const {
        if (group == C::kGroups - 1) pass();
    }
    __device__ __forceinline__ void wait() const { named_sync(first + group, 256); }
    __device__ __forceinline__ void pass() const {
        named_arrive(first + (group + 1) % C::kGroups, 256);
    }
    __device__ __forceinline__ void finish() const {
        if (group == 0) wait();
    }
};

// What a warpgroup does from start to end: takes one block of queries after another.
template <class C>
__device__ __forceinline__ void consume(const Params& p, const Shared<C>& shared, int group) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 - 4 * (1 + shared.team * C::kGroups);  // among the team's
    const int row = 16 * warp + lane / 4;  // this lane's first query of the block
    const auto release = [&](Barrier empty) {
        __syncwarp();
        if (lane == 0) empty.arrive();
    };
    const Turn<C> turn{group, Turn<C>::kFirstBarrier + shared.team * C::kGroups};
    turn.start();
    Ring<kWorkSlots> slot;
    Ring<C::kNumStages> k, v;
    Ring<C::kQSlots> q_slot;
    // ---- A block of queries: what all that follows works on ----
    float s[C::kBlocksN][4];
    uint32_t probabilities[C::kTileN / 16][4];
    Output out;
    RowStats stats;
    uint32_t word;  // about the tile that s, or probabilities, is of
    Queries<C> q = {shared.q(0, group)};
    const auto job = [&]() -> const Job& { return shared.job(slot.stage); };
    // One slot of Q is wanted for the next block as soon as its last S is there.
    constexpr bool kReleaseEarly = C::kChain && !C::kHoldQ && C::kQSlots == 1;
    const auto release_queries = [&] {
        release(shared.q_empty(q_slot.stage));
        q_slot.next();
    };
    // Waits for a block's Q and first K.
    const auto await_operands = [&] {
        shared.q_full(q_slot.stage).wait(q_slot.parity);
        if (C::kQSlots > 1) q.tile = shared.q(uniform(q_slot.stage), group);
        if (q.hold(lane)) release_queries();
        shared.k_full(k.stage).wait(k.parity);
    };
    // Waits for a block of queries. Returns whether it has keys.
    const auto await_job = [&](const Ring<kWorkSlots>& at) {
        shared.job_full(at.stage).wait(at.parity);
        return shared.job(at.stage).state == Job::kKeys;
    };
    // Waits for the next tile's K. Where that stands matters: the compiler moves the wait for P V
    // up to it, over what could be done meanwhile, but not beyond.
    const auto await_next_keys = [&] {
        if (!(word & kLast)) shared.k_full(k.stage).wait(k.parity);
    };
    const auto await_values = [&] { shared.v_full(v.stage).wait(v.parity); };
    // S of the tile whose K has come, without waiting.
    const auto multiply_scores = [&](typename C::KTile k_tile) {
        wgmma_fence();
        q.multiply(s, k_tile);
        wgmma_commit();
    };
    const auto next_k = [&] {
        word = shared.step(k.stage);
        return shared.k(uniform(k.stage));
    };
    const auto next_v = [&] { return shared.v(uniform(v.stage)); };
    // From products, once they are there, to the scores that the softmax takes.
    const auto finish_scores = [&] {
        pin_accumulators(s);
        release(shared.k_empty(k.stage));
        k.next();
        if (kReleaseEarly && (word & kLast)) release_queries();
        const Place place = place_of<C>(job().at, word, row, lane);
        if (!(word >> group & kFull)) {
            const Head head = head_of(p, job().at);
            apply_mask<C>(s, p, head, place);
        }
    };
    // The softmax of a block's first tile, whose S is under way.
    const auto open = [&] {
        wgmma_wait<0>();
        // Tiles that none of this warpgroup's queries sees pass by, and so do its turns.
        if ((word >> group & kEmpty) && !(word & kLast)) {
            pin_accumulators(s);
            do {
                release(shared.k_empty(k.stage));
                k.next();
                shared.v_full(v.stage).wait(v.parity);
                release(shared.v_empty(v.stage));
                v.next();
                shared.k_full(k.stage).wait(k.parity);
                word = shared.step(k.stage);
                turn.wait();
                turn.pass();
            } while ((word >> group & kEmpty) && !(word & kLast));
            multiply_scores(next_k());
            wgmma_wait<0>();
        }
        finish_scores();
        float rescale[2];
        stats = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
        raise_maxima<true>(s, stats, p.exponent_scale, rescale);
        await_next_keys();
        exponentiate(s, stats, p.exponent_scale);
        pack_probabilities(probabilities, s);
    };
    // The end of a block of queries, once its last P V is done.
    const auto close = [&](const Ring<kWorkSlots>& next) {
        pin_accumulators(out);
        release(shared.v_empty(v.stage));
        v.next();
        finish(out, stats, job().at, p, row);
        release(shared.job_empty(slot.stage));
        slot = next;
    };

    while (true) {
        Ring<kWorkSlots> next = slot;
        next.next();
        if (!await_job(slot)) {
            if (job().state == Job::kDone) break;
            finish(Output{}, RowStats{{-INFINITY, -INFINITY}, {}}, job().at, p, row);
            release(shared.job_empty(slot.stage));
            slot = next;
            continue;
        }
        await_operands();
        multiply_scores(next_k());
        open();
        while (true) {
            // S of a tile and P V of the one before run at once.
            bool first = true;
            while (!(word & kLast)) {
                await_values();
                const typename C::KTile k_tile = next_k();
                const typename C::VTile v_tile = next_v();
                turn.wait();
                multiply_scores(k_tile);
                multiply_pv<C>(out, probabilities, v_tile, !first);
                wgmma_commit();
                turn.pass();
                wgmma_wait<1>();
                finish_scores();
                float rescale[2];
                const bool moved = raise_maxima<false>(s, stats, p.exponent_scale, rescale);
                await_next_keys();
                exponentiate(s, stats, p.exponent_scale);
                wgmma_wait<0>();
                pin_accumulators(out);
                release(shared.v_empty(v.stage));
                v.next();
                pack_probabilities(probabilities, s);
                if (moved) rescale_output(out, rescale);
                first = false;
            }
            if (!C::kHoldQ && !kReleaseEarly) release_queries();
            await_values();
            const typename C::VTile v_tile = next_v();
            next = slot;
            next.next();
            // Where queries in registers have left their memory free, or there is more of it, the
            // next ones are there: S of their first tile is computed behind this last P V, and
            // while the output is written.
            if (!(C::kChain && await_job(next))) {
                wgmma_fence();
                multiply_pv<C>(out, probabilities, v_tile, !first);
                wgmma_commit();
                wgmma_wait<0>();
                close(next);
                break;
            }
            if constexpr (C::kHoldQ) {
                await_operands();
                const typename C::KTile k_tile = next_k();
                wgmma_fence();
                multiply_pv<C>(out, probabilities, v_tile, !first);
                wgmma_commit();
                multiply_scores(k_tile);
            } else {
                wgmma_fence();
                multiply_pv<C>(out, probabilities, v_tile, !first);
                wgmma_commit();
                await_operands();
                multiply_scores(next_k());
            }
            wgmma_wait<1>();
            close(next);
            open();
        }
    }
    turn.finish();
}

template <class C>
__global__ void __launch_bounds__(C::kNumThreads, 1)
    fwd_d128_bf16_causal_sm90(const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) uint8_t smem[];
    const Shared<C> shared{smem, smem_address(smem)};
    if (threadIdx.x == 0) {
        prefetch_map(p.q);
        prefetch_map(p.k);
        prefetch_map(p.v);
        shared.init_barriers();
        fence_barrier_init();
    }
    __syncthreads();
    const int group = uniform(threadIdx.x / 128);
    if (group == 0) {
        lower_registers<C::kProducerRegisters>();
        const int warp = uniform(threadIdx.x / 32);
        if (warp == 0) produce_keys(p, shared);
        if (warp == 1) produce_values(p, shared);
    } else {
        raise_registers<C::kConsumerRegisters>();
        consume(p, shared, group - 1);
    }
}

// ---- Host ----
constexpr int kCounterBytes = 16;  // of the workspace, at its start
constexpr int64_t kTailRows = 512;  // queries of the interleaved heads for each multiprocessor
constexpr int64_t kFewWork = 64;  // blocks of queries that have a team of their own each
constexpr int kMaxDevices = 64;  // whose counter's address is remembered
constexpr int64_t kMaxWork = int64_t{1} << 31;  // blocks of queries of a launch

// What does not depend on the configuration.
Params make_params(const AttentionArgs& a, const ProgramArgs& program) {
    Params p = {};
    p.out = view_of<Element>(a.out, 0);
    p.lse = a.lse.as<float>();
    p.num_heads = static_cast<unsigned>(a.num_heads);
    p.group = static_cast<unsigned>(a.num_heads / a.num_heads_kv);
    p.seqlen_q = static_cast<int>(a.seqlen_q);
    p.seqlen_k = static_cast<int>(a.seqlen_k);
    p.softmax_scale = static_cast<float>(a.softmax_scale);
    p.exponent_scale = log2_scale(a.softmax_scale);
    p.program = program;
    return p;
}

// The counter of every launch of few blocks of queries. Nobody resets it: the first block of a
// team is its own, and whatever the counter says the next one is not below their number, or, once
// in millions of launches, one that is computed again.
__device__ unsigned spare_counter;

// Whether teams take their work from a counter of the launch's own.
bool counts_work(const WorkspaceSizes& s) {
    constexpr int kLeast = Tiles128x128::kTileM;
    return (s.seqlen_q + kLeast - 1) / kLeast * s.batch * s.num_heads > kFewWork;
}

template <class C>
bool launch(Arguments& in, const AttentionArgs& a, Params& p, int num_sms) {
    const int64_t num_tiles_m = (a.seqlen_q + C::kTileM - 1) / C::kTileM;
    const int64_t num_heads_all = a.batch * a.num_heads;
    const int64_t num_work = num_tiles_m * num_heads_all;
    if (num_work >= kMaxWork) {
        in.fail("ValueError", "%s: expected fewer than 2^31 blocks of %d queries, got %lld",
                in.function(), C::kTileM, static_cast<long long>(num_work));
        return false;
    }
    p.num_work = static_cast<unsigned>(num_work);
    p.num_tiles_m = static_cast<unsigned>(num_tiles_m);
    p.num_heads_all = static_cast<unsigned>(num_heads_all);
    const int64_t tail_tiles = kTailRows / C::kTileM * num_sms;
    p.tail_heads =
        static_cast<unsigned>(min(num_heads_all, (tail_tiles + num_tiles_m - 1) / num_tiles_m));
    constexpr CUtensorMapDataType kType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    if (!make_tensor_map(in, "q", kType, a.q, 64, p.q) ||
        !make_tensor_map(in, "k", kType, a.k, C::kTileN, p.k) ||
        !make_tensor_map(in, "v", kType, a.v, C::kTileN, p.v)) {
        return false;
    }
    const int64_t num_blocks = (num_work + C::kTeams - 1) / C::kTeams;
    const bool counts = counts_work(workspace_sizes(a));
    const int64_t blocks = counts ? min(num_blocks, int64_t{num_sms}) : num_blocks;
    const Grid grid = {blocks, C::kNumThreads, C::kSmemBytes};
    return launch_kernel<&fwd_d128_bf16_causal_sm90<C>>(in, a.device, grid, p);
}

// Bytes of the counter of work.
int64_t workspace_bytes(const WorkspaceSizes& sizes) {
    return counts_work(sizes) ? kCounterBytes : 0;
}

// The address of spare_counter on the current device, number `device`; null where that failed.
unsigned* find_spare_counter(Arguments& in, int device) {
    static void* known[kMaxDevices] = {};  // asking takes a while, and the answer stays
    void* found =
        device < kMaxDevices ? __atomic_load_n(&known[device], __ATOMIC_RELAXED) : nullptr;
    if (found != nullptr) return static_cast<unsigned*>(found);
    if (!check_cuda(in, cudaGetSymbolAddress(&found, spare_counter), "counter")) return nullptr;
    if (device < kMaxDevices) __atomic_store_n(&known[device], found, __ATOMIC_RELAXED);
    return static_cast<unsigned*>(found);
}

// Gives the launch its counter.
bool set_counter(Arguments& in, const AttentionArgs& a, Params& p) {
    if (!counts_work(workspace_sizes(a))) {
        p.next_work = find_spare_counter(in, a.device.device_id);
        return p.next_work != nullptr;
    }
    p.next_work = a.workspace.as<unsigned>();
    const cudaError_t error =
        cudaMemsetAsync(p.next_work, 0, sizeof(unsigned), current_stream(a.device));
    return check_cuda(in, error, "counter");
}

bool run(Arguments& in, const AttentionArgs& a, const ProgramArgs& program) {
    check_alignment(in, "q", a.q);
    check_alignment(in, "k", a.k);
    check_alignment(in, "v", a.v);
    check_alignment(in, "out", a.out);
    check_workspace(in, a, workspace_bytes(workspace_sizes(a)));
    if (!in.ok()) return false;
    if (a.seqlen_q == 0 || a.num_heads == 0 || a.batch == 0) return true;
    const DeviceGuard guard(in, a.device.device_id);
    int num_sms = 0;
    if (!in.ok() || !count_multiprocessors(in, a.device, num_sms)) return false;
    Params p = make_params(a, program);
    if (!set_counter(in, a, p)) return false;
    return launch<Tiles128x128>(in, a, p, num_sms);
}

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
