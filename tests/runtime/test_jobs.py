"""How many compilers run at once."""

from __future__ import annotations

import pytest

from flashgen.runtime import jobs

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose /proc and /sys files are written by the test."""
    group = tmp_path / "cgroup" / "a" / "b"
    group.mkdir(parents=True)
    monkeypatch.setattr(jobs, "_CGROUP_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(jobs.os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.delenv("FLASHGEN_MAX_JOBS", raising=False)
    files = {
        "/proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {64 * GIB // 1024} kB\n",
        "/proc/self/cgroup": "0::/a/b\n",
    }
    read = jobs._read
    monkeypatch.setattr(jobs, "_read", lambda path: files.get(str(path)) or read(path))
    return files, group


def test_cores_bound_the_jobs(machine):
    assert jobs.default_jobs() == 16


def test_free_memory_bounds_the_jobs(machine):
    machine[0]["/proc/meminfo"] = f"MemAvailable: {3 * GIB // 1024 + 5} kB\n"
    assert jobs.default_jobs() == 3
    machine[0]["/proc/meminfo"] = "MemAvailable: 1000 kB\n"
    assert jobs.default_jobs() == 1


def test_a_cgroup_above_bounds_memory_and_its_file_pages_are_free(machine):
    above = machine[1].parent
    (above / "memory.max").write_text(f"{6 * GIB}\n")
    (above / "memory.current").write_text(f"{4 * GIB}\n")
    (above / "memory.stat").write_text(f"anon 1\ninactive_file {2 * GIB}\n")
    assert jobs.default_jobs() == 4
    (machine[1] / "memory.max").write_text("max\n")
    (machine[1] / "memory.current").write_text("0\n")
    assert jobs.default_jobs() == 4


def test_a_cpu_quota_bounds_the_jobs(machine):
    (machine[1] / "cpu.max").write_text("250000 100000\n")
    assert jobs.default_jobs() == 2


def test_max_jobs_bounds_and_an_explicit_number_wins(machine, monkeypatch):
    monkeypatch.setenv("FLASHGEN_MAX_JOBS", "5")
    assert jobs.default_jobs() == 5
    assert jobs.default_jobs(7) == 7


def test_version_one_cgroups(machine, tmp_path):
    machine[0]["/proc/self/cgroup"] = "4:memory:/a\n2:cpu,cpuacct:/a\n"
    group = tmp_path / "cgroup" / "memory" / "a"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{3 * GIB}\n")
    (group / "memory.usage_in_bytes").write_text("0\n")
    assert jobs.default_jobs() == 3
