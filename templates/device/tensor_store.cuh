// Tiles of registers to global memory by the tensor memory accelerator: a warp lays its accumulators
// in a page of shared memory, and one thread has whole pages copied out behind the threads' backs.
#pragma once

#include "device/tensor_map.cuh"

namespace flashgen {

// Stores the 16 x 16 block of a warp's accumulators, packed in pairs as an A operand, at (row, col)
// of a page: 64 columns swizzled as device/swizzled_tile.cuh has them.
__device__ __forceinline__ void store_block(uint32_t page, const uint32_t (&a)[4], int row, int col,
                                            int lane) {
    const int to = row + lane % 16;
    const int chunk = col / 8 + lane / 16;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                     page + to * 128 + (chunk ^ to % 8) * 16),
                 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
                 : "memory");
}

// Starts copying a page to the box whose first element is (col, row, head, batch); what lies outside
// the tensor is left out. One thread issues it, once all that wrote the page have fenced
// (fence_async_proxy) and met.
__device__ __forceinline__ void store_box(const TensorMap& map, uint32_t page, int col, int row,
                                          int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
        "[%1];\n" ::"l"(&map.map),
        "r"(page), "r"(col), "r"(row), "r"(min(head, map.last_head)), "r"(min(batch, map.last_batch))
        : "memory");
}

// Ends a group of this thread's stores.
__device__ __forceinline__ void commit_stores() {
    asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

// Waits until all but kPending of this thread's groups have read their pages, which may be written
// again then.
template <int kPending>
__device__ __forceinline__ void await_stores() {
    asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace flashgen
