// Copies of whole tiles by the tensor memory accelerator: a map of the tensor in global memory,
// made on the host, and the instruction that one thread issues.
#pragma once

#include <cuda.h>  // types and enumerations alone: libcuda is not linked, its entry point is asked for
#include <cuda_runtime.h>

#include "device/mbarrier.cuh"
#include "host/abi.h"
#include "host/launch.cuh"

namespace flashgen {

// A [batch, seqlen, heads, head_dim] tensor as the accelerator sees it: dimensions (head_dim,
// seqlen, heads, batch) of 16-bit elements and boxes of kPageCols columns x some rows. What a box
// has outside the tensor becomes zeros.
struct TensorMap {
    CUtensorMap map;
    // Coordinates beyond these mean these: a map has no strides of 0, so that heads or batches
    // which are all the same are one in it.
    int last_head, last_batch;
};

constexpr int kPageCols = 64;  // columns of a box: 128 bytes, the width of the swizzle

// Copies the box whose first element is (col, row, head, batch) to shared memory, 1024-byte
// aligned and swizzled; its bytes arrive at `full`. One thread issues it.
__device__ __forceinline__ void load_box(uint32_t smem, const TensorMap& map, Barrier full, int col,
                                         int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(smem),
        "l"(&map.map), "r"(full.address), "r"(col), "r"(row), "r"(min(head, map.last_head)),
        "r"(min(batch, map.last_batch))
        : "memory");
}

// Fetches the map itself, ahead of its first use.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map.map) : "memory");
}

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function that makes maps, found at the first call; null, with the exception set,
// where the driver has none.
inline EncodeTiled encode_tiled(Arguments& in) {
    static EncodeTiled known = nullptr;
    EncodeTiled found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (found != nullptr) return found;
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult status;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                               12000, cudaEnableDefault, &status);
    if (!check_cuda(in, error, "cuTensorMapEncodeTiled")) return nullptr;
    if (status != cudaDriverEntryPointSuccess) {
        in.fail("RuntimeError", "%s: the driver has no cuTensorMapEncodeTiled", in.function());
        return nullptr;
    }
    found = reinterpret_cast<EncodeTiled>(entry);
    __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    return found;
}

// The map of `t` in boxes of `rows` rows.
inline bool make_tensor_map(Arguments& in, const char* name, CUtensorMapDataType type,
                            const Tensor& t, int rows, TensorMap& result) {
    const EncodeTiled encode = encode_tiled(in);
    if (encode == nullptr) return false;
    constexpr int kOrder[4] = {3, 1, 2, 0};  // of the tensor's dimensions in the map
    cuuint64_t sizes[4], strides[4];  // elements, bytes
    for (int i = 0; i < 4; ++i) {
        const int64_t stride = t.strides[kOrder[i]];
        // A dimension of one element has any stride, which need not be one that a map allows.
        const bool single = t.shape[kOrder[i]] <= 1 || stride == 0;
        sizes[i] = single ? 1 : static_cast<cuuint64_t>(t.shape[kOrder[i]]);
        strides[i] = single ? 16 : static_cast<cuuint64_t>(stride) * 2;
    }
    if (t.shape[1] > 1 && t.strides[1] == 0) {
        in.fail("ValueError", "%s: %s: expected rows of their own, got stride 0: copy the tensor",
                in.function(), name);
        return false;
    }
    result.last_head = static_cast<int>(sizes[2]) - 1;
    result.last_batch = static_cast<int>(sizes[3]) - 1;
    const cuuint32_t box[4] = {kPageCols, static_cast<cuuint32_t>(rows), 1, 1};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    const CUresult error =
        encode(&result.map, type, 4, t.data, sizes, strides + 1, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (error != CUDA_SUCCESS) {
        in.fail("RuntimeError", "%s: %s: no tensor map of these sizes and strides (CUresult %d)",
                in.function(), name, static_cast<int>(error));
    }
    return in.ok();
}

}  // namespace flashgen
