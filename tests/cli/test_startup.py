"""`flashgen --help` and `list` answer at once: no torch, under 0.3 s."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_SECONDS = 0.3
COMPOSED = 30
SCRIPT = """
import sys
from flashgen.cli import main
try:
    main()
finally:
    heavy = {"torch", "numpy", "tvm_ffi", "jinja2"} & set(sys.modules)
    print("heavy:", sorted(heavy), file=sys.stderr)
"""


def cpu_seconds() -> float:
    """What child processes have used so far: it waits for nothing, so it is what an idle machine
    takes, and other processes don't change it as they do the wall clock."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty specs in files of their own, some of them matrices."""
    folder = tmp_path_factory.mktemp("specs")
    for index in range(COMPOSED):
        (folder / f"s{index}.yaml").write_text(
            f"name: composed-{index}\nhead_dim: {8 + 8 * index}\n"
            "dtype: [fp16, bf16]\ncausal: [true, false]\ndropout: true\n"
        )
    return folder


@pytest.mark.parametrize("command", ["--help", "list", "schema"])
def test_answers_at_once_without_torch(command, specs, tmp_path):
    # as installed: with bytecode, whatever the surroundings say of writing it
    environment = {
        **os.environ,
        "FLASHGEN_SPECS": str(specs),
        "PYTHONPYCACHEPREFIX": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    times = []
    for _ in range(5):
        start = cpu_seconds()
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *command.split()],
            env=environment,
            capture_output=True,
            text=True,
        )
        times.append(cpu_seconds() - start)
        assert done.returncode == 0, done.stderr
        assert "heavy: []" in done.stderr
    if command == "list":
        assert "d8-fp16-causal-dropout" in done.stdout
        assert done.stdout.count("composed-") == 4 * COMPOSED
    assert min(times) < LIMIT_SECONDS, f"{command}: {sorted(times)}"
