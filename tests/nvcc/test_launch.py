"""What launches check on the host, ahead of any call of CUDA."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import flashgen.templates
from flashgen.runtime.toolchain import find_nvcc

pytestmark = pytest.mark.nvcc

SOURCE = """
enum flashgen_status {
    FLASHGEN_OK, FLASHGEN_INVALID_ARGUMENT, FLASHGEN_OUT_OF_MEMORY, FLASHGEN_CUDA_ERROR
};
#include "bindings/c/abi.h"
#include "host/launch.cuh"

struct Params {};
__global__ void nothing(const __grid_constant__ Params) {}

int main() {
    using namespace flashgen;
    const int64_t sizes[] = {0, kMaxGrid + 1, (int64_t{1} << 32) + 1, int64_t{1} << 40};
    for (const int64_t blocks : sizes) {
        Arguments in("test", Device{});
        const bool done = launch_kernel<&nothing>(in, Device{}, Grid{blocks, 32, 0}, Params{});
        printf("%d %d %s\\n", done, in.status(), done ? "" : last_message);
    }
}
"""


def test_more_blocks_than_a_grid_holds(tmp_path):
    templates = Path(next(iter(flashgen.templates.__path__)))
    # the binding of exported files needs neither tvm-ffi nor a device
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "abi.h").write_text('#include "bindings/c/abi.h"\n')
    (tmp_path / "host" / "launch.cuh").write_text((templates / "host/launch.cuh").read_text())
    (tmp_path / "launch.cu").write_text(SOURCE)
    nvcc = find_nvcc()
    flags = ["-std=c++17", "-arch=sm_80", f"-I{tmp_path}", f"-I{templates}"]
    libraries = [f"-L{path}" for path in nvcc.library_dirs]
    command = [nvcc.path, *flags, *libraries, "launch.cu", "-o", "launch"]
    subprocess.run(command, cwd=tmp_path, check=True)
    told = subprocess.run([tmp_path / "launch"], capture_output=True, text=True, check=True).stdout
    expected = "test: expected at most 2147483647 thread blocks of one kernel, got"
    assert told.splitlines() == [
        "1 0 ",
        f"0 1 {expected} 2147483648",
        f"0 1 {expected} 4294967297",
        f"0 1 {expected} 1099511627776",
    ]
