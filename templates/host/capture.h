// A captured tensor as score and mask programs read it: any strides, 0 outside its sizes. For g++
// and nvcc alike.
#pragma once

#include <stdint.h>
#include <string.h>

#include "host/program_math.h"

namespace flashgen {

// Storage of 16-bit floats; no half-precision header is needed to read them.
struct CaptureFp16 {
    uint16_t bits;
};
struct CaptureBf16 {
    uint16_t bits;
};

FLASHGEN_HOST_DEVICE float real_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

template <typename T>
FLASHGEN_HOST_DEVICE T value_of(T x) {
    return x;
}
FLASHGEN_HOST_DEVICE int64_t value_of(int64_t x) { return x; }
FLASHGEN_HOST_DEVICE float value_of(CaptureBf16 x) {
    return real_from_bits(uint32_t{x.bits} << 16);
}
FLASHGEN_HOST_DEVICE float value_of(CaptureFp16 x) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return value;
#else
    // Shifted into place it is the value times 2^-112, subnormal numbers included.
    const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16, rest = uint32_t{x.bits & 0x7fffu};
    const float scaled = real_from_bits(rest << 13) * 5.192296858534828e33f;  // 2^112
    const bool finite = rest < 0x7c00u;
    const float magnitude = finite ? scaled : real_from_bits(0x7f800000u | (rest << 13));
    return sign != 0 ? -magnitude : magnitude;
#endif
}

// The whole tensor's position of a position within a sequence of `length` that starts at `start`;
// -1, which no load reads, outside it.
FLASHGEN_HOST_DEVICE int64_t within(int64_t position, int64_t length, int64_t start) {
    return position >= 0 && position < length ? start + position : -1;
}

template <typename T, int kRank>
struct Capture {
    static constexpr int kDims = kRank > 0 ? kRank : 1;
    T* data;
    int64_t sizes[kDims];
    int64_t strides[kDims];  // in elements, 0 along an expanded dimension

    // The element at `index`, 0 where an index lies outside.
    template <typename... Index>
    FLASHGEN_HOST_DEVICE auto load(Index... index) const -> decltype(value_of(*data)) {
        static_assert(sizeof...(Index) == kRank, "one index a dimension");
        const int64_t at[kDims] = {static_cast<int64_t>(index)...};
        int64_t offset = 0;
        bool inside = true;
        for (int i = 0; i < kRank; ++i) {
            inside = inside && static_cast<uint64_t>(at[i]) < static_cast<uint64_t>(sizes[i]);
            offset += at[i] * strides[i];
        }
        using Value = decltype(value_of(*data));
        return inside ? value_of(data[offset]) : Value(0);
    }

    // The element's place in a contiguous tensor of these sizes, -1 where an index lies outside.
    template <typename... Index>
    FLASHGEN_HOST_DEVICE int64_t place(Index... index) const {
        static_assert(sizeof...(Index) == kRank, "one index a dimension");
        const int64_t at[kDims] = {static_cast<int64_t>(index)...};
        int64_t place = 0;
        bool inside = true;
        for (int i = 0; i < kRank; ++i) {
            inside = inside && static_cast<uint64_t>(at[i]) < static_cast<uint64_t>(sizes[i]);
            place = place * sizes[i] + at[i];
        }
        return inside ? place : -1;
    }
};

// The least and the greatest element that a tile reads of a capture; NaN where it reads a NaN,
// which no comparison in classify_tile then takes for a bound.
template <typename T>
struct Bound {
    T lo, hi;

    FLASHGEN_HOST_DEVICE void include(T value) {
        lo = math::minimum(lo, value);
        hi = math::maximum(hi, value);
    }
};

}  // namespace flashgen
