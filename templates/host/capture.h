// A tensor that a program reads: any rank and strides, every load checked against its sizes.
#pragma once

#include <stdint.h>
#include <string.h>

#include <type_traits>

#ifndef FLASHGEN_HOST_DEVICE
#ifdef __CUDACC__
#define FLASHGEN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FLASHGEN_HOST_DEVICE inline
#endif
#endif

namespace flashgen {

// 16-bit floats as a capture holds them.
struct CaptureFp16 {
    uint16_t bits;
};
struct CaptureBf16 {
    uint16_t bits;
};

FLASHGEN_HOST_DEVICE float capture_value(CaptureBf16 element) {
    const uint32_t bits = uint32_t{element.bits} << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

FLASHGEN_HOST_DEVICE float capture_value(CaptureFp16 element) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element.bits));
    return value;
#else
    // Subnormals and normals alike: the exponent is moved, then its bias is multiplied away.
    const uint32_t magnitude = uint32_t{element.bits & 0x7FFFu} << 13;
    const bool special = magnitude >= 0x0F800000u;  // infinity or NaN
    const uint32_t bits = special ? magnitude | 0x7F800000u : magnitude;
    float value;
    memcpy(&value, &bits, sizeof(value));
    if (!special) value *= 5.192296858534828e33f;  // 2^112
    return element.bits & 0x8000u ? -value : value;
#endif
}

template <typename T>
FLASHGEN_HOST_DEVICE T capture_value(T element) {
    return element;
}

// Element (i, j, ...) lies at data + i * strides[0] + j * strides[1] + ...
template <typename T, int kRank>
struct Capture {
    static constexpr int kDims = kRank > 0 ? kRank : 1;  // a scalar has one that nothing reads
    T* data;
    int64_t sizes[kDims];
    int64_t strides[kDims];  // in elements; 0 where the caller expanded a dimension

    // The element at `index`, 16-bit floats as float; 0 where an index is out of range.
    template <typename... Index>
    FLASHGEN_HOST_DEVICE auto load(Index... index) const {
        static_assert(sizeof...(Index) == kRank, "one index for each dimension");
        const int64_t at[kDims] = {static_cast<int64_t>(index)...};
        int64_t offset = 0;
        bool inside = true;
        for (int i = 0; i < kRank; ++i) {
            inside = inside && static_cast<uint64_t>(at[i]) < static_cast<uint64_t>(sizes[i]);
            offset += at[i] * strides[i];
        }
        using Value = decltype(capture_value(std::remove_const_t<T>{}));
        return inside ? capture_value(data[offset]) : Value{};
    }
};

}  // namespace flashgen
