// Sums in global memory that thread blocks add to one after another (sm90): bulk copies that add.
#pragma once

#include <stdint.h>

#include "device/turns.cuh"

namespace flashgen {

// Makes what ld_acquire has shown visible to bulk copies too.
__device__ __forceinline__ void fence_async_global() {
    asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

// Stores four floats, 16-byte aligned, to be added in bulk.
__device__ __forceinline__ void st_shared_4(uint32_t smem, const float (&v)[4]) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"r"(smem), "f"(v[0]), "f"(v[1]),
                 "f"(v[2]), "f"(v[3])
                 : "memory");
}

// Starts adding kBytes of floats of shared memory to those at `gmem`, both 16-byte aligned.
template <int kBytes>
__device__ __forceinline__ void add_bulk(float* gmem, uint32_t smem) {
    static_assert(kBytes % 16 == 0, "whole units of 16 bytes");
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
        "cp.async.bulk.commit_group;\n" ::"l"(gmem),
        "r"(smem), "n"(kBytes)
        : "memory");
}

// Waits until this thread's bulk adds have read shared memory.
__device__ __forceinline__ void wait_for_bulk_reads() {
    asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
}

// Waits until this thread's bulk adds are done.
__device__ __forceinline__ void wait_for_bulk() {
    asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}

}  // namespace flashgen
