// A [batch, seqlen, heads, head_dim] tensor in global memory, any strides, last one 1.
#pragma once

#include <stdint.h>

#include "host/tensor.h"

namespace flashgen {

template <typename T>
struct View {
    T* data;
    int64_t batch_stride, row_stride, head_stride;  // in elements

    // Row `row` of (b, h), in 64-bit arithmetic.
    __device__ __forceinline__ T* row(unsigned b, unsigned h, int64_t row) const {
        return data + b * batch_stride + row * row_stride + h * head_stride;
    }
};

// The view of `t` that starts at batch `first_batch`.
template <typename T>
inline View<T> view_of(const Tensor& t, int64_t first_batch) {
    // A sequence of one row has any stride, which must not misalign the rows that don't exist.
    const int64_t row_stride = t.shape[1] > 1 ? t.strides[1] : 0;
    return {t.as<T>() + first_batch * t.strides[0], t.strides[0], row_stride, t.strides[2]};
}

}  // namespace flashgen
