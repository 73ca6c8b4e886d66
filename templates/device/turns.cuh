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

// Reads four floats that other thread blocks added up: from the L2 cache, where they did that.
__device__ __forceinline__ void ld_sums_4(float (&v)[4], const float* sums) {
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
                 : "l"(sums)
                 : "memory");
}

// Adds to a number that another thread block reads with ld_acquire.
__device__ __forceinline__ void add_release(int* place, int x) {
    asm volatile("red.release.gpu.global.add.s32 [%0], %1;\n" ::"l"(place), "r"(x) : "memory");
}

// Waits for about so long, and lets others have the multiprocessor.
template <int kNs>
__device__ __forceinline__ void sleep_ns() {
    asm volatile("nanosleep.u32 %0;\n" ::"n"(kNs));
}

}  // namespace flashgen
