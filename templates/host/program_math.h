// Arithmetic of score and mask programs where C++'s own means something else: floors, divisions by
// zero that give 0, integers that wrap. For g++ and nvcc alike.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef FLASHGEN_HOST_DEVICE
#ifdef __CUDACC__
#define FLASHGEN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define FLASHGEN_HOST_DEVICE inline
#endif
#endif

namespace flashgen {
namespace math {

// ---- Integers ----
FLASHGEN_HOST_DEVICE int64_t wrap_add(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
FLASHGEN_HOST_DEVICE int64_t wrap_sub(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
FLASHGEN_HOST_DEVICE int64_t wrap_mul(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// a << n and a >> n; 0 where n is outside [0, 63].
FLASHGEN_HOST_DEVICE int64_t shift_left(int64_t a, int64_t n) {
    return n < 0 || n > 63 ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << n);
}
FLASHGEN_HOST_DEVICE int64_t shift_right(int64_t a, int64_t n) {
    return n < 0 || n > 63 ? 0 : a >> n;
}

template <typename T>
FLASHGEN_HOST_DEVICE T floor_div_integers(T a, T b) {
    if (b == 0) return 0;
    if (b == -1) return static_cast<T>(wrap_sub(0, a));  // the lowest integer has no negative
    const T quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// The remainder that has the divisor's sign.
template <typename T>
FLASHGEN_HOST_DEVICE T floor_mod_integers(T a, T b) {
    if (b == 0 || b == -1) return 0;
    const T remainder = a % b;
    return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

FLASHGEN_HOST_DEVICE int floor_div(int a, int b) { return floor_div_integers(a, b); }
FLASHGEN_HOST_DEVICE int64_t floor_div(int64_t a, int64_t b) { return floor_div_integers(a, b); }
FLASHGEN_HOST_DEVICE int64_t floor_div(int64_t a, int b) {
    return floor_div_integers<int64_t>(a, b);
}
FLASHGEN_HOST_DEVICE int64_t floor_div(int a, int64_t b) {
    return floor_div_integers<int64_t>(a, b);
}
FLASHGEN_HOST_DEVICE int floor_mod(int a, int b) { return floor_mod_integers(a, b); }
FLASHGEN_HOST_DEVICE int64_t floor_mod(int64_t a, int64_t b) { return floor_mod_integers(a, b); }
FLASHGEN_HOST_DEVICE int64_t floor_mod(int64_t a, int b) {
    return floor_mod_integers<int64_t>(a, b);
}
FLASHGEN_HOST_DEVICE int64_t floor_mod(int a, int64_t b) {
    return floor_mod_integers<int64_t>(a, b);
}

// ---- Either kind: NaN wins, as in PyTorch ----
template <typename T>
FLASHGEN_HOST_DEVICE T minimum(T a, T b) {
    return a < b || a != a ? a : b;
}
template <typename T>
FLASHGEN_HOST_DEVICE T maximum(T a, T b) {
    return a > b || a != a ? a : b;
}
#ifdef __CUDA_ARCH__
template <>
FLASHGEN_HOST_DEVICE float minimum<float>(float a, float b) {
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
template <>
FLASHGEN_HOST_DEVICE float maximum<float>(float a, float b) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
}
#endif
template <typename T>
FLASHGEN_HOST_DEVICE T clamp(T x, T low, T high) {
    return minimum(maximum(x, low), high);
}

FLASHGEN_HOST_DEVICE int absolute(int x) { return x < 0 ? -x : x; }
FLASHGEN_HOST_DEVICE int64_t absolute(int64_t x) { return x < 0 ? wrap_sub(0, x) : x; }
FLASHGEN_HOST_DEVICE float absolute(float x) { return fabsf(x); }
FLASHGEN_HOST_DEVICE double absolute(double x) { return fabs(x); }

// ---- Reals ----
template <typename T>
FLASHGEN_HOST_DEVICE T divide(T a, T b) {
    return b == 0 ? T(0) : a / b;
}

FLASHGEN_HOST_DEVICE float remainder_of(float a, float b) { return fmodf(a, b); }
FLASHGEN_HOST_DEVICE double remainder_of(double a, double b) { return fmod(a, b); }

template <typename T>
FLASHGEN_HOST_DEVICE T floor_mod_reals(T a, T b) {
    if (b == 0) return 0;
    const T remainder = remainder_of(a, b);
    return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

// The integer nearest to an exact quotient, which (a - a mod b) / b is up to its rounding.
template <typename T>
FLASHGEN_HOST_DEVICE T floor_div_reals(T a, T b) {
    if (b == 0) return 0;
    const T quotient = (a - floor_mod_reals(a, b)) / b;
    return sizeof(T) == 4 ? static_cast<T>(rintf(static_cast<float>(quotient)))
                          : static_cast<T>(rint(static_cast<double>(quotient)));
}

FLASHGEN_HOST_DEVICE float floor_mod(float a, float b) { return floor_mod_reals(a, b); }
FLASHGEN_HOST_DEVICE double floor_mod(double a, double b) { return floor_mod_reals(a, b); }
FLASHGEN_HOST_DEVICE float floor_div(float a, float b) { return floor_div_reals(a, b); }
FLASHGEN_HOST_DEVICE double floor_div(double a, double b) { return floor_div_reals(a, b); }

// The nearest int64 on the side of zero; 0 for NaN, the last ones beyond them.
template <typename T>
FLASHGEN_HOST_DEVICE int64_t to_int(T x) {
    if (x != x) return 0;
    if (x >= T(9223372036854775808.0)) return INT64_MAX;
    if (x < T(-9223372036854775808.0)) return INT64_MIN;
    return static_cast<int64_t>(x);
}
FLASHGEN_HOST_DEVICE int64_t floor_to_int(float x) { return to_int(floorf(x)); }
FLASHGEN_HOST_DEVICE int64_t floor_to_int(double x) { return to_int(::floor(x)); }

FLASHGEN_HOST_DEVICE double exp(double x) { return ::exp(x); }
FLASHGEN_HOST_DEVICE double exp2(double x) { return ::exp2(x); }
FLASHGEN_HOST_DEVICE double log(double x) { return ::log(x); }
FLASHGEN_HOST_DEVICE double log2(double x) { return ::log2(x); }
FLASHGEN_HOST_DEVICE double tanh(double x) { return ::tanh(x); }
FLASHGEN_HOST_DEVICE double sigmoid(double x) { return 1.0 / (1.0 + ::exp(-x)); }
FLASHGEN_HOST_DEVICE double sqrt(double x) { return ::sqrt(x); }
FLASHGEN_HOST_DEVICE double rsqrt(double x) { return 1.0 / ::sqrt(x); }
FLASHGEN_HOST_DEVICE double sin(double x) { return ::sin(x); }
FLASHGEN_HOST_DEVICE double cos(double x) { return ::cos(x); }

FLASHGEN_HOST_DEVICE float log(float x) { return logf(x); }
FLASHGEN_HOST_DEVICE float log2(float x) { return log2f(x); }
FLASHGEN_HOST_DEVICE float sqrt(float x) { return sqrtf(x); }
FLASHGEN_HOST_DEVICE float sin(float x) { return sinf(x); }
FLASHGEN_HOST_DEVICE float cos(float x) { return cosf(x); }
#ifdef __CUDA_ARCH__
FLASHGEN_HOST_DEVICE float exp(float x) { return expf(x); }
FLASHGEN_HOST_DEVICE float exp2(float x) { return exp2f(x); }
FLASHGEN_HOST_DEVICE float rsqrt(float x) { return rsqrtf(x); }
FLASHGEN_HOST_DEVICE float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// 1 - 2 / (e^2x + 1): two special-function instructions, an absolute error of about 5e-7.
FLASHGEN_HOST_DEVICE float tanh(float x) {
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 2.885390082f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
    return 1.0f - 2.0f * inverse;
}
#else
// On the CPU without branches or calls, so that a loop over them becomes vectors: within three
// units in the last place, 0 where the C library has numbers below the normal ones.

// e^x = 2^n (1 + rest): n is the integer nearest to x log2(e) and as an integer in the low bits of
// `shifted`. For a NaN the rest is NaN and 2^n a number.
struct SplitExp {
    uint32_t shifted;
    float rest;
};
inline constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction

// Of e^(n ln 2 + r) with |r| <= ln 2 / 2; the polynomial interpolates (e^r - 1 - r) / r^2 at
// Chebyshev nodes.
FLASHGEN_HOST_DEVICE SplitExp split_exp(float shifted, float r) {
    float q = 1.3926250831e-3f;
    q = q * r + 8.3632328837e-3f;
    q = q * r + 4.1666554213e-2f;
    q = q * r + 1.6666576666e-1f;
    q = q * r + 5.0000000000e-1f;
    SplitExp split = {0, q * r * r + r};
    memcpy(&split.shifted, &shifted, sizeof(shifted));
    return split;
}
FLASHGEN_HOST_DEVICE SplitExp split_exp(float x) {
    const float shifted = x * 1.44269504f + kRoundToInteger;
    const float n = shifted - kRoundToInteger;
    // ln 2 in two parts, the first of 10 bits: its product with n is exact
    return split_exp(shifted, (x - n * 0.693359375f) + n * 2.12194440e-4f);
}
// (1 + rest) 2^n: n is added to the exponent's bits.
FLASHGEN_HOST_DEVICE float join_exp(SplitExp split) {
    const float mantissa = 1.0f + split.rest;
    uint32_t bits;
    memcpy(&bits, &mantissa, sizeof(bits));
    bits += split.shifted << 23;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

FLASHGEN_HOST_DEVICE float exp(float x) {
    const float value = join_exp(split_exp(x));
    return x < -87.3f ? 0.0f : x > 88.7228f ? HUGE_VALF : value;
}
FLASHGEN_HOST_DEVICE float exp2(float x) {
    const float shifted = x + kRoundToInteger;
    const float f = x - (shifted - kRoundToInteger);
    const float value = join_exp(split_exp(shifted, f * 0.693147181f));
    return x < -126.0f ? 0.0f : x >= 128.0f ? HUGE_VALF : value;
}
FLASHGEN_HOST_DEVICE float rsqrt(float x) { return 1.0f / sqrtf(x); }
FLASHGEN_HOST_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
// With e = e^2|x| - 1, which is exact near 0: e / (e + 2).
FLASHGEN_HOST_DEVICE float tanh(float x) {
    const float size = fabsf(x);
    const SplitExp split = split_exp(size > 10.0f ? 20.0f : 2.0f * size);
    const uint32_t bits = (split.shifted + 127u) << 23;
    float power;  // 2^n
    memcpy(&power, &bits, sizeof(power));
    const float e = power * split.rest + (power - 1.0f);
    return copysignf(e / (e + 2.0f), x);
}
#endif

}  // namespace math

// Positions are less than 2^30. A bound on kv_idx - q_idx beyond every distance means the same as
// the first one that no pair of positions reaches, and sums of that one and a position are ints.
inline constexpr int kMaxDistance = (1 << 30) - 1;
template <typename T>
FLASHGEN_HOST_DEVICE int lower_distance(T bound) {
    return static_cast<int>(math::clamp<T>(bound, -kMaxDistance, kMaxDistance + 1));
}
template <typename T>
FLASHGEN_HOST_DEVICE int upper_distance(T bound) {
    return static_cast<int>(math::clamp<T>(bound, -kMaxDistance - 1, kMaxDistance));
}

}  // namespace flashgen
