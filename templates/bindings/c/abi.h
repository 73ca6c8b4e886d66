// One call from C: its arguments are fields of the structs that the header of this file declares.
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "host/capture.h"
#include "host/tensor.h"

namespace flashgen {

// Where a call runs.
struct Device {
    int32_t device_id;
    void* stream;  // a cudaStream_t
};

inline void* stream_of(Device device) { return device.stream; }

// What this thread's last call that failed had to say.
inline thread_local char last_message[512];

// One call: its fields read as tensors, and the first fault, which its caller is told.
class Arguments {
  public:
    Arguments(const char* function, Device device) : function_(function), device_(device) {}

    bool ok() const { return status_ == FLASHGEN_OK; }
    flashgen_status status() const { return status_; }
    const char* function() const { return function_; }
    Device device() const { return device_; }

    // A [batch, seqlen, heads, head_dim] tensor.
    template <typename From>
    Tensor tensor(const char* name, const From& from, int64_t batch, int64_t seqlen, int64_t heads,
                  int64_t head_dim) {
        check_data(name, from.data, batch * seqlen * heads * head_dim);
        return {const_cast<void*>(static_cast<const void*>(from.data)),
                {batch, seqlen, heads, head_dim},
                {from.batch_stride, from.row_stride, from.head_stride, 1},
                4};
    }

    // A contiguous tensor of the sizes that are not 1.
    template <typename T>
    Tensor packed(const char* name, T* data, int64_t outer, int64_t middle, int64_t inner) {
        check_data(name, data, outer * middle * inner);
        return {const_cast<void*>(static_cast<const void*>(data)),
                {outer, middle, inner},
                {middle * inner, inner, 1},
                3};
    }

    // A vector of `size` elements.
    template <typename T>
    Tensor vector(const char* name, T* data, int64_t size) {
        check_data(name, data, size);
        return {const_cast<void*>(static_cast<const void*>(data)), {size}, {1}, 1};
    }

    // A tensor that the program reads, of those of its sizes that are `expected` (any where -1).
    template <typename T, int kRank, typename From>
    Capture<T, kRank> capture(const char* name, const From& from,
                              const int64_t (&expected)[kRank]) {
        Capture<T, kRank> out = {};
        out.data = reinterpret_cast<T*>(from.data);
        int64_t elements = 1;
        for (int i = 0; i < kRank; ++i) {
            out.sizes[i] = from.shape[i];
            out.strides[i] = from.strides[i];
            elements *= from.shape[i];
            if (expected[i] < 0 ? from.shape[i] >= 0 : from.shape[i] == expected[i]) continue;
            fail("ValueError", "%s: %s: expected size %lld in dimension %d, got %lld", function_,
                 name, static_cast<long long>(expected[i] < 0 ? 0 : expected[i]), i,
                 static_cast<long long>(from.shape[i]));
        }
        check_data(name, from.data, elements);
        return out;
    }

    // A scalar that the program reads.
    template <typename T, typename From>
    Capture<T, 0> scalar(const char* name, From* data) {
        check_data(name, data, 1);
        Capture<T, 0> out = {};
        out.data = reinterpret_cast<T*>(data);
        return out;
    }

    // Requires memory where there are elements.
    void check_data(const char* name, const void* data, int64_t elements) {
        if (data == nullptr && elements > 0) {
            fail("ValueError", "%s: %s: expected a pointer, got null", function_, name);
        }
    }

    // Requires `value` to lie in [least, most].
    void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
        if (value < least || value > most) {
            fail("ValueError", "%s: %s: expected an integer in [%lld, %lld], got %lld", function_,
                 name, static_cast<long long>(least), static_cast<long long>(most),
                 static_cast<long long>(value));
        }
    }

    // Requires a finite number above 0.
    void check_positive(const char* name, double value) {
        if (!(value > 0) || value > 1.7976931348623157e308) {
            fail("ValueError", "%s: %s: expected a positive number, got %g", function_, name,
                 value);
        }
    }

    // Requires dimension `dim` of `t` to be `expected`.
    void check_size(const char* name, const Tensor& t, int dim, int64_t expected) {
        if (t.shape[dim] != expected) {
            fail("ValueError", "%s: %s: expected size %lld in dimension %d, got %lld", function_,
                 name, static_cast<long long>(expected), dim, static_cast<long long>(t.shape[dim]));
        }
    }

    void fail(const char* kind, const char* format, ...) {
        if (!ok()) return;
        status_ = strcmp(kind, "MemoryError") == 0    ? FLASHGEN_OUT_OF_MEMORY
                  : strcmp(kind, "RuntimeError") == 0 ? FLASHGEN_CUDA_ERROR
                                                      : FLASHGEN_INVALID_ARGUMENT;
        va_list values;
        va_start(values, format);
        vsnprintf(last_message, sizeof(last_message), format, values);
        va_end(values);
    }

  private:
    const char* function_;
    Device device_;
    flashgen_status status_ = FLASHGEN_OK;
};

}  // namespace flashgen
