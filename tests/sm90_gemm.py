"""A plain matrix product of sm90's device headers (sm90_gemm.cu.in): its text, and its call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch

from flashgen.generator.plan.sm90 import Product
from flashgen.generator.render import environment

SOURCE = Path(__file__).with_name("sm90_gemm.cu.in")
Gemm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def source() -> str:
    """The kernel's text, in bf16."""
    products = [Product("wgmma_both", 256, False, False, "a step")]
    functions = environment().get_template("partials/wgmma.cuh.j2").render(
        plan=SimpleNamespace(products=products), variant=SimpleNamespace(dtype="bf16")
    )  # fmt: skip
    types = "using Element = Bf16;\n"
    types += "constexpr auto kMapType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;\n"
    return SOURCE.read_text("utf-8").replace("// WGMMA", functions + types)


def gemm_of(library: Path, num_sms: int) -> Gemm:
    """c = a @ b.T of [m, k] and [n, k] bf16 matrices, by a library made of `source`."""
    run = ctypes.CDLL(str(library)).run_gemm

    def call(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        places = [ctypes.c_void_p(t.data_ptr()) for t in (a, b, c)]
        assert run(*c.shape, a.shape[1], *places, num_sms)
        return c

    return call


def matrices(m: int, n: int, k: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """a, b and a c of NaNs."""
    generator = torch.Generator(device).manual_seed(m * n + k)
    a, b = (torch.randn(rows, k, device=device, generator=generator).bfloat16() for rows in (m, n))
    return a, b, torch.full((m, n), float("nan"), device=device, dtype=torch.bfloat16)


def relative_error(gemm: Gemm, m: int, n: int, k: int, device: torch.device) -> float:
    """Of the product of random matrices, in norm."""
    a, b, c = matrices(m, n, k, device)
    expected = a.double() @ b.double().T
    return ((gemm(a, b, c).double() - expected).norm() / expected.norm()).item()
