// The 16-bit element types: conversion to and from float, and the tensor-core product.
//
// They are plain bits with the three operations that a kernel needs, because cuda_fp16.h and
// cuda_bf16.h together cost more to compile than a whole kernel.
#pragma once

#include <stdint.h>

namespace flashgen {

struct Fp16 {
    static constexpr uint32_t kInfinity = 0x7c00;  // its exponent, which NaNs have too
    uint16_t bits;

    // Two floats as one register: `lo` in the low half.
    static __device__ __forceinline__ uint32_t pack(float lo, float hi) {
        uint32_t r;
#if __CUDA_ARCH__ >= 800
        asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(hi), "f"(lo));
#else
        asm volatile(
            "{\n.reg .b16 lo, hi;\ncvt.rn.f16.f32 lo, %1;\ncvt.rn.f16.f32 hi, %2;\n"
            "mov.b32 %0, {lo, hi};\n}\n"
            : "=r"(r)
            : "f"(lo), "f"(hi));
#endif
        return r;
    }
    static __device__ __forceinline__ float2 unpack(uint32_t r) {
        float2 f;
        asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %2;\ncvt.f32.f16 %0, lo;\n"
            "cvt.f32.f16 %1, hi;\n}\n"
            : "=f"(f.x), "=f"(f.y)
            : "r"(r));
        return f;
    }
    // acc[16, 8] += a[16, 16] @ b[16, 8], in the fragment layouts of mma.m16n8k16.
    static __device__ __forceinline__ void mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1) {
#if __CUDA_ARCH__ >= 800
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
            : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
        // Half as deep, twice: its operands are the halves of the deeper one's.
        mma_k8(acc, a[0], a[1], b0);
        mma_k8(acc, a[2], a[3], b1);
#endif
    }

  private:
    static __device__ __forceinline__ void mma_k8(float (&acc)[4], uint32_t a0, uint32_t a1,
                                                  uint32_t b0) {
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
            : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
            : "r"(a0), "r"(a1), "r"(b0));
    }
};

struct Bf16 {
    static constexpr uint32_t kInfinity = 0x7f80;  // its exponent, which NaNs have too
    uint16_t bits;

    static __device__ __forceinline__ uint32_t pack(float lo, float hi) {
        uint32_t r;
        asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(hi), "f"(lo));
        return r;
    }
    static __device__ __forceinline__ float2 unpack(uint32_t r) {
        return {__uint_as_float(r << 16), __uint_as_float(r & 0xffff0000u)};
    }
    static __device__ __forceinline__ void mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
            : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

// The dot product of two pairs.
template <typename Element>
__device__ __forceinline__ float dot_pair(uint32_t a, uint32_t b) {
    const float2 x = Element::unpack(a);
    const float2 y = Element::unpack(b);
    return x.x * y.x + x.y * y.y;
}

}  // namespace flashgen
