// Kernels that start while the one before them on the stream ends (programmatic dependent launch,
// sm90 and up): what they do before they wait costs no time.
#pragma once

#include "host/launch.cuh"

namespace flashgen {

// Waits until the kernel before this one is done and its writes are visible. Every thread block of
// a kernel that is launched so must call it: whoever waits for this kernel relies on the one before.
__device__ __forceinline__ void wait_for_previous_kernel() {
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
}

// Lets the next kernel's thread blocks come where this one's leave room, once all have called it.
__device__ __forceinline__ void start_next_kernel() {
    asm volatile("griddepcontrol.launch_dependents;\n");
}

// launch_kernel, without waiting for the kernel before.
template <auto kKernel, typename Params>
bool launch_chained(Arguments& in, Device device, const Grid& grid, const Params& p) {
    if (grid.blocks == 0) return true;
    if (!check_grid<kKernel>(in, device, grid)) return false;
    cudaLaunchAttribute chained = {};
    chained.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    chained.val.programmaticStreamSerializationAllowed = 1;
    const cudaLaunchConfig_t config = {dim3(static_cast<unsigned>(grid.blocks)),
                                       dim3(static_cast<unsigned>(grid.threads)),
                                       static_cast<size_t>(grid.smem_bytes),
                                       current_stream(device),
                                       &chained,
                                       1};
    return check_cuda(in, cudaLaunchKernelEx(&config, kKernel, p), "launch");
}

}  // namespace flashgen
