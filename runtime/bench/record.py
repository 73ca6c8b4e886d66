"""What was measured -> JSON, and back."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Literal

import msgspec
import torch

from ...generator.errors import ArgumentError
from ...generator.version import VERSION
from ..atomic import write_atomic
from .meter import Meter

BENCHMARK = "flashgen bench"
OURS = "flashgen"
_LINE_DEPTH = 4  # of a measurement in the JSON: record, cells, cell, measurements
Kind = Literal["speed", "memory", "host"]
_PACKAGES = (
    "triton", "flash-attn", "flash-attn-3", "fa3-fwd", "flash-attn-4", "nvidia-cutlass-dsl",
    "apache-tvm-ffi",
)  # fmt: skip


class Measurement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One contender's pass of one cell.

    Attributes:
        contender: a peer's name, ``flashgen``, or ``flashgen:FAMILY``.
        pass_name: forward, backward or step (both, through autograd).
        median_ms: of a call, over the rounds; with kind ``host``, of the host's time alone.
        quartiles_ms: of the rounds.
        range_ms: least and greatest of the rounds.
        tflops: of the median, in 1e12 a second.
        sm_clock_mhz: median of the readings while it ran.
        peak_share: tflops over what the tensor cores could do at that clock.
        power_w: median of the readings.
        peak_bytes: with kind ``memory``, the most that was allocated over the inputs.
    """

    contender: str
    pass_name: str
    median_ms: float | None = None
    quartiles_ms: tuple[float, float] | None = None
    range_ms: tuple[float, float] | None = None
    tflops: float | None = None
    sm_clock_mhz: float | None = None
    peak_share: float | None = None
    power_w: float | None = None
    peak_bytes: int | None = None


class Note(msgspec.Struct, frozen=True):
    """Why a contender has no row: it isn't there, refuses the cell, or failed a check."""

    contender: str
    reason: str


class CellRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cell: its sizes, and what the contenders made of it."""

    key: str
    label: str
    head_dim: int
    head_dim_v: int
    dtype: str
    causal: bool
    batch: int
    num_heads: int
    num_heads_kv: int
    seqlen_q: int
    seqlen_k: int
    dropout_p: float = 0.0
    measurements: tuple[Measurement, ...] = ()
    refused: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()

    def of(self, contender: str, pass_name: str) -> Measurement | None:
        """The measurement of that contender and pass, or None."""
        for found in self.measurements:
            if (found.contender, found.pass_name) == (contender, pass_name):
                return found
        return None


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ran it."""

    name: str
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    driver: str | None = None
    threads: int | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A run of `flashgen bench`.

    Attributes:
        benchmark: always ``flashgen bench``.
        kind: what was measured.
        date: UTC, ISO 8601.
        commit: of flashgen's checkout; "" where it isn't known.
        command: the command line.
        method: in words.
        device: what ran it.
        versions: of packages, by name.
        absent: contenders that this machine doesn't have.
        cells: in the order of the run.
    """

    kind: Kind
    date: str
    commit: str
    command: str
    method: str
    device: DeviceRecord
    versions: dict[str, str]
    absent: tuple[Note, ...]
    cells: tuple[CellRecord, ...]
    benchmark: str = BENCHMARK

    def with_cell(self, cell: CellRecord) -> Record:
        """This record and one cell more."""
        return msgspec.structs.replace(self, cells=(*self.cells, cell))

    @property
    def contenders(self) -> tuple[str, ...]:
        """Those that have a measurement, ours first."""
        names = dict.fromkeys(m.contender for cell in self.cells for m in cell.measurements)
        return tuple(sorted(names, key=lambda name: not is_ours(name)))

    @property
    def passes(self) -> tuple[str, ...]:
        """Those that have a measurement."""
        return tuple(dict.fromkeys(m.pass_name for c in self.cells for m in c.measurements))


def is_ours(contender: str) -> bool:
    """Whether that is flashgen's own kernel, of whatever family."""
    return contender.partition(":")[0] == OURS


def device_model(device: torch.device) -> str:
    """The name of ``device``'s model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def describe_device(device: torch.device) -> DeviceRecord:
    """The facts of ``device``."""
    name = device_model(device)
    if device.type != "cuda":
        return DeviceRecord(name=name, threads=torch.get_num_threads())
    properties = torch.cuda.get_device_properties(device)
    meter = Meter(device)
    return DeviceRecord(
        name=name,
        multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        power_limit_w=meter.power_limit_w,
        driver=meter.driver_version,
    )


def describe_versions(device: torch.device) -> dict[str, str]:
    """Versions of flashgen, torch and what else takes part."""
    found = {
        "flashgen": VERSION,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
        found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit_of_checkout() -> str:
    """The commit of the checkout that this module lies in; "" outside of one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).resolve().parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # no git
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def now() -> str:
    """The time, UTC, ISO 8601."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def write_record(record: Record, path: Path) -> None:
    """Write ``record`` as JSON, a line for each measurement."""
    lines = msgspec.json.format(msgspec.json.encode(record), indent=1)
    write_atomic(path, _joined(lines.decode()).encode())


def read_record(path: Path) -> Record:
    """The record at ``path``.

    Raises:
        ArgumentError: when there is none, or it isn't one of `flashgen bench`.
    """
    try:
        record = msgspec.json.decode(path.read_bytes(), type=Record)
    except OSError as error:
        raise ArgumentError(f"{path}: expected a record, got {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise ArgumentError(
            f"{path}: expected a record of `{BENCHMARK}`, got: {error}. Write one with -o."
        ) from None
    return record


def _joined(text: str) -> str:
    """``text``, indented by 1, with each measurement and note of a cell on one line."""
    lines: list[str] = []
    for line in text.splitlines():
        depth, inner = len(line) - len(line.lstrip(" ")), line.strip()
        if depth > _LINE_DEPTH or (depth == _LINE_DEPTH and inner[0] in "]}"):
            lines[-1] += (" " if lines[-1].endswith(",") else "") + inner
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as facts:
            for line in facts:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()
