// Packed sequences (varlen): which of them a thread block works on, found without the host.
//
// Sequence i is rows cu[i] .. cu[i + 1] of a packed tensor. Its tiles of kTile rows are numbered
// from cu[i] / kTile + i, so that the numbers of two sequences never meet, whatever their lengths:
// a grid of total / kTile + sequences + 1 tiles holds every call, and the host needs neither the
// lengths nor the longest of them. A number that no tile has belongs to a block without work.
//
// One more sequence, number `num_sequences`, is the rows behind the last one. It has no partner on
// the other side, so that its outputs become those of rows with nothing to attend to.
#pragma once

#include <stdint.h>

namespace flashgen {

// Where sequences begin, as the call brought it: [num_sequences + 1] of either width.
struct CuSeqlens {
    const void* data;
    bool wide;  // int64, else int32

    // Clamped: nothing that the tensor holds leads out of `total` rows.
    __device__ __forceinline__ int row(int i, int total) const {
        const int64_t row = wide ? static_cast<const int64_t*>(data)[i]
                                 : int64_t{static_cast<const int32_t*>(data)[i]};
        return static_cast<int>(min(max(row, int64_t{0}), int64_t{total}));
    }
};

// Rows of a packed tensor.
struct Span {
    int start, length;
};

// The rows of sequence i; those behind the last one for i = num_sequences.
__device__ __forceinline__ Span sequence_span(CuSeqlens cu, int num_sequences, int total, int i) {
    const int start = cu.row(i, total);
    const int end = i < num_sequences ? cu.row(i + 1, total) : total;
    return {start, max(end - start, 0)};
}

// The number of the first tile of sequence `i`, whose first row is `start`.
template <int kTile>
__device__ __forceinline__ int first_tile(int start, int i) {
    return start / kTile + i;
}

// Tiles of all sequences, numbers that no tile has included.
inline int64_t virtual_tiles(int64_t total, int64_t num_sequences, int tile) {
    return total / tile + num_sequences + 1;
}

// The sequence that has tile number `tile`, or the last one that begins before it where none has.
// Whole warps must call it: 32 lanes look at once, four times for 80,000 sequences.
template <int kTile>
__device__ __forceinline__ int find_sequence(CuSeqlens cu, int num_sequences, int total, int tile) {
    const int lane = threadIdx.x % 32;
    int first = 0;  // the answer is in [first, end)
    int end = num_sequences + 1;
    while (end - first > 1) {
        const int step = (end - first + 31) / 32;
        const int i = first + lane * step;
        const bool before = i < end && first_tile<kTile>(cu.row(i, total), i) <= tile;
        // Lane 0 looks at `first` itself, whose tiles begin before or nothing does.
        first += max(__popc(__ballot_sync(0xffffffff, before)) - 1, 0) * step;
        end = min(end, first + step);
    }
    return first;
}

}  // namespace flashgen
