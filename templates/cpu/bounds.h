// The least and the greatest element of a capture over each tile of positions: what classify_tile
// reads. Computed ahead of a pass, O(seqlen).
#pragma once

#include "cpu/parallel.h"
#include "cpu/sequence.h"
#include "host/capture.h"

namespace flashgen {

// The side whose positions index a capture.
template <bool kVarlen>
struct Positions {
    const AttentionArgs& a;
    bool queries;
    int tile;  // rows

    int64_t length() const { return queries ? a.seqlen_q : a.seqlen_k; }
    int64_t tiles() const { return tile_numbers<kVarlen>(length(), a.batch, tile); }

    // The positions of tile `number`: in all sequences with `packed`, else in its own.
    Span rows(int64_t number, bool packed) const {
        Span all = {0, length()};
        if (kVarlen) {
            const Boundaries& cu = queries ? a.cu_seqlens_q : a.cu_seqlens_k;
            const int64_t i = packed_sequence_of(cu, a.batch, length(), tile, number);
            all = packed_span(cu, a.batch, length(), i);
            number -= first_tile<true>(all.start, i, tile);
        }
        const int64_t begin = std::min(number * tile, all.length);
        return {packed ? all.start + begin : begin, std::min<int64_t>(tile, all.length - begin)};
    }
};

// Fills [the other dimensions, flattened][tiles], dimension kDim of the capture being the position,
// in all sequences with kPacked, else within one; outside the capture it reads 0, as a load does.
template <int kDim, bool kPacked, bool kVarlen, typename T, int kRank, typename Value>
bool tile_bounds(const Capture<T, kRank>& capture, Positions<kVarlen> positions,
                 Buffer<Bound<Value>>& bounds) {
    int64_t outer = 1;
    for (int dim = 0; dim < kRank; ++dim) outer *= dim == kDim ? 1 : capture.sizes[dim];
    const int64_t tiles = positions.tiles(), count = outer * tiles;
    if (!bounds.allocate(count)) return false;
    const int threads = thread_count(ceil_div(count, 64));
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t at = 0; at < count; ++at) {
        const T* data = capture.data;
        int64_t index = at / tiles;
        for (int dim = kRank - 1; dim >= 0; --dim) {
            if (dim == kDim) continue;
            data += index % capture.sizes[dim] * capture.strides[dim];
            index /= capture.sizes[dim];
        }
        const auto load = [&](int64_t row) {
            const bool inside = row < capture.sizes[kDim];
            return inside ? Value(value_of(data[row * capture.strides[kDim]])) : Value(0);
        };
        const Span rows = positions.rows(at % tiles, kPacked);
        if (rows.length == 0) continue;  // nobody asks for it
        Bound<Value> bound = {load(rows.start), load(rows.start)};
        for (int64_t i = 1; i < rows.length; ++i) bound.include(load(rows.start + i));
        bounds[at] = bound;
    }
    return true;
}

}  // namespace flashgen
