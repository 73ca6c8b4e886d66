// Tiles between tensors and scratch memory: rows as they are, or with rows on lanes (panels).
#pragma once

#include <algorithm>

#include "cpu/element.h"
#include "host/tensor.h"

namespace flashgen {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One head of one sequence of a tensor [batch, seqlen, heads, head_dim]: row i starts at
// data + i * stride.
template <typename Element>
struct Rows {
    Element* data;
    int64_t stride;  // in elements

    Element* row(int64_t i) const { return data + i * stride; }
};

template <typename Element>
inline Rows<Element> rows_of(const Tensor& t, int64_t batch, int64_t head, int64_t start) {
    Element* data = static_cast<Element*>(t.data) + batch * t.strides[0] + start * t.strides[1] +
                    head * t.strides[2];
    return {data, t.strides[1]};
}

// tile[i] = row begin + i, widened; tile rows are kStride apart.
template <int kHeadDim, int kStride, typename Element, typename Acc>
inline void load_tile(Rows<Element> rows, int64_t begin, int count, Acc* tile) {
    for (int i = 0; i < count; ++i) {
        widen_row(rows.row(begin + i), kHeadDim, tile + int64_t{i} * kStride);
    }
}

// The same; finite[i] stays true where a row holds neither NaN nor infinity. Whether all do.
template <int kHeadDim, int kStride, typename Element, typename Acc>
inline bool load_tile_checked(Rows<Element> rows, int64_t begin, int count, Acc* tile,
                              bool* finite) {
    bool all = true;
    for (int i = 0; i < count; ++i) {
        Acc* row = tile + int64_t{i} * kStride;
        widen_row(rows.row(begin + i), kHeadDim, row);
        finite[i] = finite[i] && all_finite(row, kHeadDim);
        all = all && finite[i];
    }
    return all;
}

// Panels [panel][kHeadDim][Panel::kWidth] with row begin + i on lane i % kWidth of panel
// i / kWidth; the last panel's lanes past `count` are 0.
template <typename Panel, int kHeadDim, typename Element, typename Acc>
inline void load_panels(Rows<Element> rows, int64_t begin, int count, Acc* panels) {
    Acc row[kHeadDim];
    for (int i = 0; i < ceil_div(count, Panel::kWidth) * Panel::kWidth; ++i) {
        Acc* lane = panels + i / Panel::kWidth * (kHeadDim * Panel::kWidth) + i % Panel::kWidth;
        if (i < count) {
            widen_row(rows.row(begin + i), kHeadDim, row);
        } else {
            std::fill_n(row, kHeadDim, Acc{0});
        }
        for (int d = 0; d < kHeadDim; ++d) lane[d * Panel::kWidth] = row[d];
    }
}

// The inverse of load_panels, times factor(i), rounded to the tensor's elements. A factor of 0
// gives 0, whatever a sum of 0 * NaN has made of the row.
template <typename Panel, int kHeadDim, typename Element, typename Acc, typename Factor>
inline void store_panels(const Acc* panels, Rows<Element> rows, int64_t begin, int count,
                         Factor factor) {
    Acc row[kHeadDim];
    for (int i = 0; i < count; ++i) {
        const Acc* lane =
            panels + i / Panel::kWidth * (kHeadDim * Panel::kWidth) + i % Panel::kWidth;
        const Acc times = factor(i);
        for (int d = 0; d < kHeadDim; ++d) {
            row[d] = times == 0 ? Acc{0} : lane[d * Panel::kWidth] * times;
        }
        narrow_row(row, kHeadDim, rows.row(begin + i));
    }
}

}  // namespace flashgen
