"""A plain matrix product of sm90's device headers: right, and near cuBLAS's speed.

Descriptors, pipelines or an order of products that are right, but slow, show here.
"""

from __future__ import annotations

import subprocess

import pytest
import sm90_gemm
import torch

import flashgen.templates
from flashgen.runtime.bench.timing import Timed, measure
from flashgen.runtime.toolchain import find_nvcc
from flashgen.runtime.unit import binding_root

pytestmark = pytest.mark.gpu
LEAST_OF_CUBLAS = 0.85


@pytest.fixture(scope="module")
def gemm(hopper, device, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemm")
    (folder / "gemm.cu").write_text(sm90_gemm.source())
    root, templates = binding_root(), next(iter(flashgen.templates.__path__))
    flags = ["-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-shared"]
    flags += ["-Xcompiler", "-fPIC", f"-I{templates}", f"-I{root / 'include'}"]
    flags += [f"-L{root / 'lib'}", "-ltvm_ffi", "-Xlinker", f"-rpath={root / 'lib'}"]
    command = [find_nvcc().path, folder / "gemm.cu", "-o", folder / "gemm.so", *flags]
    subprocess.run(command, check=True)
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    return sm90_gemm.gemm_of(folder / "gemm.so", num_sms)


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
    assert sm90_gemm.relative_error(gemm, m, n, k, device) < 4e-3


def test_speed_is_near_cublas(gemm, device):
    a, b, c = sm90_gemm.matrices(8192, 8192, 8192, device)
    ours = Timed(lambda: gemm(a, b, c))
    cublas = Timed(lambda: torch.matmul(a, b.T, out=c))
    samples = measure({"ours": ours, "cublas": cublas}, 7, device)
    tflops = {name: 2 * 8192**3 / found.median_ms / 1e9 for name, found in samples.items()}
    print(f"8192^3: {tflops}")
    assert tflops["ours"] >= LEAST_OF_CUBLAS * tflops["cublas"], tflops
