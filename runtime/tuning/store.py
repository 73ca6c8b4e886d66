"""What a tuning run has found so far, on disk; finished ones give pins to `build` and `load`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ...generator.arch import Target, family_for, target_for_family
from ...generator.errors import CacheError, PlanError, TargetError
from ...generator.plan import plan
from ...generator.spec import Spec
from ...generator.variant import Variant
from ...generator.version import VERSION
from .. import paths
from ..atomic import write_atomic
from ..cache import TUNED, writing
from ..log import logger
from ..manifest import encode
from ..unit import BuildRequest

if TYPE_CHECKING:
    import torch

PinValue = int | str | bool
Pins = tuple[tuple[str, PinValue], ...]


class Trial(msgspec.Struct, kw_only=True):
    """One candidate.

    Attributes:
        pins: (field, value) of its plan.
        checked: whether it was compared with the reference.
        problem: why it can't win; "" for nothing.
        ms: best time of a call, by sequence length.
    """

    pins: Pins
    checked: bool = False
    problem: str = ""
    ms: dict[str, float] = {}


class Tuning(msgspec.Struct, kw_only=True):
    """One pass of one variant on one model of device.

    Attributes:
        flashgen: the version whose candidates they are.
        device: the model's name.
        key: of the variant.
        pass_name: "forward" or "backward".
        target: of the device.
        family: whose plans they are.
        problem_sizes: what the times are of, in words; another one starts anew.
        trials: the shipped plan first.
        duel_ms: geometric means of the best times, by index of the trial, after the last race.
        winner: index of the trial to use; None while unfinished.
        date: when it was finished, ISO 8601.
    """

    device: str
    key: str
    pass_name: str
    target: str
    family: str
    problem_sizes: str
    trials: list[Trial]
    flashgen: str = VERSION
    duel_ms: dict[str, float] = {}
    winner: int | None = None
    date: str = ""

    @property
    def gain(self) -> float:
        """Time of the shipped plan over that of the winner; 1 where it is the winner itself."""
        if not self.winner:
            return 1.0
        return self.duel_ms["0"] / self.duel_ms[str(self.winner)]


def path_of(tuning: Tuning, root: Path | None = None) -> Path:
    """Where ``tuning`` is kept below the cache's root."""
    where = (tuning.device, tuning.target, tuning.family, tuning.pass_name, tuning.key)
    return _path(paths.cache_root() if root is None else root, *where)


def save(tuning: Tuning) -> None:
    """Write ``tuning``, finished or not.

    Raises:
        CacheError: when the cache can't be written.
    """
    path = path_of(tuning)
    with writing(paths.cache_root()):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, encode(tuning))


def resume(fresh: Tuning) -> Tuning:
    """What an earlier run of the same candidates and sizes has found, else ``fresh``."""
    found = _read(path_of(fresh))
    if found is None or found.flashgen != fresh.flashgen:
        return fresh
    if found.problem_sizes != fresh.problem_sizes:
        return fresh
    same = [trial.pins for trial in found.trials] == [trial.pins for trial in fresh.trials]
    return found if same else fresh


def tuned_pins(
    variant: Variant, pass_name: str, target: Target, family: str | None, device: torch.device
) -> Pins:
    """The pins that tuning has found for ``device``; none where nothing beat the shipped plan.

    A result of another version of flashgen doesn't count, and neither does one whose plan has
    become illegal, which is logged.
    """
    folder = tuned_folder()
    if folder is None:
        return ()
    try:
        family, _ = family_for(target, family)
    except TargetError:
        return ()  # whoever plans it will say so
    where = (device_name(device), target.name, family, pass_name, variant.key)
    found = _read(_path(folder.parent, *where))
    if found is None or not found.winner or found.flashgen != VERSION:
        return ()
    pins = found.trials[found.winner].pins
    try:
        plan(variant, pass_name, target, family=family, pins=dict(pins))
    except PlanError as error:
        logger().warning("tuned plan of %s %s not used: %s", variant.key, pass_name, error)
        return ()
    return pins


def request_for(
    variant: Variant, pass_name: str, device: torch.device, family: str | None, spec: Spec | None
) -> BuildRequest:
    """What ``device`` runs ``variant`` by: with the pins of ``spec``, else those of tuning."""
    from ..devices import target_of

    target = target_for_family(target_of(device), family)
    pins = () if spec is None else spec.pins_for(target.name, pass_name)
    pins = pins or tuned_pins(variant, pass_name, target, family, device)
    return BuildRequest(variant, pass_name, target, family, pins)


def pins_here(variant: Variant, pass_name: str, target: Target, family: str | None) -> Pins:
    """`tuned_pins` for the device of this machine that ``target`` is for; none without one."""
    if tuned_folder() is None:
        return ()
    import torch

    from ..devices import target_of

    places = [torch.device("cpu")] if target.is_cpu else _cuda_devices()
    for place in places:
        if target_for_family(target_of(place), family) == target:
            return tuned_pins(variant, pass_name, target, family, place)
    return ()


def tuned_folder() -> Path | None:
    """Where results lie; None where nothing was ever tuned, which costs one look at the disk."""
    try:
        folder = paths.cache_root() / TUNED
    except CacheError:  # prebuilt kernels alone
        return None
    return folder if folder.is_dir() else None


@cache
def device_name(device: torch.device) -> str:
    """The model that results are for."""
    from ..bench.record import device_model

    return device_model(device)


def _cuda_devices() -> list[torch.device]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", index) for index in range(count)]


def _path(root: Path, device: str, target: str, family: str, pass_name: str, key: str) -> Path:
    model = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return root / TUNED / model / target / family / pass_name / f"{key}.json"


def _read(path: Path) -> Tuning | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Tuning)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
