"""BuildRequests -> Artifacts: looks each up, and compiles what is missing in one ninja run."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import filelock

from ..generator.errors import CacheError, CompileError, FlashgenError, ToolchainError
from .artifact import Artifact
from .cache import BATCHES, Cache, find_at, writing
from .compile_unit import Job, conclude, edge_for, refuse_lost_speed, write_sources
from .jobs import default_jobs
from .log import logger
from .ninja_file import Edge, ninja_text, run_ninja
from .remembered import recall, remember, sources_state
from .toolchain import toolchain_for
from .unit import BuildRequest, Unit, compiler_fingerprint, prepare

__all__ = ["BuildEvent", "BuildRequest", "build", "find"]


@dataclass(frozen=True, slots=True)
class BuildEvent:
    """One step of a build, for a progress bar.

    Attributes:
        finished: units that have been compiled, or have failed, so far.
        total: units that this call compiles; what the cache had isn't counted.
        request: the unit that has just ended; None for the event at the start.
        artifact: what it gave; None at the start and where it failed.
        error: why it failed.
        elsewhere: another process compiled it, and this one waited.
    """

    finished: int
    total: int
    request: BuildRequest | None = None
    artifact: Artifact | None = None
    error: FlashgenError | None = None
    elsewhere: bool = False


Progress = Callable[[BuildEvent], None]


def find(
    request: BuildRequest, *, cache: Cache | None = None, cuda_home: Path | None = None
) -> Artifact | None:
    """The cached binary of ``request``, or None; starts no compiler and writes nothing needed.

    Raises:
        PlanError: when no plan fits.
        CacheError: when the environment names no cache.
    """
    cache = cache or Cache.default()
    return _Wanted(request, cache, cuda_home, sources_state()).lookup(cache)


def build(
    requests: Iterable[BuildRequest],
    *,
    jobs: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
    cache: Cache | None = None,
    cuda_home: Path | None = None,
) -> list[Artifact]:
    """The binaries of ``requests``, in their order, compiled where the cache lacks them.

    Several processes that want the same binary compile it once. A unit that fails doesn't keep
    the others from being compiled and kept.

    Args:
        requests: what is wanted; the same one may come twice.
        jobs: the most compilers at once; default, bounded by cores, memory, FLASHGEN_MAX_JOBS.
        force: compile even what the cache has.
        progress: called at the start and after each unit.
        cache: default, the one that the environment names.
        cuda_home: the CUDA toolkit; default, the discovery order of `toolchain`.

    Raises:
        PlanError: when no plan fits.
        ToolchainError: when a compiler that is needed is missing or too old.
        CacheError: when the cache can't be written and something is missing from it, or no
            prebuilt kernel fits and there is no compiler.
        CompileError: when a unit fails; names the key, first error line, source and log.
    """
    cache = cache or Cache.default()
    sources = sources_state()
    wanted = [_Wanted(request, cache, cuda_home, sources) for request in requests]
    found: dict[tuple[str, str], Artifact] = {}
    missing: dict[tuple[str, str], Job] = {}
    for one in wanted:
        artifact = None if force else one.lookup(cache)
        if artifact is not None:
            found[one.identity] = artifact
        else:
            missing[one.identity] = one.job(() if force else cache.refusals(one.unit))
    if missing:
        batch = _Batch(cache, default_jobs(jobs), force, progress, len(missing))
        found |= batch.run(missing)
    artifacts = [found[one.identity] for one in wanted]
    for one, artifact in zip(wanted, artifacts, strict=True):
        if one.request.strict:  # a build that wasn't strict may have put it there
            refuse_lost_speed(artifact.manifest, artifact.directory)
    return artifacts


class _Wanted:
    """A request with its unit and what can compile it, or why nothing can."""

    def __init__(
        self, request: BuildRequest, cache: Cache, cuda_home: Path | None, sources: str
    ) -> None:
        self.request = request
        self.compiler: str | None = None
        self._cache = cache
        self._sources = sources
        self._known = recall(cache.root, request, sources)
        if self._known is None:
            self.unit  # noqa: B018  (a request that has no plan is told before a missing compiler)
        try:
            self.toolchain = toolchain_for(request.target, cuda_home=cuda_home)
            self.compiler = compiler_fingerprint(self.toolchain.identity)
        except ToolchainError as error:
            self.problem = error  # raised only where something must be compiled

    @cached_property
    def unit(self) -> Unit:
        return prepare(self.request, self._cache.template_cache)

    @property
    def identity(self) -> tuple[str, str]:
        place = self._known.place if self._known is not None else self.unit.place
        return place.source_fingerprint, self.compiler or ""

    def lookup(self, cache: Cache) -> Artifact | None:
        known = self._known
        if known is not None and cache.root is not None:
            artifact = find_at(cache.root, known.place, self.compiler, known.is_sound)
            if artifact is not None:
                return artifact
        artifact = cache.lookup(self.unit, self.compiler)
        if artifact is not None and cache.root in artifact.directory.parents:
            remember(cache.root, self.request, self._sources, self.unit.place, artifact.library)
        return artifact

    def job(self, refusals: Sequence[str] = ()) -> Job:
        """What compiles it; ``refusals`` say why nothing prebuilt serves."""
        if self.compiler is None and refusals:
            raise CacheError(f"{' '.join(refusals)} (Nor can it be built here: {self.problem})")
        if self.compiler is None:
            raise self.problem
        for refusal in refusals:
            logger().warning("%s (It is built now.)", refusal)
        return Job(self.unit, self.toolchain)


@dataclass
class _Batch:
    """The missing units of one `build` call: what has become of each, and the locks."""

    cache: Cache
    jobs: int
    force: bool
    progress: Progress | None
    total: int
    done: dict[tuple[str, str], Artifact] = field(default_factory=dict)
    errors: list[FlashgenError] = field(default_factory=list)

    def run(self, missing: dict[tuple[str, str], Job]) -> dict[tuple[str, str], Artifact]:
        """Compile ``missing``; what another process is compiling meanwhile is waited for."""
        self._tell(BuildEvent(0, self.total))
        left = dict(missing)
        while left:
            # taking what is free and waiting only with empty hands can't deadlock
            locks = {name: self._try_lock(job.unit) for name, job in left.items()}
            held = {name: lock for name, lock in locks.items() if lock is not None}
            if not held:
                name, job = next(iter(left.items()))
                lock = self.cache.lock(job.unit)
                with writing(self.cache.writable_root):
                    lock.acquire()
                held = {name: lock}
            with ExitStack() as stack:
                for lock in held.values():
                    stack.callback(lock.release)
                self._compile({name: left.pop(name) for name in held}, held)
        self._raise_errors()
        return self.done

    def _compile(
        self, jobs: dict[tuple[str, str], Job], locks: dict[tuple[str, str], filelock.FileLock]
    ) -> None:
        edges: list[tuple[tuple[str, str], Job, Edge]] = []
        for name, job in jobs.items():
            # another process may have built it while the lock was waited for
            artifact = None if self.force else self.cache.lookup(job.unit, job.fingerprint)
            if artifact is not None:
                self._finish(name, job, artifact, elsewhere=True)
                locks[name].release()
            else:
                edges.append((name, job, self._edge(job)))
        if not edges:
            return
        ended: set[int] = set()

        def on_finished(index: int) -> None:
            ended.add(index)
            name, job, edge = edges[index]
            self._conclude(name, job, edge)
            locks[name].release()  # whoever waits for this one need not wait for the batch

        output = self._run_ninja([edge for _, _, edge in edges], on_finished)
        lost = [job for i, (_, job, _) in enumerate(edges) if i not in ended]
        if lost:
            raise CompileError(
                f"build: {lost[0].unit.request}: expected ninja to compile it, got: "
                f"{output.strip()[-500:] or 'no output'}. Run the build again."
            )

    def _edge(self, job: Job) -> Edge:
        directory = self.cache.new_directory(job.unit, job.fingerprint)
        with writing(self.cache.writable_root):
            write_sources(job, directory)
        return edge_for(job, directory)

    def _run_ninja(self, edges: Sequence[Edge], on_finished: Callable[[int], None]) -> str:
        root = self.cache.writable_root
        directory = root / BATCHES / secrets.token_hex(8)
        with writing(root):
            directory.mkdir(parents=True)
            (directory / "build.ninja").write_text(ninja_text(edges), encoding="utf-8")
        try:
            return run_ninja(directory, self.jobs, on_finished)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _conclude(self, name: tuple[str, str], job: Job, edge: Edge) -> None:
        try:
            manifest = conclude(job, edge, self.jobs)
            artifact = self.cache.publish(job.unit, edge.directory, manifest)
        except FlashgenError as error:
            self.errors.append(error)
            self._tell(BuildEvent(self._count, self.total, job.unit.request, error=error))
        else:
            self._finish(name, job, artifact)

    def _finish(
        self, name: tuple[str, str], job: Job, artifact: Artifact, elsewhere: bool = False
    ) -> None:
        self.done[name] = artifact
        request = job.unit.request
        self._tell(BuildEvent(self._count, self.total, request, artifact, elsewhere=elsewhere))

    @property
    def _count(self) -> int:
        return len(self.done) + len(self.errors)

    def _try_lock(self, unit: Unit) -> filelock.FileLock | None:
        lock = self.cache.lock(unit)
        with writing(self.cache.writable_root):
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout:  # is an OSError, so it must not reach `writing`
                return None
        return lock

    def _tell(self, event: BuildEvent) -> None:
        if self.progress is not None:
            self.progress(event)

    def _raise_errors(self) -> None:
        if not self.errors:
            return
        first, more = self.errors[0], len(self.errors) - 1
        if not more:
            raise first
        raise type(first)(f"{first} ({more} more unit(s) failed; run again to see the rest.)")
