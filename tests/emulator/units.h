// What a thread block hands its work to: tensor cores, and the engine of bulk copies.
#pragma once

#include "block.h"

namespace emu {

// ---- Elements ----
inline float widen(uint16_t bits, bool bf16) {
    if (bf16) return from_bits<float>(uint64_t{bits} << 16);
    return static_cast<float>(from_bits<_Float16>(bits));
}
inline uint16_t narrow(float x, bool bf16) {
    if (!bf16) return static_cast<uint16_t>(bits_of(static_cast<_Float16>(x)));
    const uint32_t bits = static_cast<uint32_t>(bits_of(x));
    if (x != x) return 0x7fff;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline uint32_t pack(float lo, float hi, bool bf16) {
    return narrow(lo, bf16) | static_cast<uint32_t>(narrow(hi, bf16)) << 16;
}

// ---- Tensor maps and bulk copies ----
struct Map {  // what a CUtensorMap holds
    uint8_t* data;
    uint64_t sizes[4], strides[4];  // elements, bytes
    uint32_t box[2];
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

inline CUresult encode(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* data,
                       const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                       const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    bool ok = rank == 4 && swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] * 2 <= 128;
    ok = ok && reinterpret_cast<uintptr_t>(data) % 16 == 0 && data != nullptr;
    Map made = {static_cast<uint8_t*>(data), {}, {2}, {box[0], box[1]}};
    for (int i = 0; i < 4; ++i) {
        ok = ok && sizes[i] >= 1 && sizes[i] <= uint64_t{1} << 32;
        ok = ok && box[i] >= 1 && box[i] <= 256 && steps[i] == 1 && (i < 2 || box[i] == 1);
        made.sizes[i] = sizes[i];
        if (i == 0) continue;
        ok = ok && strides[i - 1] % 16 == 0 && strides[i - 1] >= 16 &&
             strides[i - 1] < uint64_t{1} << 40;
        made.strides[i] = strides[i - 1];
    }
    memset(map, 0, sizeof(*map));
    memcpy(map, &made, sizeof(made));
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// part(in shared memory, in global memory or null beyond the tensor) of each element of a box.
template <typename Part>
void for_each_element(const Copy& copy, const Map& map, Part part) {
    uint8_t* box = at(copy.smem, map.box[1] * 128);
    for (uint32_t row = 0; row < map.box[1]; ++row) {
        for (uint32_t col = 0; col < map.box[0]; ++col) {
            const int64_t place[4] = {copy.coordinates[0] + int64_t{col},
                                      copy.coordinates[1] + int64_t{row}, copy.coordinates[2],
                                      copy.coordinates[3]};
            bool inside = true;
            int64_t offset = 0;
            for (int i = 0; i < 4; ++i) {
                inside = inside && place[i] >= 0 && place[i] < static_cast<int64_t>(map.sizes[i]);
                offset += place[i] * static_cast<int64_t>(map.strides[i]);
            }
            const uint32_t chunk = (col / 8) ^ (row % 8);
            part(box + row * 128 + chunk * 16 + col % 8 * 2, inside ? map.data + offset : nullptr);
        }
    }
}
inline Map map_of(const Copy& copy) {
    Map map;
    memcpy(&map, copy.map, sizeof(map));
    return map;
}

inline void perform(const Copy& copy) {
    const Map map = map_of(copy);
    for_each_element(copy, map, [](uint8_t* smem, const uint8_t* gmem) {
        if (gmem != nullptr) {
            memcpy(smem, gmem, 2);
        } else {
            memset(smem, 0, 2);
        }
    });
    complete(copy.barrier, int64_t{map.box[1]} * 128);
}
inline void load_box(uint32_t smem, const CUtensorMap* map, uint32_t barrier, int col, int row,
                     int head, int batch) {
    if (smem % 1024 != 0) fail("a box that is not 1024-byte aligned", smem);
    const Copy copy = {map, smem, barrier, {col, row, head, batch}};
    ++block.progress;
    if (late) {
        block.copies.push_back(copy);
    } else {
        perform(copy);
    }
}

// Stores: done as early or as late as their thread waits for them.
inline void perform_store(const Copy& copy) {
    for_each_element(copy, map_of(copy), [](const uint8_t* smem, uint8_t* gmem) {
        if (gmem != nullptr) memcpy(gmem, smem, 2);
    });
}
inline void store_box(uint32_t smem, const CUtensorMap* map, int col, int row, int head,
                      int batch) {
    if (smem % 1024 != 0) fail("a box that is not 1024-byte aligned", smem);
    if (current->unfenced) fail("a store before fence.proxy.async");
    const Copy copy = {map, smem, 0, {col, row, head, batch}};
    if (late) {
        block.stores[current->index].open.push_back(copy);
    } else {
        perform_store(copy);
    }
}
inline void commit_stores() {
    Stores& own = block.stores[current->index];
    own.groups.push_back(std::move(own.open));
    own.open.clear();
}
inline void await_stores(size_t allowed) {
    Stores& own = block.stores[current->index];
    while (own.groups.size() > allowed) {
        for (const Copy& copy : own.groups.front()) perform_store(copy);
        own.groups.pop_front();
    }
}

// Adds floats of shared memory to global memory, as early or as late as wait_for_bulk().
inline void perform(const Addition& addition) {
    for (int i = 0; i < addition.bytes / 4; ++i) {
        float value;
        memcpy(&value, at(addition.smem + i * 4, 4), 4);
        addition.gmem[i] += value;
    }
}
inline void add_bulk(float* gmem, uint32_t smem, int bytes) {
    if (smem % 16 != 0 || reinterpret_cast<uintptr_t>(gmem) % 16 != 0) {
        fail("a bulk addition that is not 16-byte aligned", smem);
    }
    const Addition addition = {current->index, gmem, smem, bytes};
    ++block.progress;
    if (late) {
        block.additions.push_back(addition);
    } else {
        perform(addition);
    }
}
inline void wait_for_bulk() {
    std::deque<Addition> others;
    for (const Addition& addition : block.additions) {
        if (addition.thread == current->index) {
            perform(addition);
        } else {
            others.push_back(addition);
        }
    }
    block.additions.swap(others);
    ++block.progress;
}

// ---- wgmma ----
struct Wgmma {
    float* acc;
    int blocks;
    const uint32_t* a_registers;  // or null
    uint64_t a, b;
    bool accumulate, a_transposed, transposed, bf16;
};
struct Warpgroup {  // of one lane: products that it has not executed
    std::vector<Wgmma> open;
    std::deque<std::vector<Wgmma>> groups;
};
inline std::vector<Warpgroup> pending;

// Element (row, k) or, transposed, (k, column) of an operand in shared memory.
inline float element(uint64_t descriptor, int outer, int k, bool transposed, bool bf16) {
    const uint32_t base = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
    const uint32_t leading = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
    const uint32_t stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) fail("not a 128-byte swizzle");
    const uint32_t byte =
        transposed ? base + outer / 64 * leading + k / 8 * stride + k % 8 * 128 + outer % 64 * 2
                   : base + outer / 8 * stride + outer % 8 * 128 + k * 2;
    const uint32_t swizzled = byte ^ (byte >> 7 & 7) << 4;
    uint16_t bits;
    memcpy(&bits, at(swizzled, 2), 2);
    return widen(bits, bf16);
}

inline void execute(const Wgmma& op) {
    const int lane = current->index % kLanes, warp_row = current->index / kLanes % 4 * 16;
    const uint64_t* registers = exchange("wgmma", bits_of(op.a_registers));
    float a[2][16];
    for (int r = 0; r < 2; ++r) {
        for (int k = 0; k < 16; ++k) {
            if (op.a_registers == nullptr) {
                a[r][k] =
                    element(op.a, warp_row + lane / 4 + 8 * r, k, op.a_transposed, op.bf16);
                continue;
            }
            const auto* peer = from_bits<const uint32_t*>(registers[lane / 4 * 4 + k % 8 / 2]);
            a[r][k] = widen(static_cast<uint16_t>(peer[k / 8 * 2 + r] >> (k % 2 * 16)), op.bf16);
        }
    }
    for (int n = 0; n < op.blocks; ++n) {
        for (int c = 0; c < 2; ++c) {
            float sums[2] = {};
            for (int k = 0; k < 16; ++k) {
                const float b = element(op.b, n * 8 + lane % 4 * 2 + c, k, op.transposed, op.bf16);
                sums[0] += a[0][k] * b;
                sums[1] += a[1][k] * b;
            }
            for (int r = 0; r < 2; ++r) {
                float& acc = op.acc[n * 4 + r * 2 + c];
                acc = (op.accumulate ? acc : 0.0f) + sums[r];
            }
        }
    }
    exchange("wgmma's end", 0);
}

inline void wgmma(const Wgmma& op) {
    if (current->unfenced) fail("wgmma before fence.proxy.async");
    if (op.blocks < 1 || op.blocks > 32) fail("a width that wgmma has not", op.blocks);
    if (late) {
        pending[current->index].open.push_back(op);
    } else {
        execute(op);
    }
}
inline void wgmma_commit() {
    Warpgroup& own = pending[current->index];
    own.groups.push_back(std::move(own.open));
    own.open.clear();
}
inline void wgmma_wait(size_t allowed) {
    Warpgroup& own = pending[current->index];
    while (own.groups.size() > allowed) {
        const std::vector<Wgmma> group = std::move(own.groups.front());
        own.groups.pop_front();
        for (const Wgmma& op : group) execute(op);
    }
}

// ---- Instructions of a warp ----
// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
inline void ldmatrix(uint32_t (&r)[4], uint32_t address, bool transposed) {
    const uint64_t* rows = exchange("ldmatrix", address);
    const int lane = current->index % kLanes;
    for (int i = 0; i < 4; ++i) {
        for (int half = 0; half < 2; ++half) {
            const int row = transposed ? lane % 4 * 2 + half : lane / 4;
            const int col = transposed ? lane / 4 : lane % 4 * 2 + half;
            uint16_t bits;
            memcpy(&bits, at(static_cast<uint32_t>(rows[8 * i + row]), 16) + col * 2, 2);
            r[i] = half == 0 ? bits : r[i] | static_cast<uint32_t>(bits) << 16;
        }
    }
}

// Stores such matrices.
inline void stmatrix(uint32_t address, const uint32_t (&r)[4]) {
    const uint64_t* rows = exchange("stmatrix", address);
    const int lane = current->index % kLanes;
    for (int i = 0; i < 4; ++i) {
        const auto row = static_cast<uint32_t>(rows[8 * i + lane / 4]);
        at(row, 16);
        memcpy(writable(row + lane % 4 * 4, 4), &r[i], 4);
    }
}

// Stores such matrices transposed: a lane's elements are two rows of a column.
inline void stmatrix_trans(uint32_t address, const uint32_t (&r)[4]) {
    const uint64_t* rows = exchange("stmatrix", address);
    const int lane = current->index % kLanes;
    for (int i = 0; i < 4; ++i) {
        for (int half = 0; half < 2; ++half) {
            const auto row = static_cast<uint32_t>(rows[8 * i + lane % 4 * 2 + half]);
            const auto bits = static_cast<uint16_t>(r[i] >> 16 * half);
            at(row, 16);
            memcpy(writable(row + lane / 4 * 2, 2), &bits, 2);
        }
    }
}

// acc[16, 8] += a[16, 16] @ b[16, 8], as mma.m16n8k16 has them in its lanes.
inline void mma(float (&acc)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bf16) {
    struct Operands {
        const uint32_t* a;
        uint32_t b[2];
    };
    const Operands own = {a, {b0, b1}};
    const uint64_t* all = exchange("mma", bits_of(&own));
    const int lane = current->index % kLanes;
    for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 16; ++k) {
            const auto* left = from_bits<const Operands*>(all[lane / 4 * 4 + k % 8 / 2]);
            const int column = lane % 4 * 2 + i % 2;
            const auto* right = from_bits<const Operands*>(all[column * 4 + k % 8 / 2]);
            const uint32_t x = left->a[k / 8 * 2 + i / 2] >> (k % 2 * 16) & 0xffff;
            const uint32_t y = right->b[k / 8] >> (k % 2 * 16) & 0xffff;
            acc[i] += widen(x, bf16) * widen(y, bf16);
        }
    }
    exchange("mma's end", 0);
}

inline void copy(uint32_t smem, const void* gmem, int bytes, bool valid) {
    uint8_t* to = writable(smem, bytes);
    if (valid) {
        memcpy(to, gmem, bytes);
    } else {
        memset(to, 0, bytes);
    }
}

}  // namespace emu
