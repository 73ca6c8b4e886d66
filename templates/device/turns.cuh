// What thread blocks tell each other through global memory: sm70 and up.
#pragma once

#include <stdint.h>

namespace flashgen {

// Reads a number that another thread block wrote with st_release. What that block's threads did
// before, the barrier ahead of its write included, comes before what this thread does from here on.
__device__ __forceinline__ int ld_acquire(const int* place) {
    int x;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];\n" : "=r"(x) : "l"(place) : "memory");
    return x;
}

__device__ __forceinline__ void st_release(int* place, int x) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;\n" ::"l"(place), "r"(x) : "memory");
}

}  // namespace flashgen
