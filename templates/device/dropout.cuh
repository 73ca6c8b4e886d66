// Which elements of a warp's accumulators dropout keeps. The definition is in device/philox.h.
#pragma once

#include "device/philox.h"
#include "device/ptx.cuh"

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

// What a lane draws at once: the random values of its 16 elements in a block of 16 queries x 32 keys.
template <int kBits>
using DropoutWords = uint32_t[kBits / 2];

// Draws for the block whose first query is 16 * block_q and first key 32 * block_kv.
template <int kBits>
__device__ __forceinline__ void draw_words(DropoutWords<kBits>& words, const Dropout& d,
                                           uint32_t block_q, uint32_t block_kv, int lane) {
    static_assert(kBits == 8 || kBits == 16, "random bits of an element");
    constexpr int kCalls = kBits / 8;
#pragma unroll
    for (int call = 0; call < kCalls; ++call) {
        const Uint4x32 r = philox4x32_7(
            dropout_counter(kCalls * block_kv + call, block_q, lane, d.head_index, d.offset),
            d.key);
        words[4 * call] = r.x;
        words[4 * call + 1] = r.y;
        words[4 * call + 2] = r.z;
        words[4 * call + 3] = r.w;
    }
}

// The mask of elements 2 * r and 2 * r + 1 of the block's n-th accumulator, with i = 2 * n + r:
// each half is all ones or zero, where an operand has them as 16-bit values. Threshold 0 keeps all.
template <int kBits>
__device__ __forceinline__ uint32_t keep_mask(const DropoutWords<kBits>& words, int i,
                                              uint32_t threshold) {
    if constexpr (kBits == 8) {
        const uint32_t values =
            i % 2 == 0 ? spread_bytes<0>(words[i / 2]) : spread_bytes<2>(words[i / 2]);
        return small_halves_reach(values, threshold);
    } else {
        return ((words[i] & 0xffff) >= threshold ? 0xffffu : 0u) |
               (words[i] >> 16 >= threshold ? 0xffff0000u : 0u);
    }
}

// All masks of a block.
template <int kBits>
__device__ __forceinline__ void keep_masks(uint32_t (&masks)[8], const Dropout& d, uint32_t block_q,
                                           uint32_t block_kv, int lane) {
    DropoutWords<kBits> words;
    draw_words<kBits>(words, d, block_q, block_kv, lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) masks[i] = keep_mask<kBits>(words, i, d.threshold);
}

// The same as bits: bit 2 * n + r for element 2 * r of the n-th accumulator, 16 up for the next
// one.
template <int kBits>
__device__ __forceinline__ uint32_t keep_bits(const Dropout& d, uint32_t block_q, uint32_t block_kv,
                                              int lane) {
    if (!d.active()) return ~0u;
    uint32_t masks[8];
    keep_masks<kBits>(masks, d, block_q, block_kv, lane);
    uint32_t keep = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) keep |= masks[i] & 0x00010001u << i;
    return keep;
}

// Whether keep_bits() keeps element i of the n-th of its accumulators.
__device__ __forceinline__ bool keeps(uint32_t keep, int n, int i) {
    return keep >> (2 * n + i / 2 + i % 2 * 16) & 1;
}

}  // namespace flashgen
