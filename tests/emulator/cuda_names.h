// CUDA's own names on the emulator: what every thread may call, and the runtime's host functions.
#pragma once

#include "launch.h"

#define threadIdx (emu::Index{emu::current->index, 0, 0})
#define blockIdx (emu::Index{emu::block_index, 0, 0})
#define blockDim (emu::Index{static_cast<unsigned>(emu::block.fibers.size()), 1, 1})
#define gridDim (emu::Index{emu::grid_size, 1, 1})

// ---- Of a thread ----
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}
inline size_t __cvta_generic_to_shared(const void* p) {
    return static_cast<const uint8_t*>(p) - emu::block.smem + emu::kSmemBase;
}
template <typename T>
T atomicAdd(T* place, std::common_type_t<T> value) {
    const T before = *place;
    *place += value;
    return before;
}
template <typename T>
T atomicMax(T* place, std::common_type_t<T> value) {
    const T before = *place;
    *place = std::max(before, value);
    return before;
}
inline float __int_as_float(int x) { return emu::from_bits<float>(static_cast<uint32_t>(x)); }
inline long long __float2ll_rn(float x) { return llrintf(x); }
inline float __uint_as_float(uint32_t x) { return emu::from_bits<float>(x); }
inline uint32_t __float_as_uint(float x) { return static_cast<uint32_t>(emu::bits_of(x)); }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
    const uint64_t both = uint64_t{y} << 32 | x;
    uint32_t found = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t pick = selector >> (4 * i) & 15;
        uint32_t byte = both >> (8 * (pick & 7)) & 0xff;
        if (pick & 8) byte = byte & 0x80 ? 0xff : 0;
        found |= byte << (8 * i);
    }
    return found;
}

// ---- Of a warp ----
inline void __syncthreads() { emu::named(0, static_cast<int>(emu::block.fibers.size()), true); }
inline void __syncwarp() { emu::exchange("__syncwarp", 0); }
template <typename T>
T __shfl_sync(uint32_t, T x, int lane) {
    return emu::from_bits<T>(emu::exchange("__shfl_sync", emu::bits_of(x))[lane % emu::kLanes]);
}
template <typename T>
T __shfl_xor_sync(uint32_t, T x, int mask) {
    const int lane = emu::current->index % emu::kLanes ^ mask;
    return emu::from_bits<T>(emu::exchange("__shfl_xor_sync", emu::bits_of(x))[lane]);
}
inline uint32_t __ballot_sync(uint32_t, bool x) {
    const uint64_t* all = emu::exchange("__ballot_sync", x);
    uint32_t found = 0;
    for (int i = 0; i < emu::kLanes; ++i) found |= static_cast<uint32_t>(all[i]) << i;
    return found;
}
inline bool __any_sync(uint32_t mask, bool x) { return __ballot_sync(mask, x) != 0; }
inline bool __all_sync(uint32_t mask, bool x) { return __ballot_sync(mask, x) == ~0u; }
inline uint32_t __reduce_or_sync(uint32_t, uint32_t x) {
    const uint64_t* all = emu::exchange("__reduce_or_sync", x);
    uint32_t found = 0;
    for (int i = 0; i < emu::kLanes; ++i) found |= static_cast<uint32_t>(all[i]);
    return found;
}
inline uint32_t __reduce_max_sync(uint32_t, uint32_t x) {
    const uint64_t* all = emu::exchange("__reduce_max_sync", x);
    uint64_t found = 0;
    for (int i = 0; i < emu::kLanes; ++i) found = std::max(found, all[i]);
    return static_cast<uint32_t>(found);
}

// ---- Of the host ----
constexpr int kEmulatedMultiprocessors = 3;

template <typename Params>
cudaError_t cudaLaunchKernel(void (*kernel)(Params), dim3 grid, dim3 threads, void** args,
                             size_t smem_bytes, cudaStream_t) {
    return emu::launch(kernel, grid, threads, *static_cast<Params*>(args[0]), smem_bytes);
}
template <typename Params>
cudaError_t emulated_launch(const cudaLaunchConfig_t* config, void (*kernel)(Params),
                            const Params& params) {
    const auto [grid, threads, smem_bytes, stream, attributes, count] = *config;
    return emu::launch(kernel, grid, threads, params, smem_bytes);
}
#define cudaLaunchKernelEx emulated_launch
template <typename Kernel>
cudaError_t emulated_attribute(Kernel, cudaFuncAttribute, int) {
    return cudaSuccess;
}
#define cudaFuncSetAttribute emulated_attribute

template <typename T>
inline cudaError_t emulated_address(void** address, T& symbol) {
    *address = &symbol;
    return cudaSuccess;
}
#define cudaGetSymbolAddress emulated_address

extern "C" {
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return emu::message; }
inline const char* cudaGetErrorName(cudaError_t) { return "emulated"; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
    return *value = kEmulatedMultiprocessors, cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
    return memset(data, value, bytes), cudaSuccess;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** entry, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult* status) {
    *entry = reinterpret_cast<void*>(&emu::encode);
    return *status = cudaDriverEntryPointSuccess, cudaSuccess;
}
}
extern "C" __attribute__((visibility("default"), used)) inline void emulate_late(int on) {
    emu::late = on != 0;
}
extern "C" __attribute__((visibility("default"), used)) inline void emulate_residents(int count,
                                                                                      int seed) {
    emu::residents = static_cast<unsigned>(count);
    emu::draw = static_cast<unsigned>(seed);
}
