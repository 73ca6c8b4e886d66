// The least and the greatest element of each tile of a capture's positions, for classify_tile: a
// small kernel ahead of the main one, O(seqlen).
#pragma once

#include "device/varlen.cuh"
#include "host/capture.h"
#include "host/launch.cuh"

namespace flashgen {

constexpr int kBoundsWarps = 4;  // of a thread block, a tile each

// What a tile's positions are: of one sequence that all share, or of packed ones.
struct Positions {
    int length;  // of the sequence, or of all packed ones
    Boundaries cu_seqlens;  // data is null where nothing is packed
    int num_sequences;
    int num_tiles;  // virtual ones where sequences are packed
};

// The rows of tile `tile`.
template <int kTile>
__device__ __forceinline__ Span tile_span(const Positions& of, int tile) {
    Span span = {0, of.length};
    if (of.cu_seqlens.data != nullptr) {
        const int i = find_sequence<kTile>(of.cu_seqlens, of.num_sequences, of.length, tile);
        span = sequence_span(of.cu_seqlens, of.num_sequences, of.length, i);
        tile -= first_tile<kTile>(span.start, i);
    }
    const int begin = min(tile * kTile, span.length);
    return {span.start + begin, min(kTile, span.length - begin)};
}

template <typename T, int kRank, typename Value>
struct BoundsParams {
    Capture<T, kRank> capture;
    Positions positions;
    int64_t num_bounds;
    Bound<Value>* bounds;  // [outer, tile]
};

// Bounds of a capture, dimension kDim of which is the position; `outer` counts the elements of its
// other dimensions, the last one fastest. A warp makes one bound.
template <int kTile, int kDim, typename T, int kRank, typename Value>
__global__ void __launch_bounds__(32 * kBoundsWarps)
    tile_bounds(const __grid_constant__ BoundsParams<T, kRank, Value> p) {
    const Capture<T, kRank>& capture = p.capture;
    const int64_t at = int64_t{blockIdx.x} * kBoundsWarps + threadIdx.x / 32;
    if (at >= p.num_bounds) return;
    int64_t outer = at / p.positions.num_tiles;
    const T* data = capture.data;
#pragma unroll
    for (int dim = kRank - 1; dim >= 0; --dim) {
        if (dim == kDim) continue;
        data += outer % capture.sizes[dim] * capture.strides[dim];
        outer /= capture.sizes[dim];
    }
    // A load behind the capture's end reads 0.
    const auto load = [&](int64_t row) {
        return row < capture.sizes[kDim] ? Value(value_of(data[row * capture.strides[kDim]]))
                                         : Value(0);
    };
    const Span span = tile_span<kTile>(p.positions, static_cast<int>(at % p.positions.num_tiles));
    if (span.length == 0) return;  // nobody visits it
    // Lanes without a row of their own repeat the last one.
    const int lane = threadIdx.x % 32;
    const Value first = load(span.start + min(lane, span.length - 1));
    Bound<Value> bound = {first, first};
    for (int i = lane + 32; i < span.length; i += 32) bound.include(load(span.start + i));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        // The lanes' values are numbers on their way, also where they are true or false.
        const auto lo = static_cast<Value>(__shfl_xor_sync(0xffffffff, bound.lo, step));
        const auto hi = static_cast<Value>(__shfl_xor_sync(0xffffffff, bound.hi, step));
        bound.include(lo);
        bound.include(hi);
    }
    if (lane == 0) p.bounds[at] = bound;
}

// Bytes of an array of `count` bounds, with what aligns the next one.
template <typename Value>
int64_t bounds_bytes(int64_t count) {
    return (count * static_cast<int64_t>(sizeof(Bound<Value>)) + 15) / 16 * 16;
}

// Launches tile_bounds.
template <int kTile, int kDim, typename T, int kRank, typename Value>
bool launch_tile_bounds(Arguments& in, Device device, const Capture<T, kRank>& capture,
                        const Positions& positions, int64_t count, Bound<Value>* bounds) {
    const BoundsParams<T, kRank, Value> p = {capture, positions, count, bounds};
    const Grid grid = {(count + kBoundsWarps - 1) / kBoundsWarps, 32 * kBoundsWarps, 0};
    return launch_kernel<&tile_bounds<kTile, kDim, T, kRank, Value>>(in, device, grid, p);
}

}  // namespace flashgen
