// Which elements of a warp's accumulators dropout keeps. The definition is in device/philox.h.
#pragma once

#include "device/philox.h"

namespace flashgen {

// The state of one (batch, head): what a lane needs besides the position of a block.
struct Dropout {
    Uint2x32 key;
    int64_t offset;
    uint32_t head_index;  // b * num_heads + h
    uint32_t threshold;   // an element is dropped iff its random value is below

    __device__ __forceinline__ bool active() const { return threshold != 0; }
};

__device__ __forceinline__ Dropout dropout_for(const int64_t* rng_state, uint32_t head_index,
                                               uint32_t threshold) {
    // Without dropout the call brings no rng_state.
    if (threshold == 0) return {};
    return {philox_key(rng_state[0]), rng_state[1], head_index, threshold};
}

// Keep bits of this lane's 16 elements in the block of 16 queries x 32 keys whose first query is
// 16 * block_q and first key 32 * block_kv: bit 4 * n + i is element i of the n-th accumulator.
template <int kBits>
__device__ __forceinline__ uint32_t keep_bits(const Dropout& d, uint32_t block_q, uint32_t block_kv,
                                              int lane) {
    static_assert(kBits == 8 || kBits == 16, "random bits of an element");
    constexpr int kCalls = kBits / 8;
    constexpr int kPerWord = 32 / kBits;
    uint32_t keep = 0;
#pragma unroll
    for (int call = 0; call < kCalls; ++call) {
        const Uint4x32 r = philox4x32_7(
            dropout_counter(kCalls * block_kv + call, block_q, lane, d.head_index, d.offset),
            d.key);
        const uint32_t words[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
        for (int i = 0; i < 4 * kPerWord; ++i) {
            const uint32_t value =
                (words[i / kPerWord] >> (i % kPerWord * kBits)) & ((1u << kBits) - 1);
            keep |= static_cast<uint32_t>(value >= d.threshold) << (call * 4 * kPerWord + i);
        }
    }
    return keep;
}

}  // namespace flashgen
