// One function per PTX instruction that the tensor-core families use, and nothing else; what takes
// its place where a target lacks it.
#pragma once

#include <stdint.h>

namespace flashgen {

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// x, in a way that the compiler can't see through. What is computed from it inside a loop is then
// computed there, not ahead of the loop and held in registers that the accumulators need.
__device__ __forceinline__ int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Copies 16 bytes to shared memory behind the thread's back; writes zeros where !valid, and then
// never reads gmem.
__device__ __forceinline__ void cp_async_16(uint32_t smem, const void* gmem, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(smem), "l"(gmem),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void cp_async_4(uint32_t smem, const void* gmem, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(smem), "l"(gmem),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

// Waits until at most `kPending` of the thread's committed groups are still in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Waits for every copy of the thread, committed or not: before its target is used for something
// else.
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;\n" ::: "memory");
}

// 16 bytes of global memory, or zeros where !valid, which never reads gmem.
__device__ __forceinline__ void ld_global_128(uint32_t (&r)[4], const void* gmem, bool valid) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
        "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
        "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n}\n"
        : "=&r"(r[0]), "=&r"(r[1]), "=&r"(r[2]), "=&r"(r[3])
        : "l"(gmem), "r"(static_cast<int>(valid))
        : "memory");
}

// Waits for kThreads threads, whole warps, that name the same barrier; __syncthreads is number 0.
template <int kThreads>
__device__ __forceinline__ void sync_warps(int barrier) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "n"(kThreads) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem)
                 : "memory");
}

// Stores four 8 x 8 matrices transposed; lane l gives the address of row l % 8 of matrix l / 8. sm90.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t smem, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                     smem),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

__device__ __forceinline__ void st_shared_32(uint32_t smem, uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(smem), "r"(value) : "memory");
}

__device__ __forceinline__ void st_shared_zero_16(uint32_t smem) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};\n" ::"r"(smem), "r"(0) : "memory");
}

__device__ __forceinline__ void ld_shared_128(uint32_t (&r)[4], uint32_t smem) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem)
                 : "memory");
}

__device__ __forceinline__ void st_shared_128(uint32_t smem, const uint32_t (&r)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"r"(smem), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}

__device__ __forceinline__ float exp2_approx(float x) {  // 2^x; exp2(-inf) = 0
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// Bitwise or, and the greatest, of a value of each lane.
__device__ __forceinline__ uint32_t reduce_or(uint32_t x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_or_sync(0xffffffff, x);
#else
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x |= __shfl_xor_sync(0xffffffff, x, step);
    return x;
#endif
}

__device__ __forceinline__ uint32_t reduce_max(uint32_t x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffff, x);
#else
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
#endif
}

// Bytes kFirst and kFirst + 1 of x, each as the low half of a 16-bit value.
template <int kFirst>
__device__ __forceinline__ uint32_t spread_bytes(uint32_t x) {
    return __byte_perm(x, 0, 0x4140 + 0x0101 * kFirst);
}

// For each 16-bit half of x whether it is at least `bound`, as all ones or zero; the halves and the
// bound are below 1024. As fp16 such bits are subnormal numbers, which compare like integers.
__device__ __forceinline__ uint32_t small_halves_reach(uint32_t x, uint32_t bound) {
    uint32_t mask;
    asm("set.ge.u32.f16x2 %0, %1, %2;\n" : "=r"(mask) : "r"(x), "r"(bound * 0x00010001u));
    return mask;
}

// Adds four consecutive floats to global memory, each atomically.
__device__ __forceinline__ void red_add_4(float* gmem, const float (&v)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n" ::"l"(gmem), "f"(v[0]),
                 "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
#else
#pragma unroll
    for (int i = 0; i < 4; ++i) atomicAdd(gmem + i, v[i]);
#endif
}

}  // namespace flashgen
