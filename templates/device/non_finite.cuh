// Infinities and NaNs of 16-bit elements, out of a tile in shared memory.
#pragma once

#include "device/ptx.cuh"

namespace flashgen {

// Makes zeros of those among the eight elements at a 16-byte aligned address.
template <typename Element>
__device__ __forceinline__ void clear_non_finite(uint32_t smem) {
    uint32_t words[4];
    ld_shared_128(words, smem);
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t word = words[i];
        const bool low = (word & Element::kInfinity) != Element::kInfinity;
        const bool high = (word >> 16 & Element::kInfinity) != Element::kInfinity;
        words[i] = (low ? word & 0xffffu : 0u) | (high ? word & 0xffff0000u : 0u);
        finite = finite && low && high;
    }
    if (!finite) st_shared_128(smem, words);
}

}  // namespace flashgen
