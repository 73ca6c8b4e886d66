// A thread block on the CPU: what rendered CUDA needs to run as C++, without a GPU.
//
// Every thread is a fiber; they take turns wherever one waits. Warps exchange values when all 32
// lanes are there. Barriers, tensor maps, bulk copies and wgmma do what the PTX manual says, and
// what it forbids ends the launch with a message: a lane that is missing from a warp's exchange, an
// arrival too many, a map with a stride that hardware refuses, a wait that nobody ends.
//
// Asynchronous work is done as early as possible or as late as possible, by `late`: right code
// gives the same either way.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

namespace emu {

constexpr int kLanes = 32;
constexpr uint32_t kSmemBase = 4096;  // no address is 0
constexpr int kStackBytes = 256 * 1024;

// ---- Fibers ----
struct Fiber {
    void* stack_pointer = nullptr;
    unsigned index = 0;
    bool done = false;
    const char* waits_for = "";
    bool unfenced = false;  // wrote to shared memory what wgmma and bulk copies may not see yet
    std::unique_ptr<uint8_t[]> stack;
};

extern "C" void flashgen_emu_switch(void** from, void* to);
asm(R"(
.text
.local flashgen_emu_switch
.type flashgen_emu_switch, @function
flashgen_emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

struct WarpExchange {
    uint64_t values[2][kLanes];
    const char* kinds[2][kLanes];
    int arrived = 0;
    unsigned phase = 0;
};
struct Mbarrier {
    int count = 0, pending = 0;
    int64_t bytes = 0;
    unsigned phase = 0;
};
struct NamedBarrier {
    int arrived = 0;
    unsigned phase = 0;
};
struct Copy {
    const CUtensorMap* map;
    uint32_t smem, barrier;
    int coordinates[4];
};

struct Addition {
    unsigned thread;
    float* gmem;
    uint32_t smem;
    int bytes;
};

struct Stores {  // what a thread has had copied out of shared memory, until it waits for that
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
};

struct Block {
    std::vector<Fiber> fibers;
    std::vector<WarpExchange> warps;
    std::map<uint32_t, Mbarrier> mbarriers;
    NamedBarrier named[16];
    std::deque<Copy> copies;
    std::deque<Addition> additions;
    std::map<unsigned, Stores> stores;  // by thread
    uint8_t* smem = nullptr;
    int smem_bytes = 0;
    uint64_t progress = 0;
    bool failed = false;
};

inline Block block;
inline Fiber* current = nullptr;
inline void* scheduler = nullptr;
inline unsigned block_index = 0, grid_size = 0;
inline bool late = false;
inline char message[512];
inline void (*body)(const void*) = nullptr;
inline const void* body_params = nullptr;

[[gnu::noinline]] inline void yield() { flashgen_emu_switch(&current->stack_pointer, scheduler); }

[[gnu::noinline]] inline void fail(const char* what, int64_t value = 0) {
    if (!block.failed) {
        snprintf(message, sizeof(message), "block %u thread %u: %s (%lld)", block_index,
                 current == nullptr ? 0 : current->index, what, static_cast<long long>(value));
    }
    block.failed = true;
    while (current != nullptr) yield();
}

template <typename Ready>
void wait_for(const char* what, Ready ready) {
    while (!ready()) {
        current->waits_for = what;
        yield();
    }
    current->waits_for = "";
}

inline void fiber_main() {
    body(body_params);
    current->done = true;
    ++block.progress;
    while (true) yield();
}

// ---- A warp ----
inline WarpExchange& warp() { return block.warps[current->index / kLanes]; }

// Gives every lane's value; all lanes of a warp call the same.
[[gnu::noinline]] inline const uint64_t* exchange(const char* kind, uint64_t value) {
    WarpExchange& w = warp();
    const unsigned phase = w.phase;
    const int lane = current->index % kLanes;
    w.values[phase % 2][lane] = value;
    w.kinds[phase % 2][lane] = kind;
    if (++w.arrived == kLanes) {
        for (int i = 0; i < kLanes; ++i) {
            if (strcmp(w.kinds[phase % 2][i], kind) != 0) fail("lanes are at different exchanges");
        }
        w.arrived = 0;
        ++w.phase;
        ++block.progress;
    } else {
        wait_for(kind, [&] { return w.phase != phase; });
    }
    return w.values[phase % 2];
}

template <typename T>
uint64_t bits_of(T x) {
    static_assert(sizeof(T) <= 8);
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof(T));
    return bits;
}
template <typename T>
T from_bits(uint64_t bits) {
    T x;
    memcpy(&x, &bits, sizeof(T));
    return x;
}

// ---- Shared memory ----
constexpr int kStaticBytes = 48 * 1024;  // behind what a launch asks for
inline uint8_t* block_smem() { return block.smem; }
inline uint8_t* static_smem() { return block.smem + block.smem_bytes - kStaticBytes; }

inline uint8_t* at(uint32_t address, int bytes) {
    const int64_t offset = int64_t{address} - kSmemBase;
    if (offset < 0 || offset + bytes > block.smem_bytes) fail("outside shared memory", offset);
    if (address % bytes != 0 && bytes <= 16) fail("misaligned shared memory", offset);
    return block.smem + offset;
}
inline uint8_t* writable(uint32_t address, int bytes) {
    current->unfenced = true;
    return at(address, bytes);
}

// ---- Barriers ----
inline Mbarrier& mbarrier(uint32_t address) {
    const auto found = block.mbarriers.find(address);
    if (found == block.mbarriers.end()) fail("a barrier that nobody made", address - kSmemBase);
    return found->second;
}
inline void end_phase(Mbarrier& barrier) {
    if (barrier.pending == 0 && barrier.bytes == 0) {
        ++barrier.phase;
        barrier.pending = barrier.count;
        ++block.progress;
    }
}
inline void init(uint32_t address, int count) {
    at(address, 8);
    block.mbarriers[address] = {count, count, 0, 0};
}
inline void arrive(uint32_t address, int64_t bytes = 0) {
    Mbarrier& barrier = mbarrier(address);
    if (barrier.pending == 0) fail("an arrival too many", address - kSmemBase);
    if (current->unfenced) fail("an arrival before fence.proxy.async", address - kSmemBase);
    barrier.bytes += bytes;
    --barrier.pending;
    end_phase(barrier);
}
inline void complete(uint32_t address, int64_t bytes) {
    Mbarrier& barrier = mbarrier(address);
    barrier.bytes -= bytes;
    end_phase(barrier);
}
inline bool has_ended(uint32_t address, uint32_t parity) {
    if (parity > 1) fail("a parity that is neither 0 nor 1", parity);
    if (mbarrier(address).phase % 2 != parity) return true;
    current->waits_for = "an mbarrier";
    yield();
    return false;
}
inline void named(int id, int threads, bool sync) {
    NamedBarrier& barrier = block.named[id];
    const unsigned phase = barrier.phase;
    if (++barrier.arrived == threads) {
        barrier.arrived = 0;
        ++barrier.phase;
        ++block.progress;
    } else if (barrier.arrived > threads) {
        fail("too many threads at a named barrier", id);
    } else if (sync) {
        wait_for("a named barrier", [&] { return barrier.phase != phase; });
    }
}

}  // namespace emu
