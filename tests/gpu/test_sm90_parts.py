"""The device headers of sm90: copies, swizzle, wgmma's layouts, barriers, against torch."""

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
from flashgen.runtime.toolchain import find_nvcc
from flashgen.runtime.unit import binding_root

pytestmark = pytest.mark.gpu
SOURCE = Path(__file__).parent / "sm90_parts.cu.in"
WIDTHS = (8, 40, 64, 72, 80, 128, 192, 256)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
MAP_TYPES = {"fp16": "FLOAT16", "bf16": "BFLOAT16"}


@pytest.fixture(scope="module", params=DTYPES)
def parts(request, hopper, tmp_path_factory):
    """(dtype, the compiled functions)."""
    products = [
        Product(name, width, held, transposed, "a test's")
        for width in WIDTHS
        for name, held, transposed in (
            ("wgmma_both", False, False),
            ("wgmma_held", True, False),
            ("wgmma_trans", True, True),
        )
    ]
    wgmma = environment().get_template("partials/wgmma.cuh.j2")
    functions = wgmma.render(
        plan=SimpleNamespace(products=products), variant=SimpleNamespace(dtype=request.param)
    )
    map_type = f"constexpr auto kMapType = CU_TENSOR_MAP_DATA_TYPE_{MAP_TYPES[request.param]};\n"
    cases = "".join(
        f"case {w}: return multiply_all<{w // 8}>(a, b, b_trans, out);\n" for w in WIDTHS
    )
    text = SOURCE.read_text("utf-8").replace("// WGMMA", functions + map_type)
    folder = tmp_path_factory.mktemp("parts")
    (folder / "parts.cu").write_text(text.replace("// CASES", cases))
    root = binding_root()
    flags = ["-std=c++17", "-O1", "-gencode=arch=compute_90a,code=sm_90a", "-shared"]
    flags += ["-Xcompiler", "-fPIC", f"-I{next(iter(flashgen.templates.__path__))}"]
    flags += [f"-I{root / 'include'}", f"-L{root / 'lib'}", "-ltvm_ffi"]
    flags += ["-Xlinker", f"-rpath={root / 'lib'}"]
    library = folder / "parts.so"
    subprocess.run([find_nvcc().path, folder / "parts.cu", "-o", library, *flags], check=True)
    return DTYPES[request.param], ctypes.CDLL(str(library))


def pointers(*tensors):
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


def test_copies_land_swizzled_and_beyond_the_tensor_are_zeros(parts, device):
    _, functions = parts
    source = torch.randn(2, 100, 3, 72, device=device).half()
    out = torch.full((2, 64, 64), float("nan"), device=device, dtype=torch.float16)
    assert functions.run_load(*pointers(source, out)) == 0
    expected = torch.zeros(64, 128, device=device, dtype=torch.float16)
    expected[:36, :72] = source[1, 64:, 1]
    rows = torch.arange(64, device=device)[:, None]
    chunks = torch.arange(8, device=device)[None, :]
    for page in range(2):
        found = out[page].view(64, 8, 8)[rows, chunks ^ rows % 8]
        assert torch.equal(found.reshape(64, 64), expected[:, 64 * page : 64 * page + 64])


@pytest.mark.parametrize("width", WIDTHS)
def test_products_of_every_layout(parts, device, width):
    dtype, functions = parts
    a = torch.randn(64, 64, device=device).to(dtype)
    b = torch.randn(width, 64, device=device).to(dtype)
    trans = b.T.contiguous()
    out = torch.full((3, 64, width), float("nan"), device=device)
    assert functions.run_multiply(width, *pointers(a, b, trans, out)) == 0
    expected = a.double() @ b.double().T
    for found in out:
        assert (found - expected).abs().max() < 1e-4


def test_warpgroups_take_turns(parts, device):
    _, functions = parts
    out = torch.zeros(1, device=device, dtype=torch.int32)
    assert functions.run_turns(*pointers(out)) == 0
    expected = 0
    for i in range(300):
        expected = (expected * 3 + i % 3 + 1) % 2**32
    assert out.item() % 2**32 == expected
