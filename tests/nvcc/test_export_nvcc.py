"""Exported kernels of a GPU target: compiled by nvcc, linked with a C main; and run on a GPU."""

from __future__ import annotations

import subprocess

import export_program
import pytest
import torch

from flashgen.generator.arch import TARGETS
from flashgen.runtime.devices import target_of
from flashgen.runtime.toolchain import find_nvcc

pytestmark = pytest.mark.nvcc


def build(variant, target, folder):
    """The program with its exported kernel, by the command that the file itself names."""
    files = export_program.exported(variant, target, folder)
    told = files.source.partition("\n//   ")[2].partition("\n")[0].split()
    assert told[0] == "nvcc" and told[-1] == files.source_name
    nvcc = find_nvcc()
    libraries = [f"-L{path}" for path in nvcc.library_dirs]
    quiet = ["-Werror", "all-warnings"]
    subprocess.run([nvcc.path, *told[1:], *quiet], cwd=folder, check=True)
    flags = [*export_program.main_flags(variant), "-DON_GPU", f"-I{folder}"]
    main = [nvcc.path, *flags, "-c", export_program.MAIN, "-o", "main.o"]
    subprocess.run(main, cwd=folder, check=True)
    link = [nvcc.path, f"-arch={'sm_' + TARGETS[target].nvcc_arch.rstrip('a')}"]
    subprocess.run([*link, "main.o", "attn.o", *libraries, "-o", "main"], cwd=folder, check=True)
    return folder / "main"


def test_a_program_with_captures_links(tmp_path):
    program = build(export_program.documents("fp16"), "sm80", tmp_path)
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    assert "python" not in needed and "torch" not in needed and "tvm" not in needed
    if torch.cuda.is_available():
        return
    done = subprocess.run([program], input=b"\0" * 10**6, capture_output=True, check=False)
    assert done.returncode == 3 and done.stderr  # no device: CUDA's own sentence


@pytest.mark.parametrize("target", ["sm75", "sm90"])
def test_no_warning_where_there_is_no_program(tmp_path, target):
    files = export_program.exported("d64-fp16", target, tmp_path)
    command = [find_nvcc().path, "-std=c++17", "-ptx", "-Werror", "all-warnings"]
    arch = f"-arch=compute_{TARGETS[target].nvcc_arch}"
    subprocess.run([*command, arch, files.source_name], cwd=tmp_path, check=True)


@pytest.mark.gpu
def test_a_c_program_agrees_with_torch_on_the_gpu(tmp_path):
    variant = export_program.documents("fp16")
    target = target_of(torch.device("cuda", torch.cuda.current_device())).name
    messages = export_program.run(build(variant, target, tmp_path), variant)
    export_program.check_messages(messages, variant)
