"""Building for a GPU target with nvcc: odd paths, resources, and what a warm load costs."""

from __future__ import annotations

import subprocess
import time

import pytest
import torch

from flashgen.generator.arch import parse_target
from flashgen.generator.errors import CompileError
from flashgen.generator.variant import parse_key
from flashgen.runtime import toolchain
from flashgen.runtime.build import BuildRequest, build, find
from flashgen.runtime.bundling import Packed, write_bundle
from flashgen.runtime.cache import Cache
from flashgen.runtime.loader import load_pass
from flashgen.runtime.toolchain import find_nvcc

pytestmark = pytest.mark.nvcc


def request_for(key="d64-fp16", pass_name="forward", target="sm80", **more):
    return BuildRequest(parse_key(key), pass_name, parse_target(target), **more)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache under a path with spaces and other letters, which nvcc must cope with (T01)."""
    return Cache(tmp_path_factory.mktemp("cache") / "Wörk spáce 'q' 日本")


@pytest.fixture(scope="module")
def artifact(cache):
    (built,) = build([request_for()], cache=cache)
    return built


def test_the_manifest_has_what_ptxas_said(artifact):
    assert artifact.resources
    for kernel in artifact.resources:
        assert kernel.arch == "sm_80"
        assert 0 < kernel.registers <= 255
    assert any(artifact.manifest.name in kernel.kernel for kernel in artifact.resources)
    assert [c.name for c in artifact.manifest.compilers] == ["nvcc", "host"]
    assert "-lineinfo" in artifact.manifest.flags


def test_it_loads_without_a_gpu_under_an_odd_path(cache, artifact):
    compiled = load_pass(request_for(), cache=cache, build_missing=False)
    assert compiled.artifact == artifact
    assert compiled.workspace(2, 4, 2, 100, 200) >= 0


def test_a_bundle_serves_a_gpu_target_without_nvcc(cache, artifact, tmp_path, monkeypatch):
    write_bundle(tmp_path / "bundle", [Packed(request_for(), artifact)], ())
    monkeypatch.setenv("PATH", "")
    for name in ("CUDA_HOME", "CUDA_PATH", "FLASHGEN_CUDA_HOME", "CXX"):
        monkeypatch.delenv(name, raising=False)
    bundled = Cache(tmp_path / "none", (tmp_path / "bundle",))
    compiled = load_pass(request_for(), cache=bundled, build_missing=False)
    assert compiled.artifact.directory.parent == tmp_path / "bundle" / "sm80"
    assert compiled.artifact.manifest.resources == artifact.manifest.resources
    assert compiled.workspace(2, 4, 2, 100, 200) >= 0


def test_a_gpu_pass_refuses_tensors_of_the_cpu(cache, artifact, claim_device):
    compiled = load_pass(request_for(), cache=cache, build_missing=False)
    tensors = [*torch.zeros(4, 1, 5, 2, 64).half().unbind()]
    tensors.insert(1, torch.zeros(1, 2, 5))
    tensors.append(torch.empty(0, dtype=torch.uint8))  # the workspace
    message = r"expected tensors on a CUDA device \(DLPack device type 2\), got type 1"
    with pytest.raises(ValueError, match=message):
        compiled.function(*tensors[:-1], None, tensors[-1], 0.25, 0)
    if not torch.cuda.is_available():
        on_gpu = [claim_device(tensor, 2) for tensor in tensors]
        with pytest.raises(RuntimeError, match=r"forward: current device: .*\(cudaError"):
            compiled.function(*on_gpu[:-1], None, on_gpu[-1], 0.25, 0)


def test_a_warm_load_is_quick_and_starts_no_process(cache, artifact, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("started a process"))
    seconds = []
    for _ in range(5):
        monkeypatch.setattr(toolchain, "_known", {})
        monkeypatch.setattr("flashgen.runtime.loader._loaded", {})
        start = time.perf_counter()
        load_pass(request_for(), cache=cache)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.010, f"{seconds}: both passes have 20 ms"  # best of 5: others run too


def test_a_compile_error_of_nvcc_names_file_and_line(cache, tmp_path, monkeypatch):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(
        "#!/bin/sh\n"
        'case "$*" in *-MD*) sed -i "9s/^/oops\\n/" *.cu;; esac\n'
        f'exec {find_nvcc().path} "$@"\n'
    )
    nvcc.chmod(0o755)
    monkeypatch.setenv("FLASHGEN_CUDA_HOME", str(tmp_path))
    with pytest.raises(CompileError, match=r"error: .* At: /.*/fwd_d64_fp16_sm80\.cu:\d+\. Log: /"):
        build([request_for()], cache=cache, force=True)


def test_another_target_is_another_binary(cache, artifact):
    assert find(request_for(target="sm90", family="sm80"), cache=cache) is None
