// The order of a warpgroup's asynchronous products: wgmma itself is rendered for the widths that a
// kernel needs (partials/wgmma.cuh.j2).
#pragma once

#include <stdint.h>

namespace flashgen {

// x, which is the same in all lanes, in a uniform register, where wgmma wants its descriptors: else
// each is moved there while the tensor cores wait. The lanes' values differ on the way, or the
// compiler drops the shuffle where it sees that x is uniform, and keeps x where it was.
__device__ __forceinline__ int uniform(int x) {
    return __shfl_sync(0xffffffff, x + static_cast<int>(threadIdx.x % 32), 0);
}

// Before the first product that reads or adds to registers which other instructions wrote.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

// Ends a group of products.
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

// Waits until at most kPending of the newest groups are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// Keeps every read and write of these accumulators on its side of this line: the compiler sees no
// other sign that a product under way writes them.
template <int kBlocks>
__device__ __forceinline__ void pin_accumulators(float (&acc)[kBlocks][4]) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(acc[n][i])::"memory");
    }
}

}  // namespace flashgen
