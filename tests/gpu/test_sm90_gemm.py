"""A plain matrix product of sm90's device headers: right, and near cuBLAS's speed.

Descriptors, pipelines or an order of products that are right, but slow, show here.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import flashgen.templates
from flashgen.generator.plan.sm90 import Product
from flashgen.generator.render import environment
from flashgen.runtime.bench.timing import Timed, measure
from flashgen.runtime.toolchain import find_nvcc
from flashgen.runtime.unit import binding_root

pytestmark = pytest.mark.gpu
SOURCE = Path(__file__).parent / "sm90_gemm.cu.in"
LEAST_OF_CUBLAS = 0.85


@pytest.fixture(scope="module")
def gemm(device, tmp_path_factory):
    """c = a @ b.T of bf16 matrices."""
    if torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("needs compute capability 9.0")
    folder = tmp_path_factory.mktemp("gemm")
    (folder / "gemm.cu").write_text(source())
    library = folder / "gemm.so"
    command = [find_nvcc().path, folder / "gemm.cu", "-o", library, *flags(), "-shared"]
    subprocess.run([*command, "-Xcompiler", "-fPIC", *linked()], check=True)
    run = ctypes.CDLL(str(library)).run_gemm
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count

    def call(a, b, c):
        places = [ctypes.c_void_p(t.data_ptr()) for t in (a, b, c)]
        assert run(*c.shape, a.shape[1], *places, num_sms)
        return c

    return call


def source():
    """The kernel's text, in bf16."""
    products = [Product("wgmma_both", 256, False, False, "a step")]
    functions = environment().get_template("partials/wgmma.cuh.j2").render(
        plan=SimpleNamespace(products=products), variant=SimpleNamespace(dtype="bf16")
    )  # fmt: skip
    types = "using Element = Bf16;\n"
    types += "constexpr auto kMapType = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;\n"
    return SOURCE.read_text("utf-8").replace("// WGMMA", functions + types)


def flags():
    """What nvcc needs to compile it."""
    root, templates = binding_root(), next(iter(flashgen.templates.__path__))
    found = ["-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "--ptxas-options=-v"]
    return [*found, f"-I{templates}", f"-I{root / 'include'}"]


def linked():
    """What the linker needs."""
    library = binding_root() / "lib"
    return [f"-L{library}", "-ltvm_ffi", "-Xlinker", f"-rpath={library}"]


def matrices(m, n, k, device):
    """a, b and a c of NaNs."""
    generator = torch.Generator(device).manual_seed(m * n + k)
    a, b = (torch.randn(rows, k, device=device, generator=generator).bfloat16() for rows in (m, n))
    return a, b, torch.full((m, n), float("nan"), device=device, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (128, 256, 64),
        (128, 256, 1024),  # more steps than stages
        (512, 768, 320),
        (200, 328, 136),  # no multiple of any tile
        (8, 8, 8),
        (4096, 4352, 512),  # several tiles of every thread block
    ],
)
def test_right(gemm, device, m, n, k):
    a, b, c = matrices(m, n, k, device)
    expected = a.double() @ b.double().T
    error = (gemm(a, b, c).double() - expected).norm() / expected.norm()
    assert error < 4e-3, f"{m} x {n} x {k}: {error}"


def test_speed_is_near_cublas(gemm, device):
    a, b, c = matrices(8192, 8192, 8192, device)
    ours = Timed(lambda: gemm(a, b, c))
    cublas = Timed(lambda: torch.matmul(a, b.T, out=c))
    samples = measure({"ours": ours, "cublas": cublas}, 7, device)
    tflops = {name: 2 * 8192**3 / found.median_ms / 1e9 for name, found in samples.items()}
    print(f"8192^3: {tflops}")
    assert tflops["ours"] >= LEAST_OF_CUBLAS * tflops["cublas"], tflops
