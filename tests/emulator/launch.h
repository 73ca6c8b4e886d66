// Running a kernel: its thread blocks one after another, their threads in turns.
#pragma once

#include "units.h"

namespace emu {

// ---- A launch ----
inline void run_block() {
    const int patience = 64;  // rounds in which nothing happens
    int idle = 0;
    while (!block.failed) {
        const uint64_t before = block.progress;
        bool all_done = true;
        for (Fiber& fiber : block.fibers) {
            if (fiber.done) continue;
            all_done = false;
            current = &fiber;
            flashgen_emu_switch(&scheduler, fiber.stack_pointer);
            current = nullptr;
            if (block.failed) return;
        }
        if (all_done) break;
        idle = block.progress == before ? idle + 1 : 0;
        if (idle > 0 && !block.copies.empty()) {
            perform(block.copies.front());
            block.copies.pop_front();
        }
        if (idle > patience) {
            for (Fiber& fiber : block.fibers) {
                if (fiber.done) continue;
                snprintf(message, sizeof(message), "block %u hangs: thread %u waits for %s",
                         block_index, fiber.index, fiber.waits_for);
                break;
            }
            block.failed = true;
        }
    }
    if (!block.failed && !block.copies.empty()) fail("copies under way at the end");
    for (int id = 0; id < 16 && !block.failed; ++id) {
        if (block.named[id].arrived != 0) fail("a named barrier that others wait for", id);
    }
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
    std::vector<uint8_t> memory(smem_bytes + 1024);
    for (block_index = 0; block_index < grid_size; ++block_index) {
        block = Block();
        memset(memory.data(), 0xff, memory.size());  // NaNs
        block.smem = memory.data() + (1024 - reinterpret_cast<uintptr_t>(memory.data()) % 1024);
        block.smem_bytes = static_cast<int>(smem_bytes);
        block.warps.resize(threads.x / kLanes);
        block.fibers.resize(threads.x);
        pending.assign(threads.x, {});
        for (unsigned i = 0; i < threads.x; ++i) {
            Fiber& fiber = block.fibers[i];
            fiber.index = i;
            fiber.stack.resize(kStackBytes);
            uintptr_t top = reinterpret_cast<uintptr_t>(fiber.stack.data() + kStackBytes) & ~15ull;
            void** frame = reinterpret_cast<void**>(top) - 8;
            frame[6] = reinterpret_cast<void*>(&fiber_main);
            frame[7] = nullptr;
            fiber.stack_pointer = frame;
        }
        run_block();
        if (block.failed) return cudaErrorLaunchFailure;
    }
    return cudaSuccess;
}

struct Index {
    unsigned x, y, z;
};

}  // namespace emu
