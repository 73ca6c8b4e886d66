"""The catalogue's kernels for some targets -> machine code alone, held to no lost speed.

A build makes a library; this stops at ptxas, in half the time, and so asks of every target that
nobody builds for here what `flashgen build --strict` asks of the others: no spills, no warning of
ptxas that a feature was given up.

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
from flashgen.generator.plan.base import native_flags
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.compile_unit import Job, compiler_call, write_sources
from flashgen.runtime.jobs import default_jobs
from flashgen.runtime.ptxas import lost_speed_warnings, parse_resources, parse_warnings
from flashgen.runtime.toolchain import toolchain_for
from flashgen.runtime.unit import BuildRequest, prepare


def lost_speed(request: BuildRequest, folder: Path) -> list[str]:
    """What the kernel of ``request`` loses; each item starts with what it is of."""
    unit = prepare(request, folder / "templates")
    job = Job(unit, toolchain_for(request.target))
    place = folder / unit.plan.name
    write_sources(job, place)
    command = (
        *compiler_call(job, native_flags(request.target)),
        *("-cubin", "-o", "/dev/null", unit.rendered.name),
    )
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        return [f"{request}: {done.stderr.strip()}"]
    resources = parse_resources(done.stderr)
    lost = list(lost_speed_warnings(resources, parse_warnings(done.stderr)))
    if not resources:
        lost.append("ptxas named no kernel")
    return [f"{request}: {text}" for text in lost]


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
