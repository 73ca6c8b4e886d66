"""Unit + Toolchain -> source directory and command; then its outcome -> Manifest or error."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ..generator.errors import CompileError
from ..generator.version import VERSION
from . import knobs
from .manifest import CompilerRecord, FileRecord, Manifest, sha256
from .ninja_file import LOG_NAME, STARTED_NAME, STATUS_NAME, Edge
from .ptxas import lost_speed_warnings, parse_resources, parse_warnings
from .toolchain import Toolchain
from .unit import Unit, binding_abi, binding_root, compiler_fingerprint

_KILLED_STATUS = 128 + 9  # the shell's spelling of SIGKILL
_KILLED = re.compile(r"signal 9|Killed signal|: Killed\b")
_ERROR = re.compile(r"\b(?:error|fatal|undefined reference)\b", re.IGNORECASE)
_PLACE = re.compile(r"^(?P<file>[^\s:(]+)(?:\((?P<nvcc>\d+)\)|:(?P<gcc>\d+)(?::\d+)?)\s*:")


@dataclass(frozen=True, slots=True)
class Job:
    """A unit and the compilers that are to make it."""

    unit: Unit
    toolchain: Toolchain

    @property
    def fingerprint(self) -> str:
        """The compilers' part of the fingerprint."""
        return compiler_fingerprint(self.toolchain.identity)


def write_sources(job: Job, directory: Path) -> None:
    """Put the source and the headers that it includes into ``directory``.

    Raises:
        OSError: when it can't be written.
    """
    rendered = job.unit.rendered
    for name, text in ((rendered.name, rendered.text), *rendered.headers):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def edge_for(job: Job, directory: Path) -> Edge:
    """The command that compiles the source in ``directory``; names in it are relative to it."""
    unit = job.unit
    depfile = f"{unit.plan.name}.d"
    libraries = (*job.toolchain.compiler.library_dirs, binding_root() / "lib")
    command = (
        *compiler_call(job, unit.flags),
        *("-MD", "-MF", depfile),
        unit.rendered.name,
        *("-o", unit.library_name),
        *(f"-L{path}" for path in libraries),
        "-ltvm_ffi",
    )
    return Edge(directory, command, unit.rendered.name, unit.library_name, depfile)


def compiler_call(job: Job, flags: Sequence[str]) -> tuple[str, ...]:
    """The job's compiler with ``flags`` and all places of headers; what to compile follows."""
    compiler = job.toolchain.compiler
    host = ("-ccbin", str(job.toolchain.host.path)) if compiler.kind == "nvcc" else ()
    includes = (Path(), *compiler.include_dirs, binding_root() / "include")
    return (str(compiler.path), *host, *flags, *(f"-I{path}" for path in includes))


def conclude(job: Job, edge: Edge, jobs: int) -> Manifest:
    """The manifest of a command that has ended.

    Args:
        job: what was compiled.
        edge: its command.
        jobs: how many commands ran at once, for the advice where memory ran out.

    Raises:
        CompileError: when it failed, or a strict request lost speed; names the key, the first
            error line, the generated file and line, and the log.
    """
    log = _read(edge.directory / LOG_NAME)
    status = _read(edge.directory / STATUS_NAME).strip()
    if status != "0" or not (edge.directory / edge.output).is_file():
        raise CompileError(_failure(job, edge, status, log, jobs))
    seconds = _seconds(edge.directory)
    for name in (STARTED_NAME, STATUS_NAME):
        (edge.directory / name).unlink(missing_ok=True)
    manifest = _manifest(job, edge, seconds, log)
    if job.unit.request.strict:
        refuse_lost_speed(manifest, edge.directory)
    return manifest


def refuse_lost_speed(manifest: Manifest, directory: Path) -> None:
    """Raise a CompileError where the build in ``directory`` spills or ptxas dropped a feature."""
    lost = lost_speed_warnings(manifest.resources, manifest.warnings)
    if lost:
        raise CompileError(
            f"compile: {manifest.key} {manifest.pass_name} {manifest.target}: expected no lost "
            f"speed, got {'; '.join(lost)}. Lower the tile or the stages of the plan. "
            f"Source: {directory / manifest.source}. Log: {directory / LOG_NAME}."
        )


def _manifest(job: Job, edge: Edge, seconds: float, log: str) -> Manifest:
    unit = job.unit
    return Manifest(
        flashgen=VERSION,
        key=unit.plan.variant.key,
        pass_name=unit.plan.pass_name,
        target=unit.plan.target.name,
        family=unit.plan.family,
        name=unit.plan.name,
        library=edge.output,
        source=edge.source,
        source_fingerprint=unit.source_fingerprint,
        compiler_fingerprint=job.fingerprint,
        compilers=tuple(
            CompilerRecord(c.kind, str(c.path), c.version, c.identity)
            for c in dict.fromkeys((job.toolchain.compiler, job.toolchain.host))
        ),
        binding_abi=binding_abi(),
        plan=unit.plan.describe(),
        smem_bytes=unit.plan.smem_bytes,
        flags=unit.flags,
        command=shlex.join(edge.command),
        resources=parse_resources(log),
        warnings=parse_warnings(log),
        built_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        build_seconds=round(seconds, 3),
        files=_file_records(edge.directory),
    )


def _file_records(directory: Path) -> tuple[FileRecord, ...]:
    records = []
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        data = path.read_bytes()
        records.append(FileRecord(path.relative_to(directory).as_posix(), len(data), sha256(data)))
    return tuple(records)


def _failure(job: Job, edge: Edge, status: str, log: str, jobs: int) -> str:
    unit, name = job.unit, job.toolchain.compiler.path.name
    source, log_path = edge.directory / edge.source, edge.directory / LOG_NAME
    where = f"compile: {unit.request}: {name} failed for {unit.plan.name}"
    if status in ("", str(_KILLED_STATUS)) or _KILLED.search(log):
        return (
            f"{where}: it was killed (signal 9), most likely because memory ran out with {jobs} "
            f"compiler(s) at once. Lower {knobs.MAX_JOBS.name} (or --jobs). "
            f"Source: {source}. Log: {log_path}."
        )
    first = first_error(log) or "the log is empty"
    place = _PLACE.match(first)
    if place and (edge.directory / place["file"]).is_file():
        at = f"{edge.directory / place['file']}:{place['nvcc'] or place['gcc']}"
    else:
        at = str(source)
    return f"{where} (exit {status}). First error: {first}. At: {at}. Log: {log_path}."


def first_error(log: str) -> str:
    """The first line of ``log`` that tells of an error, else its first line that is not blank."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), lines[0] if lines else "")


def _seconds(directory: Path) -> float:
    begin = (directory / STARTED_NAME).stat().st_mtime_ns
    end = (directory / STATUS_NAME).stat().st_mtime_ns
    return (end - begin) / 1e9


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
