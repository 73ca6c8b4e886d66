"""Kernels for GPUs on the CPU: rendered CUDA compiled as C++ with tests/emulator/, and callable."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
import tvm_ffi

from flashgen.generator.plan import KernelPlan
from flashgen.generator.render import render
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.loader import CompiledPass
from flashgen.runtime.toolchain import find_nvcc
from flashgen.runtime.unit import binding_root

MULTIPROCESSORS = 3  # of the emulated device, see cuda_names.h
EMULATOR = Path(__file__).with_name("emulator")
_FUNCTION = re.compile(r"__device__ __forceinline__ [^;{}()]*?(\w+)\(([^{};]*?)\)( const)? \{")
_BODIES = {
    # device/mbarrier.cuh
    "init": "emu::init(address, count);",
    "arrive": "emu::arrive(address);",
    "arrive_expecting": "emu::arrive(address, bytes);",
    # what it waits for are rows that no product and no bulk copy reads
    "arrive_after_copies": "emu::current->unfenced = false; emu::arrive(address);",
    "has_ended": "return emu::has_ended(address, parity);",
    "fence_barrier_init": "",
    "fence_async_proxy": "emu::current->unfenced = false;",
    "named_sync": "emu::named(id, threads, true);",
    "named_arrive": "emu::named(id, threads, false);",
    "lower_registers": "",
    "raise_registers": "",
    # device/tensor_map.cuh
    "load_box": "emu::load_box(smem, &map.map, full.address, col, row, min(head, map.last_head),"
    " min(batch, map.last_batch));",
    "prefetch_map": "",
    # device/tensor_store.cuh
    "store_block": "emu::stmatrix(page + (row + lane % 16) * 128 + ((col / 8 + lane / 16) ^"
    " (row + lane % 16) % 8) * 16, a);",
    "store_box": "emu::store_box(page, &map.map, col, row, min(head, map.last_head),"
    " min(batch, map.last_batch));",
    "commit_stores": "emu::commit_stores();",
    "await_stores": "emu::await_stores(kPending);",
    # device/wgmma.cuh
    "wgmma_fence": "",
    "wgmma_commit": "emu::wgmma_commit();",
    "wgmma_wait": "emu::wgmma_wait(kPending);",
    "pin_accumulators": "",
    # device/ptx.cuh
    "opaque": "return x;",
    "ldmatrix_x4": "emu::ldmatrix(r, smem, false);",
    "ldmatrix_x4_trans": "emu::ldmatrix(r, smem, true);",
    "stmatrix_x4_trans": "emu::stmatrix_trans(smem, r);",
    "st_shared_32": "memcpy(emu::writable(smem, 4), &value, 4);",
    "st_shared_zero_16": "memset(emu::writable(smem, 16), 0, 16);",
    "ld_shared_128": "memcpy(r, emu::at(smem, 16), 16);",
    "st_shared_128": "memcpy(emu::writable(smem, 16), r, 16);",
    "exp2_approx": "return x < -126.0f ? 0.0f : exp2f(x);",
    "small_halves_reach": "return (x % 65536 >= bound ? 0xffffu : 0) | "
    "(x >> 16 >= bound ? 0xffff0000u : 0);",
    "cp_async_16": "emu::copy(smem, gmem, 16, valid);",
    "cp_async_4": "emu::copy(smem, gmem, 4, valid);",
    "cp_async_commit": "",
    "cp_async_wait": "",
    "cp_async_wait_all": "",
    "ld_global_128": "memset(r, 0, 16); if (valid) memcpy(r, gmem, 16);",
    "sync_warps": "emu::named(barrier, kThreads, true);",
    # host/launch_chained.cuh
    "wait_for_previous_kernel": "",
    "start_next_kernel": "",
    # device/turns.cuh
    "ld_acquire": 'emu::current->waits_for = "its turn"; emu::yield(); return *place;',
    "st_release": "*place = x;",
    "add_release": "*place += x;",
    "sleep_ns": "",
    "ld_sums_4": "memcpy(v, sums, 16);",
    # device/ordered_adds.cuh
    "fence_async_global": "",
    "st_shared_4": "memcpy(emu::writable(smem, 16), v, 16);",
    "add_bulk": "emu::add_bulk(gmem, smem, kBytes);",
    "wait_for_bulk_reads": "emu::wait_for_bulk();",
    "wait_for_bulk": "emu::wait_for_bulk();",
    "red_add_4": "for (int i = 0; i < 4; ++i) gmem[i] += v[i];",
}
"""Functions that are inline assembly -> what they do here."""

_ELEMENT = {
    "pack": "return emu::pack(lo, hi, {bf16});",
    "unpack": "return {{emu::widen(r & 0xffff, {bf16}), emu::widen(r >> 16, {bf16})}};",
    "mma": "emu::mma(acc, a, b0, b1, {bf16});",
    "mma_k8": "",
}


def with_fault(monkeypatch: pytest.MonkeyPatch, line: str, fault: str) -> list[int]:
    """Kernels are compiled with ``fault`` for ``line`` from now on; how often it was replaced."""
    replaced = []

    def faulty(text: str, bf16: bool, on_cpu: Callable[[str, bool], str] = on_cpu) -> str:
        replaced.append(text.count(line))
        return on_cpu(text.replace(line, fault), bf16)

    monkeypatch.setattr(sys.modules[__name__], "on_cpu", faulty)
    return replaced


def on_cpu(text: str, bf16: bool) -> str:
    """``text`` of a source or header with every function of inline assembly replaced."""
    pieces, at = [], 0
    for found in _FUNCTION.finditer(text):
        end = _closing(text, found.end())
        body = text[found.end() : end]
        name = found.group(1)
        if found.start() < at or not re.search(r"\basm\b", body):
            continue
        pieces += [text[at : found.end()], _body(name, body, text[: found.start()], bf16), "}"]
        at = end + 1
    text = "".join([*pieces, text[at:]]).replace(" kDLCUDA,\n", " kDLCPU,\n")
    text = re.sub(r"extern __shared__ [^;]*?(\w+)\[\];", r"uint8_t* \1 = emu::block_smem();", text)
    return re.sub(  # a kernel has at most one of these
        r"__shared__ (?:__align__\(\d+\) )?(\w+) (\w+)\[([^;]*)\];",
        r"auto& \2 = *reinterpret_cast<\1(*)[\3]>(emu::static_smem());",
        text,
    )


def _closing(text: str, at: int) -> int:
    """Where the brace that opened before ``at`` is closed."""
    bare = re.sub(r'"(?:[^"\\\n]|\\.)*"', lambda m: '"' + " " * (len(m.group()) - 2) + '"', text)
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(bare[at], 0)
        at += 1
    return at - 1


def _body(name: str, body: str, before: str, bf16: bool) -> str:
    wgmma = re.search(r"wgmma\.mma_async.*?m64n(\d+)k16\.f32\.(\w+)", body)
    if wgmma:
        a_transposed, transposed = re.search(r"p, 1, 1, (?:(\d), )?(\d);", body).groups()
        a = "a, 0" if a_transposed is None else "nullptr, a"
        return (
            f"emu::wgmma({{&acc[0][0], {int(wgmma.group(1)) // 8}, {a}, b, accumulate, "
            f"{a_transposed or 0}, {transposed}, {int(wgmma.group(2) == 'bf16')}}});"
        )
    if name in _ELEMENT:
        of_bf16 = before.rfind("struct Bf16") > before.rfind("struct Fp16")
        return _ELEMENT[name].format(bf16=str(of_bf16).lower())
    return _BODIES[name]


def compile_plan(plan: KernelPlan, folder: Path) -> Path:
    """The library of ``plan`` for the CPU."""
    rendered = render(plan)
    return compile_text(rendered.text, rendered.headers, folder, plan.variant.dtype == "bf16")


def compile_text(source: str, headers: Sequence[tuple[str, str]], folder: Path, bf16: bool) -> Path:
    """The library of a CUDA source and its (path, text) headers, in ``folder``, for the CPU."""
    for path, text in (*headers, ("kernel.cpp", source)):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(on_cpu(text, bf16))
    root, library = binding_root(), folder / "kernel.so"
    # nvcc, since it knows where its headers are; it leaves C++ to the host compiler.
    command = [find_nvcc().path, "-x", "c++", "-std=c++17", "-O1", "-shared", "--cudart=none"]
    command += ["-Xcompiler=-fPIC,-w,-fno-strict-aliasing", "-include", EMULATOR / "cuda_names.h"]
    command += [f"-I{folder}", f"-I{root / 'include'}", folder / "kernel.cpp", "-o", library]
    command += [f"-L{root / 'lib'}", "-ltvm_ffi"]  # no rpath: tvm_ffi is loaded already
    subprocess.run([*command, "-Xlinker", "-Bsymbolic"], check=True)
    return library


class EmulatedKernel(Kernel):
    """The passes of a variant's plans, called with tensors of the CPU."""

    def __init__(self, plans: Sequence[KernelPlan], folder: Path) -> None:
        self._plans = {plan.pass_name: plan for plan in plans}
        self._folder = folder
        self._libraries: list[ctypes.CDLL] = []
        super().__init__(plans[0].variant, torch.device("cpu"), passes=tuple(self._plans))
        self.run_at_once(MULTIPROCESSORS, seed=1)  # blocks of some kernels wait for one another
        self.target = plans[0].target

    def work_late(self, late: bool) -> None:
        """Do asynchronous work as late as possible, or else at once."""
        for library in self._libraries:
            library.emulate_late(int(late))

    def run_at_once(self, blocks: int, seed: int) -> None:
        """Let this many thread blocks run at once, by turns that ``seed`` draws."""
        for library in self._libraries:
            library.emulate_residents(blocks, seed)

    def _load(self, device, passes):
        loaded = {}
        for name in passes:
            library = str(compile_plan(self._plans[name], self._folder / name))
            self._libraries.append(ctypes.CDLL(library))
            module = tvm_ffi.load_module(library)
            loaded[name] = CompiledPass(None, module[name], module[f"{name}_workspace"], module)
            self._passes[device, name] = loaded[name]
        return loaded
