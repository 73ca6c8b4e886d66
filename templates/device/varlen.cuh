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

#include "host/tensor.h"

namespace flashgen {

// Where sequence i begins. The first one begins at row 0 whatever the tensor says, the others
// within the `total` rows: nothing that it holds leads out of the packed tensor.
__device__ __forceinline__ int boundary(Boundaries cu, int total, int i) {
    return i == 0 ? 0 : static_cast<int>(min(max(cu[i], int64_t{0}), int64_t{total}));
}

// Rows of a packed tensor.
struct Span {
    int start, length;
};

// The rows of sequence i; those behind the last one for i = num_sequences.
__device__ __forceinline__ Span sequence_span(Boundaries cu, int num_sequences, int total, int i) {
    const int start = boundary(cu, total, i);
    const int end = i < num_sequences ? boundary(cu, total, i + 1) : total;
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
__device__ __forceinline__ int find_sequence(Boundaries cu, int num_sequences, int total, int tile) {
    const int lane = threadIdx.x % 32;
    int first = 0;  // the answer is in [first, end)
    int end = num_sequences + 1;
    while (end - first > 1) {
        const int step = (end - first + 31) / 32;
        const int i = first + lane * step;
        const bool before = i < end && first_tile<kTile>(boundary(cu, total, i), i) <= tile;
        // Lane 0 looks at `first` itself, which is before.
        first += (__popc(__ballot_sync(0xffffffff, before)) - 1) * step;
        end = min(end, first + step);
    }
    return first;
}

}  // namespace flashgen
