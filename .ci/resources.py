"""The catalogue's kernels for some targets -> machine code alone, held to no lost speed.

A build makes a library; this stops at ptxas, in half the time, and so asks of every target that
nobody builds for here what `flashgen build --strict` asks of the others: no spills, no warning of
ptxas that a feature was given up. Of family sm90's forward the instructions are read too.

    python .ci/resources.py sm75 sm86
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from flashgen.cli.selection import select_requests
from flashgen.generator.arch import parse_target
from flashgen.generator.plan import KernelPlan
from flashgen.generator.plan.base import native_flags
from flashgen.generator.plan.sm90 import Sm90ForwardPlan
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.compile_unit import Job, compiler_call, write_sources
from flashgen.runtime.jobs import default_jobs
from flashgen.runtime.ptxas import lost_speed_warnings, parse_resources, parse_warnings
from flashgen.runtime.toolchain import find_cuda_tool, toolchain_for
from flashgen.runtime.unit import BuildRequest, prepare

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # what tests share

import sm90_code  # noqa: E402

_CUBIN = "kernel.cubin"


def lost_speed(request: BuildRequest, folder: Path) -> list[str]:
    """What the kernel of ``request`` loses; each item starts with what it is of."""
    unit = prepare(request, folder / "templates")
    job = Job(unit, toolchain_for(request.target))
    place = folder / unit.plan.name
    write_sources(job, place)
    command = (
        *compiler_call(job, native_flags(request.target)),
        *("-cubin", "-o", _CUBIN, unit.rendered.name),
    )
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        return [f"{request}: {done.stderr.strip()}"]
    resources = parse_resources(done.stderr)
    lost = list(lost_speed_warnings(resources, parse_warnings(done.stderr)))
    if not resources:
        lost.append("ptxas named no kernel")
    lost += lacking(unit.plan, place / _CUBIN)
    return [f"{request}: {text}" for text in lost]


def lacking(plan: KernelPlan, cubin: Path) -> list[str]:
    """What the instructions of family sm90's forward lack of what its plan is about."""
    tool = find_cuda_tool("cuobjdump")
    if not isinstance(plan, Sm90ForwardPlan) or tool is None:
        return []
    return list(sm90_code.faults(plan, sm90_code.instructions_of(cubin, tool)))


def main(names: Sequence[str]) -> int:
    """0 where nothing is lost."""
    requests = select_requests(Catalogue.load(()), (), [parse_target(name) for name in names])
    with (
        tempfile.TemporaryDirectory(prefix="flashgen resources.") as folder,
        ThreadPoolExecutor(default_jobs()) as pool,
    ):
        found = pool.map(partial(lost_speed, folder=Path(folder)), requests)
        lost = [text for texts in found for text in texts]
    print("\n".join(lost), end="\n" if lost else "")
    print(f"{len(requests)} kernels for {', '.join(names)}: {len(lost)} lose speed")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
