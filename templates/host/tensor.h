// Tensors as kernels' host code holds them, however they came in.
#pragma once

#include <stdint.h>

#include "host/program_math.h"

namespace flashgen {

// Boundaries of packed sequences: int32 or int64, as the caller has them.
struct Boundaries {
    const void* data;
    bool wide;  // int64

    FLASHGEN_HOST_DEVICE int64_t operator[](int64_t i) const {
        return wide ? static_cast<const int64_t*>(data)[i]
                    : int64_t{static_cast<const int32_t*>(data)[i]};
    }
};

// A tensor argument: element (i, j, k, l) lies at data + i * strides[0] + j * strides[1] + ...
struct Tensor {
    void* data;
    int64_t shape[4];
    int64_t strides[4];  // in elements
    int32_t ndim;        // 0 where an optional argument is None

    template <typename T>
    T* as() const {
        return static_cast<T*>(data);
    }
};

}  // namespace flashgen
