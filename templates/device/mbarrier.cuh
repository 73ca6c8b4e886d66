// Barriers of sm90: mbarriers in shared memory, which copies and threads complete, named barriers
// of the hardware, and the registers that a warpgroup has.
#pragma once

#include <stdint.h>

namespace flashgen {

// An mbarrier: 8 bytes of shared memory. A phase ends when `count` arrivals and all announced bytes
// have come; wait(parity) returns once the phase of that parity has ended. A fresh barrier is in
// phase 0, so wait(1) returns at once.
struct Barrier {
    static constexpr int kBytes = 8;
    uint32_t address;  // in shared memory

    __device__ __forceinline__ void init(int count) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(address), "r"(count)
                     : "memory");
    }
    __device__ __forceinline__ void arrive() const {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(address) : "memory");
    }
    // Arrives, and announces bytes that copies will bring in this phase.
    __device__ __forceinline__ void arrive_expecting(int bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(address),
                     "r"(bytes)
                     : "memory");
    }
    // Arrives once this thread's cp_async copies so far have landed.
    __device__ __forceinline__ void arrive_after_copies() const {
        asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(address)
                     : "memory");
    }
    __device__ __forceinline__ void wait(uint32_t parity) const {
        while (!has_ended(parity)) {
        }
    }

  private:
    // Sleeps for a while of the hardware's choice where the phase goes on.
    __device__ __forceinline__ bool has_ended(uint32_t parity) const {
        uint32_t ended;
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}\n"
            : "=r"(ended)
            : "r"(address), "r"(parity)
            : "memory");
        return ended != 0;
    }
};

// Makes fresh mbarriers known to copies; __syncthreads() makes them known to threads.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

// Makes this thread's writes to shared memory visible to wgmma and to bulk copies, once a barrier
// has told these that the fence is done.
__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Stages that a producer fills and consumers empty in turn, each with a full and an empty barrier.
// Both sides hold a Ring of their own and step through it.
template <int kStages>
struct Ring {
    int stage = 0;
    uint32_t parity = 0;  // of the phase that a consumer waits for; the producer's is the other

    __device__ __forceinline__ void next() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// Named barriers: `threads` in all, whole warps, of which some sync and some merely arrive.
__device__ __forceinline__ void named_sync(int id, int threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("barrier.cta.arrive.aligned %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

// What a thread of this warpgroup may use from here on; whole warpgroups must execute it.
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

}  // namespace flashgen
