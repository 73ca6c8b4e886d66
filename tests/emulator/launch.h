// Running a kernel: its thread blocks one after another, or some at once; threads in turns.
#pragma once

#include "units.h"

namespace emu {

// ---- A launch ----
// Thread blocks that run at once, and what draws which of them goes on, for how long.
inline unsigned residents = 1, draw = 0;

// A thread block while others have theirs in `block`, `pending` and `block_index`.
struct Resident {
    Block block;
    std::vector<Warpgroup> pending;
    unsigned index = 0;
    std::vector<uint8_t> memory;

    // Takes the globals' place, or gives it back.
    void swap_in() {
        std::swap(emu::block, block);
        std::swap(emu::pending, pending);
        block_index = index;
    }
};

inline void begin_block(Resident& resident, unsigned index, unsigned threads, size_t smem_bytes) {
    resident.index = index;
    resident.memory.resize(smem_bytes + 1024);
    memset(resident.memory.data(), 0xff, resident.memory.size());  // NaNs
    Block& one = resident.block = Block();
    const uintptr_t start = reinterpret_cast<uintptr_t>(resident.memory.data());
    one.smem = resident.memory.data() + (1024 - start % 1024);
    one.smem_bytes = static_cast<int>(smem_bytes);
    one.warps.resize(threads / kLanes);
    one.fibers.resize(threads);
    resident.pending.assign(threads, {});
    for (unsigned i = 0; i < threads; ++i) {
        Fiber& fiber = one.fibers[i];
        fiber.index = i;
        fiber.stack.reset(new uint8_t[kStackBytes]);  // not zeroed: few of its pages are touched
        uintptr_t top = reinterpret_cast<uintptr_t>(fiber.stack.get() + kStackBytes) & ~15ull;
        void** frame = reinterpret_cast<void**>(top) - 8;
        frame[6] = reinterpret_cast<void*>(&fiber_main);
        frame[7] = nullptr;
        fiber.stack_pointer = frame;
    }
}

// Lets every thread of the block in place go on once; whether there was any.
inline bool run_threads() {
    bool any = false;
    for (Fiber& fiber : block.fibers) {
        if (fiber.done) continue;
        any = true;
        current = &fiber;
        flashgen_emu_switch(&scheduler, fiber.stack_pointer);
        current = nullptr;
        if (block.failed) return true;
    }
    return any;
}

inline void report_hang() {
    for (Fiber& fiber : block.fibers) {
        if (fiber.done) continue;
        snprintf(message, sizeof(message), "block %u hangs: thread %u waits for %s", block_index,
                 fiber.index, fiber.waits_for);
        break;
    }
    block.failed = true;
}

inline void check_end() {
    if (!block.copies.empty() || !block.additions.empty()) fail("copies under way at the end");
    for (const auto& [thread, own] : block.stores) {
        if (!own.groups.empty()) fail("stores under way at the end", thread);
    }
    for (int id = 0; id < 16 && !block.failed; ++id) {
        if (block.named[id].arrived != 0) fail("a named barrier that others wait for", id);
    }
}

// Runs the block in place for a while; whether it has ended. `idle` counts rounds in a row in which
// nothing happened, in any block.
inline bool run_block(int& idle) {
    const int patience = 64 * static_cast<int>(residents);
    draw = draw * 1664525 + 1013904223;
    for (unsigned rounds = residents == 1 ? ~0u : 1 + (draw >> 16) % 512; rounds > 0; --rounds) {
        const uint64_t before = block.progress;
        if (!run_threads()) {
            idle = 0;
            check_end();
            return true;
        }
        if (block.failed) return false;
        const bool waits = block.progress == before;
        idle = waits ? idle + 1 : 0;
        if (waits && !block.copies.empty()) {
            perform(block.copies.front());
            block.copies.pop_front();
        }
        if (idle > patience) report_hang();
        if (block.failed || (waits && residents > 1)) return false;
    }
    return false;
}

template <typename Params>
cudaError_t launch(void (*kernel)(Params), dim3 grid, dim3 threads, const Params& params,
                   size_t smem_bytes) {
    static void (*target)(Params);
    target = kernel;
    body = [](const void* p) { target(*static_cast<const Params*>(p)); };
    body_params = &params;
    grid_size = grid.x;
    smem_bytes = (smem_bytes + 1023) / 1024 * 1024 + kStaticBytes;
    unsigned next = 0;
    std::vector<Resident> running(std::min(residents, grid_size));
    for (Resident& one : running) begin_block(one, next++, threads.x, smem_bytes);
    for (int idle = 0; !running.empty();) {
        Resident& one = running[(draw >> 8) % running.size()];
        one.swap_in();
        const bool ended = run_block(idle);
        const bool failed = block.failed;
        one.swap_in();
        if (failed) return cudaErrorLaunchFailure;
        if (!ended) continue;
        if (next < grid_size) {
            begin_block(one, next++, threads.x, smem_bytes);
        } else {
            running.erase(running.begin() + (&one - running.data()));
        }
    }
    return cudaSuccess;
}

struct Index {
    unsigned x, y, z;
};

}  // namespace emu
