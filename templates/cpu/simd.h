// Vectors of the compiler's own kind (GCC and Clang), so that one text serves every instruction
// set.
#pragma once

#include <stdint.h>

#include <limits>
#include <type_traits>

namespace flashgen {

template <typename T, int kVectorBytes>
struct Simd {
    static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
    using Int = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

    typedef T Vec __attribute__((vector_size(kVectorBytes), may_alias));
    typedef Int Mask __attribute__((vector_size(kVectorBytes), may_alias));  // 0 or all ones

    // Pointers are multiples of kVectorBytes.
    static Vec load(const T* p) { return *reinterpret_cast<const Vec*>(p); }
    static Mask load(const Int* p) { return *reinterpret_cast<const Mask*>(p); }
    static void store(T* p, Vec value) { *reinterpret_cast<Vec*>(p) = value; }

    static Vec broadcast(T value) { return value - Vec{}; }
    static Vec max(Vec a, Vec b) { return a > b ? a : b; }
    static Vec zero_unless(Mask mask, Vec value) {
        return reinterpret_cast<Vec>(reinterpret_cast<Mask>(value) & mask);
    }

    // e^x to about one unit in the last place; 0 below the smallest normal number, inf above the
    // largest power of two, NaN for NaN.
    static Vec exp(Vec x);
};

// Constants of e^x = 2^n 2^f with n = round(x log2 e), |f| <= 1/2 and 2^f = 1 + f q(f). The
// coefficients of q interpolate (2^f - 1) / f at Chebyshev nodes.
template <typename T>
struct ExpConstants;

template <>
struct ExpConstants<float> {
    static constexpr int kMantissaBits = 23;
    static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    static constexpr float kLog2e = 1.44269504f;
    static constexpr float kLowest = -87.3f;  // e^x is a normal number from -87.336
    static constexpr float kHighest = 88.3f;  // 2^n overflows from 88.376
    static constexpr float kCoefficients[] = {
        6.9314718802623774808e-1f, 2.4022650760568204586e-1f, 5.5503571141760241841e-2f,
        9.6180825572405753014e-3f, 1.3390863387636358410e-3f, 1.5453162965003531003e-4f,
    };
};

template <>
struct ExpConstants<double> {
    static constexpr int kMantissaBits = 52;
    static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double kLog2e = 1.4426950408889634074;
    static constexpr double kLowest = -708.3;
    static constexpr double kHighest = 709.0;
    static constexpr double kCoefficients[] = {
        6.9314718055994530942e-1, 2.4022650695910098220e-1,  5.5504108664821594339e-2,
        9.6181291076068884927e-3, 1.3333558146416935292e-3,  1.5403530441736108213e-4,
        1.5252733829836149341e-5, 1.3215442587886300878e-6,  1.0178062445826910332e-7,
        7.0725859563471232540e-9, 4.4549606019592227699e-10,
    };
};

template <typename T, int kVectorBytes>
inline typename Simd<T, kVectorBytes>::Vec Simd<T, kVectorBytes>::exp(Vec x) {
    using C = ExpConstants<T>;
    constexpr int kTerms = sizeof(C::kCoefficients) / sizeof(T);
    const Vec in = x > C::kHighest ? broadcast(C::kHighest) : x;
    const Vec shifted = in * C::kLog2e + C::kRound;  // n in the low bits of the mantissa
    const Vec f = in * C::kLog2e - (shifted - C::kRound);
    Vec q = broadcast(C::kCoefficients[kTerms - 1]);
#pragma GCC unroll 16
    for (int i = kTerms - 2; i >= 0; --i) q = q * f + C::kCoefficients[i];
    const Vec two_to_f = q * f + T{1};
    // 2^n: n goes straight into the exponent's bits.
    const Mask bits =
        reinterpret_cast<Mask>(two_to_f) + (reinterpret_cast<Mask>(shifted) << C::kMantissaBits);
    const Vec result = reinterpret_cast<Vec>(bits);
    const Vec above = x > C::kHighest ? broadcast(std::numeric_limits<T>::infinity()) : result;
    return x < C::kLowest ? Vec{} : above;
}

}  // namespace flashgen
