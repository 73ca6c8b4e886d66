"""Build and load times of one variant: cold build of each pass, peak memory, warm load.

    python benchmarks/build_time.py                                                  prints a table
    python benchmarks/build_time.py --out benchmarks/results/build_time.json         records it too

Each cold build is one process with an empty cache and one job; the best of three counts. Peak
memory is that of the largest compiler process. A warm load is `flashgen.load` in a new process,
after the imports, with everything in the cache.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PASSES = ("forward", "backward")
REPEATS = 3
NUM_SHAPES = 500
LIMITS = {"forward": 5.0, "backward": 8.0, "peak_bytes": 1e9, "load_seconds": 0.020}


def build_cold(key: str, pass_name: str, target: str) -> dict[str, float]:
    """Seconds of `build` for one pass in this process, and its largest child's bytes."""
    from flashgen.generator.arch import parse_target
    from flashgen.generator.variant import parse_key
    from flashgen.runtime.build import BuildRequest, build

    start = time.perf_counter()
    build([BuildRequest(parse_key(key), pass_name, parse_target(target))], jobs=1)
    seconds = time.perf_counter() - start
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {"seconds": seconds, "peak_bytes": peak_kib * 1024}


def load_warm(key: str) -> dict[str, float]:
    """Seconds of `flashgen.load` in this process, after the imports."""
    import torch
    import tvm_ffi  # noqa: F401  (an import that load would do)

    import flashgen

    load = flashgen.load  # imports what it needs
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.empty(1, device=device)  # the context is the program's, not ours
    start = time.perf_counter()
    load(key, device)
    return {"seconds": time.perf_counter() - start}


def call_shapes(key: str) -> dict[str, float]:
    """How many kernels were built by NUM_SHAPES calls of different shapes, both passes."""
    import torch

    import flashgen
    from flashgen.runtime import cache_ops, paths
    from flashgen.runtime.arguments import TORCH_DTYPES

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kernel = flashgen.load(key, device)
    before = {entry.artifact.directory for entry in cache_ops.entries(paths.cache_root())}
    dtype, head_dim = TORCH_DTYPES[kernel.variant.dtype], kernel.variant.head_dim
    for index in range(NUM_SHAPES):
        seqlen_q, seqlen_k, heads = 1 + index % 97, 1 + (index * 7) % 101, 1 + index % 3
        q = torch.randn(1, seqlen_q, heads, head_dim, dtype=dtype, device=device)
        k = torch.randn(1, seqlen_k, heads, head_dim, dtype=dtype, device=device)
        q.requires_grad_()
        kernel(q, k, k).sum().backward()
    after = {entry.artifact.directory for entry in cache_ops.entries(paths.cache_root())}
    return {"builds": len(after - before)}


STEPS = {"build_cold": build_cold, "load_warm": load_warm, "call_shapes": call_shapes}


def in_new_process(step: str, *arguments: str, cache: Path) -> dict[str, float]:
    """What ``step`` gives in a process of its own, with ``cache`` as its cache."""
    done = subprocess.run(
        [sys.executable, __file__, "--step", step, *arguments],
        env={**os.environ, "FLASHGEN_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(key: str, target: str) -> dict[str, Any]:
    """All numbers of the table."""
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in PASSES:
            runs = [
                in_new_process("build_cold", key, name, target, cache=Path(folder, f"{name}{i}"))
                for i in range(REPEATS)
            ]
            numbers[name] = {
                "seconds": min(run["seconds"] for run in runs),
                "all_seconds": [run["seconds"] for run in runs],
                "peak_bytes": max(run["peak_bytes"] for run in runs),
            }
        warm = Path(folder, "warm")
        in_new_process("load_warm", key, cache=warm)  # builds
        loads = [in_new_process("load_warm", key, cache=warm)["seconds"] for _ in range(5)]
        numbers["load"] = {"seconds": min(loads), "all_seconds": loads}
        numbers["shapes"] = {"calls": NUM_SHAPES, **in_new_process("call_shapes", key, cache=warm)}
    return numbers


def environment() -> dict[str, Any]:
    """What the numbers depend on."""
    import torch

    from flashgen.runtime.toolchain import find_host_compiler, find_nvcc

    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": gpu,
        "nvcc": find_nvcc().version,
        "host_compiler": find_host_compiler().version,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tvm_ffi": importlib.metadata.version("apache-tvm-ffi"),
    }


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def table(numbers: dict[str, Any]) -> str:
    rows = [("measure", "value", "limit")]
    for name in PASSES:
        rows.append(
            (f"cold build, {name}", f"{numbers[name]['seconds']:.2f} s", f"{LIMITS[name]:.0f} s")
        )
        peak = f"{numbers[name]['peak_bytes'] / 1e6:.0f} MB"
        rows.append((f"largest compiler process, {name}", peak, "1000 MB"))
    rows.append(("warm load", f"{numbers['load']['seconds'] * 1e3:.1f} ms", "20 ms"))
    shapes = numbers["shapes"]
    rows.append((f"builds in {shapes['calls']} shapes", f"{shapes['builds']:.0f}", "0"))
    return "\n".join(f"{a:36s}{b:>12s}{c:>12s}" for a, b, c in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--key", default="d128-bf16-causal")
    parser.add_argument("--arch", default="sm80")
    parser.add_argument("--out", type=Path, help="file for the record")
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        name, *arguments = options.step
        print(json.dumps(STEPS[name](*arguments)))
        return
    numbers = measure(options.key, options.arch)
    record = {"key": options.key, "arch": options.arch, **environment(), "limits": LIMITS}
    if options.out:
        options.out.write_text(json.dumps(record | numbers, indent=2) + "\n")
    print(f"{options.key} for {options.arch}; nvcc {record['nvcc']}, {record['cpu']}")
    print(table(numbers))


if __name__ == "__main__":
    main()
