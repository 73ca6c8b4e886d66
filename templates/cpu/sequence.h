// The sequences of a call and their tiles: those of a batch, or packed ones.
#pragma once

#include <algorithm>

#include "cpu/tiles.h"
#include "host/attention.h"

namespace flashgen {

// One sequence: its rows are start .. start + len of batch `batch` of the tensors.
struct Sequence {
    int64_t b;      // its number
    int64_t batch;  // the same, or 0 where sequences are packed
    int64_t q_start, kv_start;
    int q_len, kv_len;
    bool real;  // false for the tokens behind the last packed sequence, which nothing pairs
};

// Rows cu[i] .. cu[i + 1], kept within `total` whatever cu holds; for i = count those behind it.
struct Span {
    int64_t start, length;
};

inline int64_t boundary(const Boundaries& cu, int64_t i, int64_t total) {
    return std::min(std::max<int64_t>(cu[i], 0), total);
}

inline Span packed_span(const Boundaries& cu, int64_t count, int64_t total, int64_t i) {
    const int64_t start = boundary(cu, i, total);
    const int64_t end = i < count ? boundary(cu, i + 1, total) : total;
    return {start, std::max<int64_t>(end - start, 0)};
}

template <bool kVarlen>
inline Sequence sequence_at(const AttentionArgs& a, int64_t i) {
    if (!kVarlen) {
        return {i, i, 0, 0, static_cast<int>(a.seqlen_q), static_cast<int>(a.seqlen_k), true};
    }
    const Span q = packed_span(a.cu_seqlens_q, a.batch, a.seqlen_q, i);
    const Span kv = packed_span(a.cu_seqlens_k, a.batch, a.seqlen_k, i);
    return {
        i,          0, q.start, kv.start, static_cast<int>(q.length), static_cast<int>(kv.length),
        i < a.batch};
}

// ---- Tiles of `tile` rows ----
// Those of a packed sequence i are numbered from start / tile + i on: numbers of two sequences
// never meet, so that nothing need know all lengths. A number that no tile has is one without work.

// Numbers of tiles of one side, of one head: of all packed sequences, or of one of the batch.
template <bool kVarlen>
inline int64_t tile_numbers(int64_t length, int64_t sequences, int tile) {
    return kVarlen ? length / tile + sequences + 1 : ceil_div(length, tile);
}

// The number of a sequence's first tile.
template <bool kVarlen>
inline int64_t first_tile(int64_t start, int64_t i, int tile) {
    return kVarlen ? start / tile + i : 0;
}

// The packed sequence that has tile `number`, or the last one that begins before it.
inline int64_t packed_sequence_of(const Boundaries& cu, int64_t count, int64_t total, int tile,
                                  int64_t number) {
    int64_t low = 0, high = count;  // the answer is among them
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (boundary(cu, middle, total) / tile + middle <= number) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

// A task: one head and one tile of the side that it owns.
struct Task {
    Sequence sequence;
    int64_t head;
    int64_t begin;  // of the tile, in its sequence; past the end where the task has no work
};

// How the tasks of a pass are numbered: by head, then by tile, the last tile first or the first.
template <bool kVarlen>
struct Tasks {
    const AttentionArgs& a;
    bool queries;   // the side that is owned
    int tile;       // rows
    int64_t heads;  // of that side
    int64_t tiles;  // numbers of one head (of one batch)

    Tasks(const AttentionArgs& args, bool own_queries, int tile_rows)
        : a(args),
          queries(own_queries),
          tile(tile_rows),
          heads(own_queries ? args.num_heads : args.num_heads_kv),
          tiles(tile_numbers<kVarlen>(own_queries ? args.seqlen_q : args.seqlen_k, args.batch,
                                      tile_rows)) {}

    int64_t count() const { return (kVarlen ? 1 : a.batch) * heads * tiles; }

    // With queries the last tile of a head comes first: under a causal mask it has the most keys.
    Task at(int64_t task) const {
        const int64_t unit = task / tiles;
        const int64_t number = queries ? tiles - 1 - task % tiles : task % tiles;
        if (!kVarlen) return {sequence_at<false>(a, unit / heads), unit % heads, number * tile};
        const Boundaries& cu = queries ? a.cu_seqlens_q : a.cu_seqlens_k;
        const int64_t total = queries ? a.seqlen_q : a.seqlen_k;
        const int64_t i = packed_sequence_of(cu, a.batch, total, tile, number);
        Sequence sequence = sequence_at<true>(a, i);
        if (!sequence.real) (queries ? sequence.kv_len : sequence.q_len) = 0;
        const int64_t start = queries ? sequence.q_start : sequence.kv_start;
        return {sequence, unit, (number - first_tile<true>(start, i, tile)) * tile};
    }
};

// Where row 0 of a head lies in lse, dlse and delta.
inline int64_t first_stat(const AttentionArgs& a, const Sequence& sequence, int64_t h) {
    return (sequence.batch * a.num_heads + h) * a.seqlen_q + sequence.q_start;
}

}  // namespace flashgen
