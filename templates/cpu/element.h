// Elements as tensors hold them, and rows of them as the kernel computes with them.
#pragma once

#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace flashgen {

struct Float16 {
    uint16_t bits;
};

struct Bfloat16 {
    uint16_t bits;
};

inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

template <typename Acc, typename Element>
inline Acc widen(Element value) {
    return value;
}

template <>
inline float widen<float, Bfloat16>(Bfloat16 value) {
    return float_of(uint32_t{value.bits} << 16);
}

template <>
inline float widen<float, Float16>(Float16 value) {
    _Float16 half;
    memcpy(&half, &value.bits, sizeof(half));
    return half;
}

// To nearest, ties to even, as PyTorch rounds.
template <typename Element, typename Acc>
inline Element narrow(Acc value) {
    return value;
}

template <>
inline Bfloat16 narrow<Bfloat16, float>(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<uint16_t>(value != value ? 0x7FC0u : rounded)};
}

template <>
inline Float16 narrow<Float16, float>(float value) {
    const _Float16 half = static_cast<_Float16>(value);
    Float16 out;
    memcpy(&out.bits, &half, sizeof(half));
    return out;
}

// `count` elements, a multiple of 8.
template <typename Acc, typename Element>
inline void widen_row(const Element* in, int count, Acc* out) {
    for (int i = 0; i < count; ++i) out[i] = widen<Acc>(in[i]);
}

template <typename Element, typename Acc>
inline void narrow_row(const Acc* in, int count, Element* out) {
    for (int i = 0; i < count; ++i) out[i] = narrow<Element>(in[i]);
}

// Whether none of `count` values is a NaN or an infinity: those have every bit of the exponent.
inline bool all_finite(const float* values, int count) {
    uint32_t found = 0;
    for (int i = 0; i < count; ++i) {
        const uint32_t exponent = bits_of(values[i]) & 0x7F800000u;
        found |= exponent == 0x7F800000u ? 1u : 0u;
    }
    return found == 0;
}

inline bool all_finite(const double* values, int count) {
    uint64_t found = 0;
    for (int i = 0; i < count; ++i) {
        uint64_t bits;
        memcpy(&bits, values + i, sizeof(bits));
        const uint64_t exponent = bits & 0x7FF0000000000000u;
        found |= exponent == 0x7FF0000000000000u ? 1u : 0u;
    }
    return found == 0;
}

#ifdef __F16C__
template <>
inline void widen_row<float, Float16>(const Float16* in, int count, float* out) {
    for (int i = 0; i < count; i += 8) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(halves));
    }
}

template <>
inline void narrow_row<Float16, float>(const float* in, int count, Float16* out) {
    for (int i = 0; i < count; i += 8) {
        const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), halves);
    }
}
#endif

}  // namespace flashgen
