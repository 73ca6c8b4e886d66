// Launching kernels from an exported function: stream, device, limits, errors.
#pragma once

#include <cuda_runtime.h>

#include "host/abi.h"
#include "host/tensor.h"

namespace flashgen {

// Makes a CUDA error the call's; true where there was none.
//
// `error` is what one call of ours returned. The runtime also keeps it as its last error, where the
// next reader would take it for his own: it is reported here, so it is taken out there. What others
// left there is neither reported nor dropped by a call that succeeds. A fault of the context stays
// whatever is read: every later call returns it.
inline bool check_cuda(Arguments& in, cudaError_t error, const char* what) {
    if (error == cudaSuccess) return true;
    cudaGetLastError();
    in.fail("RuntimeError", "%s: %s: %s (%s)", in.function(), what, cudaGetErrorString(error),
            cudaGetErrorName(error));
    return false;
}

// Makes the tensors' device the current one for as long as it lives; where that fails, the call
// has failed and `in` isn't ok().
class DeviceGuard {
  public:
    DeviceGuard(Arguments& in, int device) {
        if (!check_cuda(in, cudaGetDevice(&previous_), "current device")) return;
        if (previous_ == device) return;
        changed_ = check_cuda(in, cudaSetDevice(device), "device of the tensors");
    }
    ~DeviceGuard() {
        if (changed_) cudaSetDevice(previous_);
    }
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;

  private:
    int previous_ = 0;
    bool changed_ = false;
};

constexpr int kFreeSmemBytes = 48 * 1024;  // what a block may have without asking

// Lets kKernel have `bytes` of dynamic shared memory on the current device, number `device`.
template <auto kKernel>
bool allow_smem(Arguments& in, int device, int bytes) {
    // Bit i: allowed on device i, which is remembered since asking takes about a microsecond. Two
    // threads may both ask, which does no harm. Devices from 64 on are asked for at every launch.
    static uint64_t allowed = 0;
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
    if (__atomic_load_n(&allowed, __ATOMIC_RELAXED) & bit) return true;
    const cudaError_t error =
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (!check_cuda(in, error, "shared memory")) return false;
    __atomic_fetch_or(&allowed, bit, __ATOMIC_RELAXED);
    return true;
}

// The stream that the call's work goes to.
inline cudaStream_t current_stream(Device device) {
    return static_cast<cudaStream_t>(stream_of(device));
}

// Multiprocessors of `device`: as many thread blocks stay where each of them has one.
inline bool count_multiprocessors(Arguments& in, Device device, int& count) {
    return check_cuda(
        in, cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.device_id),
        "multiprocessors");
}

constexpr int64_t kMaxGrid = 2147483647;  // blocks in x; CUDA C++ Programming Guide, 3.0 and up

struct Grid {
    int64_t blocks;  // in x; of 0 blocks nothing is launched, which CUDA would refuse
    int threads;
    int smem_bytes;  // dynamic, the same in every launch of a kernel
};

// Whether kKernel can be launched so on `device`, which is the current device; else the call fails.
template <auto kKernel>
bool check_grid(Arguments& in, Device device, const Grid& grid) {
    if (grid.blocks > kMaxGrid) {
        in.fail("ValueError", "%s: expected at most %lld thread blocks of one kernel, got %lld",
                in.function(), static_cast<long long>(kMaxGrid),
                static_cast<long long>(grid.blocks));
        return false;
    }
    return grid.smem_bytes <= kFreeSmemBytes ||
           allow_smem<kKernel>(in, device.device_id, grid.smem_bytes);
}

// Launches kKernel(p) on the current stream of `device`, which is the current device. Not <<<>>>,
// which hides its own error among those that earlier calls left behind.
template <auto kKernel, typename Params>
bool launch_kernel(Arguments& in, Device device, const Grid& grid, const Params& p) {
    if (grid.blocks == 0) return true;
    if (!check_grid<kKernel>(in, device, grid)) return false;
    void* args[] = {const_cast<Params*>(&p)};
    const cudaError_t error =
        cudaLaunchKernel(kKernel, dim3(static_cast<unsigned>(grid.blocks)),
                         dim3(static_cast<unsigned>(grid.threads)), args,
                         static_cast<size_t>(grid.smem_bytes), current_stream(device));
    return check_cuda(in, error, "launch");
}

// Requires what 16-byte copies need: an aligned base and strides in multiples of 8 elements.
inline void check_alignment(Arguments& in, const char* name, const Tensor& t) {
    bool aligned = reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
    for (int i = 0; i < 3; ++i) aligned = aligned && (t.shape[i] <= 1 || t.strides[i] % 8 == 0);
    if (in.ok() && !aligned) {
        in.fail("ValueError", "%s: %s: expected 16-byte aligned rows", in.function(), name);
    }
}

constexpr double kLog2E = 1.4426950408889634;

// The factor of the scores in the kernels' exponentials, which are powers of two. A positive scale
// stays one in fp32 (FLT_MIN at least): a hidden key's -inf times 0 would be NaN.
inline float log2_scale(double softmax_scale) {
    return static_cast<float>(max(softmax_scale * kLog2E, 1.17549435e-38));
}

}  // namespace flashgen
