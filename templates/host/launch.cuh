// Launching kernels from an exported function: stream, device, limits, errors.
#pragma once

#include <cuda_runtime.h>

#include "host/abi.h"

namespace flashgen {

// Sets the call's exception from a CUDA error; true where there was none.
inline bool check_cuda(Arguments& in, cudaError_t error, const char* what) {
    if (error == cudaSuccess) return true;
    in.fail("RuntimeError", "%s: %s: %s (%s)", in.function(), what, cudaGetErrorString(error),
            cudaGetErrorName(error));
    return false;
}

// Makes the tensors' device the current one for as long as it lives.
class DeviceGuard {
  public:
    explicit DeviceGuard(int device) {
        if (cudaGetDevice(&previous_) == cudaSuccess && previous_ != device) {
            changed_ = cudaSetDevice(device) == cudaSuccess;
        }
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

// Lets a kernel ask for more dynamic shared memory than the 48 KiB that it has without asking.
template <typename Kernel>
bool allow_smem(Arguments& in, Kernel* kernel, int bytes) {
    return check_cuda(
        in, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "shared memory");
}

// The stream that PyTorch has current on that device.
inline cudaStream_t current_stream(DLDevice device) {
    return static_cast<cudaStream_t>(
        TVMFFIEnvGetStream(static_cast<int32_t>(device.device_type), device.device_id));
}

// Requires what 16-byte copies need: an aligned base and strides in multiples of 8 elements.
inline void check_alignment(Arguments& in, const char* name, const Tensor& t) {
    bool aligned = reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
    for (int i = 0; i < 3; ++i) aligned = aligned && (t.shape[i] <= 1 || t.strides[i] % 8 == 0);
    if (in.ok() && !aligned) {
        in.fail("ValueError", "%s: %s: expected 16-byte aligned rows", in.function(), name);
    }
}

constexpr double kLog2E = 1.4426950408889634;  // the kernels' exponentials are powers of two
constexpr int64_t kMaxGrid = 2147483647;  // blocks in x; CUDA C++ Programming Guide, 3.0 and up

}  // namespace flashgen
