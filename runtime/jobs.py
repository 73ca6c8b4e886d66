"""Machine -> how many compilers may run at once: bounded by cores and by memory."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from . import knobs

BYTES_PER_JOB = 1 << 30  # an nvcc with its children stays below 1 GiB on our kernels
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_V1_UNLIMITED = 1 << 60  # cgroup v1 spells "no limit" as a number near 2^63


def default_jobs(asked: int | None = None) -> int:
    """The number of compilers to run at once, at least 1.

    Args:
        asked: an explicit number, which is taken as it is; default, FLASHGEN_MAX_JOBS bounds
            what cores and free memory allow.
    """
    if asked is not None:
        return max(1, asked)
    jobs = min(available_cores(), available_bytes() // BYTES_PER_JOB)
    return max(1, min(jobs, knobs.MAX_JOBS.get() or jobs))


def available_cores() -> int:
    """Cores that this process may use, by affinity and cgroup quota."""
    cores = len(os.sched_getaffinity(0))
    for directory in _cgroup_directories("cpu"):
        quota = _quota_cores(directory)
        if quota is not None:
            cores = min(cores, max(1, quota))
    return cores


def available_bytes() -> int:
    """Memory that can still be had, by the machine and by the cgroups around this process."""
    free = _meminfo_available()
    for directory in _cgroup_directories("memory"):
        left = _cgroup_bytes_left(directory)
        if left is not None:
            free = min(free, left)
    return free


def _meminfo_available() -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return BYTES_PER_JOB


def _cgroup_directories(controller: str) -> list[Path]:
    """This process's cgroup and those above it, which bound it as well (v2, then v1)."""
    directories: list[Path] = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUP_ROOT / controller if controllers else _CGROUP_ROOT
        inner = PurePosixPath(path.lstrip("/"))
        # inside a container the path may not exist below the mount: the mount itself then holds
        directories += [root / inner, *(root / parent for parent in inner.parents)]
    return [d for d in dict.fromkeys(directories) if d.is_dir()]


def _quota_cores(directory: Path) -> int | None:
    fields = _read(directory / "cpu.max").split()
    if len(fields) == 2 and fields[0] != "max":
        return int(fields[0]) // int(fields[1])
    quota = _number(directory / "cpu.cfs_quota_us")
    period = _number(directory / "cpu.cfs_period_us")
    return quota // period if quota and period and quota > 0 else None


def _cgroup_bytes_left(directory: Path) -> int | None:
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = _number(directory / limit_name), _number(directory / used_name)
        if limit is None or used is None or limit >= _V1_UNLIMITED:
            continue
        # file pages count as used but are given back when memory is short
        return max(0, limit - used + _reclaimable_bytes(directory))
    return None


def _reclaimable_bytes(directory: Path) -> int:
    for line in _read(directory / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
