// The keep mask of a tile, by the definition in device/philox.h.
#pragma once

#include <algorithm>

#include "device/philox.h"
#include "host/attention.h"

namespace flashgen {

// What selects the random values of one head: fixed over its tiles.
struct DropoutStream {
    Uint2x32 key;
    int64_t offset;
    uint32_t head_index;  // b * num_heads + h
    uint32_t threshold;   // an element is dropped iff its value is below; 0 keeps everything
};

inline DropoutStream dropout_stream(const AttentionArgs& a, int64_t b, int64_t h) {
    if (a.dropout_threshold == 0) return {};  // rng_state may be absent
    return {philox_key(a.rng()[0]), a.rng()[1], static_cast<uint32_t>(b * a.num_heads + h),
            static_cast<uint32_t>(a.dropout_threshold)};
}

constexpr int kDropoutBlockQueries = 16;

// Words of a block of 16 queries x 256 / kBits keys: words[w][c][r] is word w of lane r * 4 + c.
struct DropoutBlock {
    uint32_t words[4][4][8];

    DropoutBlock(const DropoutStream& stream, uint32_t block_q, uint32_t block_kv) {
        for (int c = 0; c < 4; ++c) {
            for (int r = 0; r < 8; ++r) {
                const Uint4x32 random = philox4x32_7(
                    dropout_counter(block_kv, block_q, r * 4 + c, stream.head_index, stream.offset),
                    stream.key);
                words[0][c][r] = random.x;
                words[1][c][r] = random.y;
                words[2][c][r] = random.z;
                words[3][c][r] = random.w;
            }
        }
    }
};

// keep[(q - q_begin) * kStrideQ + (kv - kv_begin) * kStrideKv] = all ones where (q, kv) is kept, 0
// where it is dropped, for whole blocks: q_begin and kv_begin are multiples of a block's sizes, and
// `keep` has room up to the next multiples of queries and keys.
template <int kBits, int kStrideQ, int kStrideKv, typename Int>
inline void dropout_tile(const DropoutStream& stream, int q_begin, int kv_begin, int queries,
                         int keys, Int* keep) {
    static_assert(kBits == 8 || kBits == 16, "dropout spends 8 or 16 bits on an element");
    constexpr int kBlockKeys = 256 / kBits;
    constexpr uint32_t kValueMask = (1u << kBits) - 1;
    for (int q = 0; q < queries; q += kDropoutBlockQueries) {
        for (int kv = 0; kv < keys; kv += kBlockKeys) {
            const DropoutBlock block(stream, (q_begin + q) / kDropoutBlockQueries,
                                     (kv_begin + kv) / kBlockKeys);
            for (int n = 0; n < kBlockKeys; ++n) {
                for (int half = 0; half < 2; ++half) {
                    const int index = n / 8 * 4 + half * 2 + n % 2;
                    const uint32_t* words = block.words[index * kBits / 32][n % 8 / 2];
                    const int shift = index * kBits % 32;
                    Int* at = keep + (q + half * 8) * kStrideQ + (kv + n) * kStrideKv;
                    for (int r = 0; r < 8; ++r) {
                        const uint32_t value = (words[r] >> shift) & kValueMask;
                        at[r * kStrideQ] = value < stream.threshold ? Int{0} : Int{-1};
                    }
                }
            }
        }
    }
}

}  // namespace flashgen
