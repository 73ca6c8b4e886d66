"""What the tests of hosts share: a cache for each file, and a compiler that doesn't optimise."""

from __future__ import annotations

import shutil

import pytest

from flashgen.integrations import choice
from flashgen.runtime import calls, toolchain


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory):
    """A cache of the file's own; the compiler doesn't optimise what runs for milliseconds."""
    folder = tmp_path_factory.mktemp("hosts")
    compiler = folder / "quick-g++"
    real = shutil.which("g++")
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *version*) exec {real} "$@";; esac\nexec {real} "$@" -O0\n'
    )
    compiler.chmod(0o755)
    choice.find_kernel.cache_clear()
    calls.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", str(compiler))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("FLASHGEN_CACHE_DIR", str(folder / "cache"))
        patch.delenv("FLASHGEN_PREBUILT", raising=False)
        patch.setattr(toolchain, "_known", {})
        yield
    choice.find_kernel.cache_clear()
    calls.forget()
