// Gradients of captures: sums whose bits don't depend on the order of their terms.
//
// Any element of the scores may add to any entry, so tasks share entries. Terms are added as
// integers, multiples of a fraction of the largest term: integer sums don't round, whatever the
// order and the number of threads. The pass for dq finds the largest term, the one for dk and dv
// adds, so that nothing is computed for this alone.
#pragma once

#include <math.h>
#include <string.h>

#include <limits>
#include <type_traits>

#include "cpu/parallel.h"
#include "host/capture.h"

namespace flashgen {

template <typename T, int kRank>
int64_t capture_size(const Capture<T, kRank>& capture) {
    int64_t size = 1;
    for (int dim = 0; dim < kRank; ++dim) size *= capture.sizes[dim];
    return size;
}

template <typename Acc>
class FixedSums {
  public:
    // Sums for `out` [size], which is overwritten by finish(). An entry that gets a NaN or an
    // infinity becomes NaN.
    bool start(Acc* out, int64_t size, int threads) {
        out_ = out;
        size_ = size;
        // Small ones have a copy for each thread; a large one is shared, as threads seldom meet.
        copies_ = size * threads <= kMaxPrivate ? threads : 1;
        shared_ = copies_ < threads;
        std::fill_n(out, size, Acc{0});
        return largest_.allocate(threads * kApart) && sums_.allocate(copies_ * size * kLimbs);
    }

    // The largest term, without its sign, of those that this thread has seen since it last said so.
    void note(Acc largest) {
        Acc& mine = largest_[omp_get_thread_num() * kApart];
        mine = std::max(mine, std::min(largest, std::numeric_limits<Acc>::max()));
    }

    // Once every term has been noted: at most `terms` of them come, sums of terms included.
    void set_scale(double terms) {
        Acc largest = 0;
        for (int64_t i = 0; i < largest_.size(); ++i) largest = std::max(largest, largest_[i]);
        int term_bits = 0, count_bits = 0;
        // Twice the largest: the second pass rounds its terms otherwise.
        frexp(2 * std::max<double>(largest, std::numeric_limits<double>::min()), &term_bits);
        frexp(terms, &count_bits);
        const int spare_bits = 62 - count_bits;
        scale_ = ldexp(1.0, std::min(spare_bits - term_bits, 1000));
        low_scale_ = ldexp(1.0, spare_bits);
    }

    // Adds to an entry; `place` is -1 for none.
    void add(int64_t place, double term) {
        if (place < 0 || term == 0) return;
        const double scaled = term * scale_;
        if (!(fabs(scaled) < 4.0e18)) {  // not a number, or none that was noted
            __atomic_store_n(bits(out_ + place), bits_of_nan(), __ATOMIC_RELAXED);
            return;
        }
        const int64_t copy = copies_ > 1 ? omp_get_thread_num() : 0;
        int64_t* sum = &sums_[(copy * size_ + place) * kLimbs];
        const int64_t high = llrint(scaled);
        increase(sum, high);
        if (kLimbs == 2) {
            increase(sum + 1, llrint((scaled - static_cast<double>(high)) * low_scale_));
        }
    }

    // out[i] for i in [begin, end).
    void finish(int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            int64_t total[kLimbs] = {};
            for (int64_t copy = 0; copy < copies_; ++copy) {
                for (int limb = 0; limb < kLimbs; ++limb) {
                    total[limb] += sums_[(copy * size_ + i) * kLimbs + limb];
                }
            }
            double value = static_cast<double>(total[0]);
            if (kLimbs == 2) value += static_cast<double>(total[kLimbs - 1]) / low_scale_;
            out_[i] += static_cast<Acc>(value / scale_);
        }
    }

    int64_t size() const { return size_; }

  private:
    static constexpr int kLimbs = sizeof(Acc) == 8 ? 2 : 1;  // 64 bits are too few for fp64
    static constexpr int kApart = 16;  // threads' values lie on cache lines of their own
    static constexpr int64_t kMaxPrivate = int64_t{1} << 21;
    using Bits = std::conditional_t<sizeof(Acc) == 8, uint64_t, uint32_t>;

    static Bits* bits(Acc* at) { return reinterpret_cast<Bits*>(at); }
    static Bits bits_of_nan() {
        const Acc nan = std::numeric_limits<Acc>::quiet_NaN();
        Bits result;
        memcpy(&result, &nan, sizeof(nan));
        return result;
    }
    void increase(int64_t* sum, int64_t by) const {
        if (shared_) {
            __atomic_fetch_add(sum, by, __ATOMIC_RELAXED);
        } else {
            *sum += by;
        }
    }

    Acc* out_ = nullptr;
    int64_t size_ = 0, copies_ = 0;
    bool shared_ = false;
    double scale_ = 1, low_scale_ = 1;
    Buffer<Acc> largest_;
    Buffer<int64_t> sums_;
};

}  // namespace flashgen
