// Philox4x32-7, the counter-based generator behind dropout: one definition for C++ and CUDA, so
// that every target drops the same elements.
//
// Element (b, h, q, kv) of a call is a pure function of (seed, offset, b, h, q, kv). One block of
// 16 bytes serves the elements of one `lane` of a block of 16 queries x kBlockKeys keys (32 with 8
// bits an element, 16 with 16 bits), in the order in which a warp holds an m16n8 accumulator:
//   counter = (kv / kBlockKeys, (q / 16) * 32 + lane, b * num_heads + h, offset / 4)
//   lane    = (q % 8) * 4 + (kv % 8) / 2
//   index   = (kv % kBlockKeys) / 8 * 4 + (q % 16) / 8 * 2 + kv % 2
// The element's value is byte `index`, or with 16 bits the bytes 2 * index (low) and 2 * index + 1.
// It is dropped iff its value < dropout_threshold.
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4.3.
#pragma once

#include <stdint.h>

#ifndef FLASHGEN_HOST_DEVICE
#ifdef __CUDACC__
#define FLASHGEN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FLASHGEN_HOST_DEVICE inline
#endif
#endif

namespace flashgen {

struct Uint4x32 {
    uint32_t x, y, z, w;
};

struct Uint2x32 {
    uint32_t x, y;
};

constexpr uint32_t kPhiloxMultiplierX = 0xD2511F53u;
constexpr uint32_t kPhiloxMultiplierZ = 0xCD9E8D57u;
constexpr uint32_t kPhiloxWeylX = 0x9E3779B9u;  // golden ratio
constexpr uint32_t kPhiloxWeylY = 0xBB67AE85u;  // sqrt(3) - 1
constexpr int kPhiloxRounds = 7;  // the fewest that pass BigCrush

FLASHGEN_HOST_DEVICE Uint4x32 philox4x32_7(Uint4x32 counter, Uint2x32 key) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int round = 0; round < kPhiloxRounds; ++round) {
        const uint64_t a = uint64_t{kPhiloxMultiplierX} * counter.x;
        const uint64_t b = uint64_t{kPhiloxMultiplierZ} * counter.z;
        counter = {static_cast<uint32_t>(b >> 32) ^ counter.y ^ key.x, static_cast<uint32_t>(b),
                   static_cast<uint32_t>(a >> 32) ^ counter.w ^ key.y, static_cast<uint32_t>(a)};
        key.x += kPhiloxWeylX;
        key.y += kPhiloxWeylY;
    }
    return counter;
}

FLASHGEN_HOST_DEVICE Uint2x32 philox_key(int64_t seed) {
    const uint64_t bits = static_cast<uint64_t>(seed);
    return {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
}

// The counter of one lane's block of 16 bytes: block_q = q / 16, block_kv = kv / 32 (8 bits) or
// kv / 16 (16 bits), head_index = b * num_heads + h (mod 2^32).
FLASHGEN_HOST_DEVICE Uint4x32 dropout_counter(uint32_t block_kv, uint32_t block_q, uint32_t lane,
                                              uint32_t head_index, int64_t offset) {
    return {block_kv, block_q * 32 + lane, head_index,
            static_cast<uint32_t>(static_cast<uint64_t>(offset) / 4)};
}

}  // namespace flashgen
