"""Discovery, versions and identities of compilers; and the sentence for each that is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashgen.generator.arch import parse_target
from flashgen.generator.errors import ToolchainError
from flashgen.runtime import toolchain


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_nvcc(home: Path, version: str = "13.0.88") -> Path:
    short = ".".join(version.split(".")[:2])
    return write_program(
        home / "bin" / "nvcc", f'echo "Cuda compilation tools, release {short}, V{version}"'
    )


@pytest.fixture
def bare(cache_root, tmp_path, monkeypatch):
    """A machine without compilers: nothing on PATH, no toolkit named, no pip packages."""
    for name in ("FLASHGEN_CUDA_HOME", "CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p) / "nvidia").is_dir()])
    return tmp_path


def test_discovery_order(bare, monkeypatch):
    site = bare / "site"
    found = []

    def look(cuda_home=None):
        compiler = toolchain.find_nvcc(cuda_home)
        found.append((compiler.origin, compiler.version))

    fake_nvcc(site / "nvidia" / "cu13", "13.0.1")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    look()
    fake_nvcc(bare / "on path", "13.0.2")
    monkeypatch.setenv("PATH", str(bare / "on path" / "bin"))
    look()
    fake_nvcc(bare / "cuda", "13.0.3")
    monkeypatch.setenv("CUDA_HOME", str(bare / "cuda"))
    look()
    fake_nvcc(bare / "ours", "13.0.4")
    monkeypatch.setenv("FLASHGEN_CUDA_HOME", str(bare / "ours"))
    look()
    fake_nvcc(bare / "option", "13.0.5")
    look(bare / "option")
    assert found == [
        ("pip packages", "13.0.1"),
        ("PATH", "13.0.2"),
        ("CUDA_HOME", "13.0.3"),
        ("FLASHGEN_CUDA_HOME", "13.0.4"),
        ("--cuda-home", "13.0.5"),
    ]


def test_pip_toolkit_gets_its_library_directory(bare, monkeypatch):
    root = bare / "site" / "nvidia" / "cu13"
    fake_nvcc(root)
    (root / "lib").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(bare / "site")])
    assert toolchain.find_nvcc().library_dirs == (root / "lib",)
    (root / "lib64").mkdir()  # an ordinary toolkit's nvcc.profile knows its own directory
    assert toolchain.find_nvcc().library_dirs == ()


def test_cuda_home_without_nvcc_is_passed_over_but_ours_is_an_error(bare, monkeypatch):
    fake_nvcc(bare / "on path")
    monkeypatch.setenv("PATH", str(bare / "on path" / "bin"))
    monkeypatch.setenv("CUDA_HOME", str(bare / "empty"))
    assert toolchain.find_nvcc().origin == "PATH"
    monkeypatch.setenv("FLASHGEN_CUDA_HOME", str(bare / "empty"))
    with pytest.raises(ToolchainError, match="FLASHGEN_CUDA_HOME: expected .* bin/nvcc"):
        toolchain.find_nvcc()


def test_missing_nvcc_names_the_install(bare):
    with pytest.raises(ToolchainError, match=r"nvcc .*found none.*pip install 'flashgen\[cuda\]'"):
        toolchain.find_nvcc()


def test_missing_host_compiler_names_the_install(bare):
    with pytest.raises(ToolchainError, match=r"g\+\+ .*found none.*apt install g\+\+"):
        toolchain.find_host_compiler()


def test_cxx_that_does_not_exist(bare, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ToolchainError, match="CXX: expected .* got 'no-such-compiler'"):
        toolchain.find_host_compiler()


@pytest.mark.parametrize(("target", "version"), [("sm120", "12.6.20"), ("sm90", "11.8.89")])
def test_nvcc_too_old_for_the_target(bare, target, version):
    fake_nvcc(bare / "old", version)
    nvcc = toolchain.find_nvcc(bare / "old")
    with pytest.raises(ToolchainError, match=f"{target} needs nvcc .* or newer, got {version}"):
        toolchain.require_nvcc_for(parse_target(target), nvcc)
    toolchain.require_nvcc_for(parse_target("sm80"), nvcc)


def test_program_that_is_no_compiler(bare):
    write_program(bare / "odd" / "bin" / "nvcc", "echo hello")
    with pytest.raises(ToolchainError, match="expected a CUDA compiler's version, got 'hello'"):
        toolchain.find_nvcc(bare / "odd")


def test_program_that_does_not_start(bare):
    path = write_program(bare / "odd" / "bin" / "nvcc", "")
    path.write_text("#!/no/such/interpreter\n")
    with pytest.raises(ToolchainError, match="expected a compiler that runs"):
        toolchain.find_nvcc(bare / "odd")


def test_a_known_compiler_is_not_run_again(bare, monkeypatch):
    fake_nvcc(bare / "cuda")
    first = toolchain.find_nvcc(bare / "cuda")
    monkeypatch.setattr(toolchain, "_known", {})  # as in a new process
    monkeypatch.setattr(toolchain, "_output", lambda command: pytest.fail(f"ran {command}"))
    assert toolchain.find_nvcc(bare / "cuda") == first


def test_touching_keeps_the_identity_and_upgrading_changes_it(bare):
    path = fake_nvcc(bare / "cuda")
    first = toolchain.find_nvcc(bare / "cuda")
    os.utime(path, (1, 1))
    assert toolchain.find_nvcc(bare / "cuda") == first
    fake_nvcc(bare / "cuda", "13.1.9")
    assert toolchain.find_nvcc(bare / "cuda").identity != first.identity


def test_upgrade_behind_a_script_on_path_is_seen(bare, monkeypatch):
    real = bare / "toolkit"

    def install(version):
        write_program(
            real / "bin" / "nvcc",
            f'echo "#\\$ _HERE_={real}/bin"; echo "release 13.0, V{version}"',
        )

    install("13.0.88")
    write_program(bare / "bin" / "nvcc", f'exec {real}/bin/nvcc "$@"')
    monkeypatch.setenv("PATH", str(bare / "bin"))
    assert toolchain.find_nvcc().version == "13.0.88"
    install("13.2.5111")
    assert toolchain.find_nvcc().version == "13.2.5111"


def test_identity_where_the_cache_cannot_be_written(bare, monkeypatch):
    (bare / "file").write_text("")
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(bare / "file" / "cache"))
    fake_nvcc(bare / "cuda")
    assert toolchain.find_nvcc(bare / "cuda").version == "13.0.88"


def test_tools_come_from_the_same_places(bare, monkeypatch):
    assert toolchain.find_cuda_tool("cuobjdump") is None
    tool = write_program(bare / "site" / "nvidia" / "cu13" / "bin" / "cuobjdump", "")
    monkeypatch.setattr(sys, "path", [*sys.path, str(bare / "site")])
    assert toolchain.find_cuda_tool("cuobjdump") == tool


def test_importing_works_without_compilers(tmp_path):
    code = "import flashgen, flashgen.runtime.build, flashgen.runtime.toolchain"
    env = {**os.environ, "PATH": str(tmp_path), "CUDA_HOME": "", "CXX": ""}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
