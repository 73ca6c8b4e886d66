// Interval arithmetic over a tile: what an expression can be for the queries and keys in it. For
// g++ and nvcc alike; classify_tile is made of these.
//
// An integer interval holds every value. A real one with a NaN bound says nothing: comparisons are
// written so that a NaN makes every answer possible.
#pragma once

#include <stdint.h>

#include "host/capture.h"
#include "host/program_math.h"

namespace flashgen {

template <typename T>
struct Interval {
    T lo, hi;

    template <typename To>
    FLASHGEN_HOST_DEVICE Interval<To> as() const {
        return {static_cast<To>(lo), static_cast<To>(hi)};
    }
    FLASHGEN_HOST_DEVICE bool is_point() const { return lo == hi; }
};

// Queries [q_first, q_last] and keys [kv_first, kv_last] with kv_idx - q_idx in [least, most],
// without those that some condition rules out; all inclusive.
struct Box {
    int q_first, q_last, kv_first, kv_last;
    int least = -kMaxDistance, most = kMaxDistance;

    // A bound beyond every position means the same as the first one beyond.
    template <typename T>
    static FLASHGEN_HOST_DEVICE int position(T x) {
        return static_cast<int>(math::clamp<T>(x, -1, kMaxDistance + 1));
    }

    // Whether there is a pair left.
    FLASHGEN_HOST_DEVICE bool any() const {
        return q_first <= q_last && kv_first <= kv_last &&
               math::maximum(least, kv_first - q_last) <= math::minimum(most, kv_last - q_first);
    }

    template <typename T>
    FLASHGEN_HOST_DEVICE Box queries_from(T first) const {
        Box box = *this;
        box.q_first = math::maximum(q_first, position(first));
        return box;
    }
    template <typename T>
    FLASHGEN_HOST_DEVICE Box queries_to(T last) const {
        Box box = *this;
        box.q_last = math::minimum(q_last, position(last));
        return box;
    }
    template <typename T>
    FLASHGEN_HOST_DEVICE Box keys_from(T first) const {
        Box box = *this;
        box.kv_first = math::maximum(kv_first, position(first));
        return box;
    }
    template <typename T>
    FLASHGEN_HOST_DEVICE Box keys_to(T last) const {
        Box box = *this;
        box.kv_last = math::minimum(kv_last, position(last));
        return box;
    }
    // kv_idx - q_idx is at least, or at most, a distance: that clips both sides.
    template <typename T>
    FLASHGEN_HOST_DEVICE Box distance_from(T distance) const {
        Box box = *this;
        box.least = math::maximum(least, lower_distance(distance));
        box.q_last = math::minimum(q_last, kv_last - box.least);
        box.kv_first = math::maximum(kv_first, q_first + box.least);
        return box;
    }
    template <typename T>
    FLASHGEN_HOST_DEVICE Box distance_to(T distance) const {
        Box box = *this;
        box.most = math::minimum(most, upper_distance(distance));
        box.q_first = math::maximum(q_first, kv_first - box.most);
        box.kv_last = math::minimum(kv_last, q_last + box.most);
        return box;
    }

