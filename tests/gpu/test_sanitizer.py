"""compute-sanitizer on small calls of this GPU's kernels: no access out of bounds, no hazard."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from flashgen.runtime.toolchain import find_cuda_tool

pytestmark = pytest.mark.gpu
FORWARD = (
    "d64-bf16-causal",
    "d128-fp16-varlen-causal-window40x9",
    "d72-bf16-causal-blockmask64x64-dropout",
)
CALL = """
import sys
import torch
from flashgen.runtime.kernel import load
from flashgen.runtime.samples import Shape
from flashgen.runtime.verify import compare_call

kernel = load(sys.argv[1], "cuda")
for shape in (Shape(1, 2, 1, 113, 203), Shape(1, 1, 1, 1, 1)):
    for name, found in compare_call(kernel, shape, "cuda", backward=sys.argv[2] == "1").items():
        assert found.ok, f"{name}, {shape}: {found}"
torch.cuda.synchronize()
"""
FAULT = 9  # compute-sanitizer's exit status where it found something


@pytest.mark.parametrize(
    ("tool", "key", "backward"),
    [
        *(("memcheck", key, True) for key in FORWARD),
        # racecheck takes the bytes of bulk copies for races: it is for families without them
        ("synccheck", FORWARD[0], False),
        ("racecheck", FORWARD[0], True),
    ],
)
def test_nothing_is_found(load, tool, key, backward):
    program = find_cuda_tool("compute-sanitizer")
    if program is None:
        pytest.skip("needs compute-sanitizer (CUDA toolkit)")
    if tool == "racecheck" and torch.cuda.get_device_capability()[0] >= 9:
        pytest.skip("racecheck knows no bulk copies")
    load("d64-bf16-causal")  # what is built by now needn't be built under the tool
    command = [program, "--tool", tool, "--error-exitcode", str(FAULT)]
    done = subprocess.run(
        [*command, sys.executable, "-c", CALL, key, str(int(backward))],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
