// What the four lanes of a quad, which hold the same rows of an accumulator, do together.
#pragma once

#include <stdint.h>

namespace flashgen {

// Hands the words that four lanes of a quad hold of four blocks round, so that lane i has all of
// block i: 16 bytes that lie side by side.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
        const bool upper = lane & bit;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i & bit) continue;
            const uint32_t away = upper ? w[i] : w[i + bit];
            const uint32_t found = __shfl_xor_sync(0xffffffff, away, bit);
            if (upper) {
                w[i] = found;
            } else {
                w[i + bit] = found;
            }
        }
    }
}

}  // namespace flashgen