    FLASHGEN_HOST_DEVICE Interval<int> queries() const { return {q_first, q_last}; }
    FLASHGEN_HOST_DEVICE Interval<int> keys() const { return {kv_first, kv_last}; }
};

namespace interval {

template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> point(T x) {
    return {x, x};
}
FLASHGEN_HOST_DEVICE Interval<int64_t> anything() { return {INT64_MIN, INT64_MAX}; }
template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> unknown() {
    return {static_cast<T>(NAN), static_cast<T>(NAN)};
}
FLASHGEN_HOST_DEVICE Interval<int> truth(bool can_be_false, bool can_be_true) {
    return {can_be_false ? 0 : 1, can_be_true ? 1 : 0};
}

template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> hull(Interval<T> a, Interval<T> b) {
    return {math::minimum(a.lo, b.lo), math::maximum(a.hi, b.hi)};
}
template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> add(Interval<T> a, Interval<T> b) {
    return {a.lo + b.lo, a.hi + b.hi};
}
template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> sub(Interval<T> a, Interval<T> b) {
    return {a.lo - b.hi, a.hi - b.lo};
}
template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> negate(Interval<T> a) {
    return {-a.hi, -a.lo};
}
template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> mul(Interval<T> a, Interval<T> b) {
    const T p = a.lo * b.lo, q = a.lo * b.hi, r = a.hi * b.lo, s = a.hi * b.hi;
    return {math::minimum(math::minimum(p, q), math::minimum(r, s)),
            math::maximum(math::maximum(p, q), math::maximum(r, s))};
}

// The same where int64 may overflow: then the result, which wraps, can be anything.
FLASHGEN_HOST_DEVICE Interval<int64_t> wrap_add(Interval<int64_t> a, Interval<int64_t> b) {
    const bool high = b.hi > 0 && a.hi > INT64_MAX - b.hi;
    const bool low = b.lo < 0 && a.lo < INT64_MIN - b.lo;
    return high || low ? anything() : add(a, b);
}
FLASHGEN_HOST_DEVICE Interval<int64_t> wrap_negate(Interval<int64_t> a) {
    return a.lo == INT64_MIN ? anything() : negate(a);
}
FLASHGEN_HOST_DEVICE Interval<int64_t> wrap_sub(Interval<int64_t> a, Interval<int64_t> b) {
    return b.lo == INT64_MIN ? anything() : wrap_add(a, negate(b));
}
FLASHGEN_HOST_DEVICE bool product_fits(int64_t a, int64_t b) {
    const double product = static_cast<double>(a) * static_cast<double>(b);
    return fabs(product) < 9.2e18;
}
FLASHGEN_HOST_DEVICE Interval<int64_t> wrap_mul(Interval<int64_t> a, Interval<int64_t> b) {
    const bool fits = product_fits(a.lo, b.lo) && product_fits(a.lo, b.hi) &&
                      product_fits(a.hi, b.lo) && product_fits(a.hi, b.hi);
    return fits ? mul(a, b) : anything();
}

// a // b for any b: the extremes lie at the ends of a and at the ends of b and its -1 and 1.
template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> floor_div(Interval<T> a, Interval<T> b) {
    if (b.is_point() && b.lo > 0) return {math::floor_div(a.lo, b.lo), math::floor_div(a.hi, b.lo)};
    const T divisors[4] = {b.lo, b.hi, math::clamp<T>(-1, b.lo, b.hi),
                           math::clamp<T>(1, b.lo, b.hi)};
    Interval<T> result = point(math::floor_div(a.lo, divisors[0]));
    for (int i = 0; i < 4; ++i) {
        result = hull(result, point(math::floor_div(a.lo, divisors[i])));
        result = hull(result, point(math::floor_div(a.hi, divisors[i])));
    }
    return b.lo <= 0 && b.hi >= 0 ? hull(result, point(T(0))) : result;
}
FLASHGEN_HOST_DEVICE Interval<int64_t> wrap_floor_div(Interval<int64_t> a, Interval<int64_t> b) {
    return a.lo == INT64_MIN && b.lo <= -1 && b.hi >= -1 ? anything() : floor_div(a, b);
}

// a % b: exact for one positive divisor.
template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> floor_mod(Interval<T> a, Interval<T> b) {
    // Divisions are dear, 64-bit ones above all, and most tiles are wider than their divisor.
    const uint64_t width = static_cast<uint64_t>(a.hi) - static_cast<uint64_t>(a.lo);
    if (b.is_point() && b.lo > 0 && width < static_cast<uint64_t>(b.lo)) {
        const Interval<T> ends = {math::floor_mod(a.lo, b.lo), math::floor_mod(a.hi, b.lo)};
        if (ends.lo <= ends.hi) return ends;  // else a multiple of b lies between them
    }
    return {b.lo < 0 ? b.lo + 1 : T(0), b.hi > 0 ? b.hi - 1 : T(0)};
}

template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> minimum(Interval<T> a, Interval<T> b) {
    return {math::minimum(a.lo, b.lo), math::minimum(a.hi, b.hi)};
}
template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> maximum(Interval<T> a, Interval<T> b) {
    return {math::maximum(a.lo, b.lo), math::maximum(a.hi, b.hi)};
}
template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> clamp(Interval<T> x, Interval<T> low, Interval<T> high) {
    return minimum(maximum(x, low), high);
}
template <typename T>
FLASHGEN_HOST_DEVICE Interval<T> absolute(Interval<T> a) {
    const T lo = math::absolute(a.lo), hi = math::absolute(a.hi);
    const bool around_zero = a.lo <= 0 && a.hi >= 0;
    return {around_zero ? T(0) : math::minimum(lo, hi), math::maximum(lo, hi)};
}
FLASHGEN_HOST_DEVICE Interval<int64_t> wrap_absolute(Interval<int64_t> a) {
    return a.lo == INT64_MIN ? anything() : absolute(a);
}
template <typename T>
FLASHGEN_HOST_DEVICE Interval<int64_t> to_int(Interval<T> a) {
    if (a.lo != a.lo || a.hi != a.hi) return anything();
    return {math::to_int(a.lo), math::to_int(a.hi)};
}
template <typename T>
FLASHGEN_HOST_DEVICE Interval<int64_t> floor_to_int(Interval<T> a) {
    if (a.lo != a.lo || a.hi != a.hi) return anything();
    return {math::floor_to_int(a.lo), math::floor_to_int(a.hi)};
}

// What a tile reads of a capture whose dimension kDim the position indexes, `others` being the
// other indices; a load outside the capture reads 0.
template <typename To, int kDim, typename Value, typename T, int kRank, typename... Index>
FLASHGEN_HOST_DEVICE Interval<To> loaded(const Bound<Value>* bounds, int num_tiles, int tile,
                                         const Capture<T, kRank>& capture, Index... others) {
    static_assert(sizeof...(Index) == kRank - 1, "one index for each other dimension");
    const int64_t at[kRank] = {static_cast<int64_t>(others)...};
    int64_t outer = 0;
    bool inside = true;
    for (int dim = 0, next = 0; dim < kRank; ++dim) {
        if (dim == kDim) continue;
        const int64_t index = at[next++];
        inside = inside && static_cast<uint64_t>(index) < static_cast<uint64_t>(capture.sizes[dim]);
        outer = outer * capture.sizes[dim] + index;
    }
    if (!inside) return point(To(0));
    const Bound<Value> bound = bounds[outer * num_tiles + tile];
    return {static_cast<To>(bound.lo), static_cast<To>(bound.hi)};
}

// Whether some block of rows x columns positions that the box touches has this value in a block
// mask.
template <typename T>
FLASHGEN_HOST_DEVICE bool some_block_is(bool value, const Capture<T, 4>& mask, int64_t b, int64_t h,
                                        Box box, int rows, int columns) {
    for (int i = box.q_first / rows; i <= box.q_last / rows; ++i) {
        for (int j = box.kv_first / columns; j <= box.kv_last / columns; ++j) {
            if (mask.load(b, h, i, j) == value) return true;
        }
    }
    return false;
}

// ---- Whether a comparison can hold ----
template <typename T>
FLASHGEN_HOST_DEVICE bool can_be_less(Interval<T> a, Interval<T> b) {
    return !(a.lo >= b.hi);
}
template <typename T>
FLASHGEN_HOST_DEVICE bool can_be_at_most(Interval<T> a, Interval<T> b) {
    return !(a.lo > b.hi);
}
template <typename T>
FLASHGEN_HOST_DEVICE bool can_be_equal(Interval<T> a, Interval<T> b) {
    return !(a.lo > b.hi || b.lo > a.hi);
}
// ---- Whether it can fail; for reals this is not whether the opposite can hold ----
template <typename T>
FLASHGEN_HOST_DEVICE bool can_fail_less(Interval<T> a, Interval<T> b) {
    return !(a.hi < b.lo);
}
template <typename T>
FLASHGEN_HOST_DEVICE bool can_fail_at_most(Interval<T> a, Interval<T> b) {
    return !(a.hi <= b.lo);
}
template <typename T>
FLASHGEN_HOST_DEVICE bool can_be_unequal(Interval<T> a, Interval<T> b) {
    return !(a.is_point() && b.is_point() && a.lo == b.lo);
}

}  // namespace interval
}  // namespace flashgen
