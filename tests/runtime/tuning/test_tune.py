"""Tuning on the CPU, with a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashgen.generator.arch import TARGETS
from flashgen.generator.errors import BenchError
from flashgen.generator.plan import candidates, plan
from flashgen.generator.variant import parse_key
from flashgen.runtime.bench.cells import Sizes
from flashgen.runtime.bench.timing import Samples
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.kernel import Kernel
from flashgen.runtime.tuning import ship, store, tune
from flashgen.runtime.tuning.ship import shipped_of, table_text

CPU = torch.device("cpu")
KEY = "d16-fp32"
TARGET = TARGETS["cpu"]


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """One for the module, so that the two candidates are compiled once."""
    return tmp_path_factory.mktemp("tune")


@pytest.fixture(autouse=True)
def cache_dir(shared_cache, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(shared_cache))
    for name in ("FLASHGEN_PREBUILT", "FLASHGEN_SPECS"):
        monkeypatch.delenv(name, raising=False)
    return shared_cache


@pytest.fixture
def settings():
    return tune.Settings(CPU, (16,), Sizes(16, 16), rounds=2, limit=2, force=True)


@pytest.fixture
def entry():
    return Catalogue.load().find_one(KEY)


def clock(monkeypatch, *races):
    """Let each race give these best times, by index of the candidate."""
    left = list(races)

    def measure(timed, rounds, device):
        for one in timed.values():
            one.call()  # it must run
        times = left.pop(0)
        return {name: Samples([times[int(name)], 99.0]) for name in timed}

    monkeypatch.setattr(tune, "measure", measure)
    return left


def test_the_faster_plan_wins_and_load_uses_it(entry, settings, monkeypatch):
    clock(monkeypatch, {0: 4.0, 1: 2.0}, {0: 3.0, 1: 2.5})
    events = []
    found = tune.tune(entry, "forward", settings, events.append)
    assert found.winner == 1 and found.gain == pytest.approx(1.5)  # the best of both races
    assert [e.done for e in events] == [1, 2, 3, 4] and events[-1].total == 4
    second = list(candidates(entry.variant, "forward", TARGET))[1]
    kernel = Kernel(entry.variant, CPU, spec=entry.spec, passes=("forward",))
    used = kernel._passes[CPU, "forward"].artifact.manifest.plan
    assert (used["tile_m"], used["tile_n"]) == (second.tile_m, second.tile_n)
    pins = store.tuned_pins(entry.variant, "forward", TARGET, None, CPU)
    assert dict(pins) == dict(found.trials[1].pins)


def test_less_than_one_percent_is_noise(entry, settings, monkeypatch):
    clock(monkeypatch, {0: 4.0, 1: 2.0}, {0: 2.01, 1: 2.0})
    found = tune.tune(entry, "forward", settings)
    assert found.winner == 0 and found.gain == 1.0
    assert store.tuned_pins(entry.variant, "forward", TARGET, None, CPU) == ()


def test_an_interrupted_run_goes_on(entry, settings, monkeypatch):
    clock(monkeypatch, {0: 4.0, 1: 2.0})  # then there is no more: the duel fails
    with pytest.raises(IndexError):
        tune.tune(entry, "forward", settings)
    clock(monkeypatch, {0: 4.0, 1: 2.0})  # the duel alone
    again = replace(settings, force=False)
    monkeypatch.setattr(tune, "compare_call", None)  # nothing is checked twice
    assert tune.tune(entry, "forward", again).winner == 1
    clock(monkeypatch)  # what is finished runs nothing
    assert tune.tune(entry, "forward", again).winner == 1


def test_other_sizes_start_anew(entry, settings, monkeypatch):
    clock(monkeypatch, {0: 4.0, 1: 2.0}, {0: 4.0, 1: 2.0})
    tune.tune(entry, "forward", settings)
    left = clock(monkeypatch, {0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    other = replace(settings, force=False, seqlens=(8,))
    assert tune.tune(entry, "forward", other).winner == 0
    assert not left


def test_a_wrong_candidate_cannot_win(entry, settings, monkeypatch):
    real, seen = tune.compare_call, []

    def compare(kernel, shape, device, **options):
        found = real(kernel, shape, device, **options)
        seen.append(kernel)
        if len(set(map(id, seen))) == 2:  # the second candidate's
            found["out"] = replace(found["out"], ok=False)
        return found

    monkeypatch.setattr(tune, "compare_call", compare)
    clock(monkeypatch, {0: 4.0, 1: 2.0}, {0: 4.0, 1: 2.0})
    found = tune.tune(entry, "forward", settings)
    assert found.winner == 0 and found.trials[1].problem.startswith("out at ")


def test_a_wrong_shipped_plan_is_an_error(entry, settings, monkeypatch):
    monkeypatch.setattr(tune._Run, "_fault", lambda *_: "out is off")
    with pytest.raises(BenchError, match="expected the shipped plan to work, got: out is off"):
        tune.tune(entry, "forward", settings)


def test_a_result_of_another_version_does_not_count(entry, settings, monkeypatch):
    clock(monkeypatch, {0: 4.0, 1: 2.0}, {0: 4.0, 1: 2.0})
    tune.tune(entry, "forward", settings)
    assert store.tuned_pins(entry.variant, "forward", TARGET, None, CPU)
    assert store.pins_here(entry.variant, "forward", TARGET, None)
    monkeypatch.setattr(store, "VERSION", "0.0.0")
    assert store.tuned_pins(entry.variant, "forward", TARGET, None, CPU) == ()


def test_a_plan_that_became_illegal_is_not_used(entry, settings, monkeypatch, caplog):
    clock(monkeypatch, {0: 4.0, 1: 2.0}, {0: 4.0, 1: 2.0})
    found = tune.tune(entry, "forward", settings)
    found.trials[1].pins = (("tile_m", 7),)
    store.save(found)
    assert store.tuned_pins(entry.variant, "forward", TARGET, None, CPU) == ()


def test_the_shipped_table_is_rewritten(entry, settings, monkeypatch, tmp_path):
    from flashgen.generator.plan import shipped

    clock(monkeypatch, {0: 4.0, 1: 2.0}, {0: 4.0, 1: 2.0})
    row = shipped_of(tune.tune(entry, "forward", settings))
    module = Path(shipped.__file__).read_text("utf-8")
    text = table_text(module, [row, replace(row, key="d24-fp32")])
    scope = {"__name__": "flashgen.generator.plan.shipped"}
    exec(compile(text, "shipped.py", "exec"), scope)
    assert [r.key for r in scope["TABLE"]] == [KEY, "d24-fp32"]
    assert scope["TABLE"][0].pins == row.pins and scope["TABLE"][0].gain == row.gain
    assert table_text(text, list(scope["TABLE"])) == text  # a second run finds the table
    assert table_text(text, []).endswith(module[module.index("TABLE") :])

    monkeypatch.setattr(shipped, "TABLE", (row,))
    variant = parse_key(KEY)
    first = next(candidates(variant, "forward", TARGET))
    assert first == plan(variant, "forward", TARGET)
    assert {name: getattr(first, name) for name, _ in row.pins} == dict(row.pins)
    assert len(list(candidates(variant, "forward", TARGET))) == len(
        {repr(c) for c in candidates(variant, "forward", TARGET)}
    )


def test_write_puts_winners_in_the_checkouts_table(entry, settings, monkeypatch, tmp_path):
    from flashgen.generator.plan import shipped

    copy = tmp_path / "generator" / "plan" / "shipped.py"
    copy.parent.mkdir(parents=True)
    copy.write_text(Path(shipped.__file__).read_text("utf-8"))
    monkeypatch.setattr(ship.paths, "generated_folder", lambda: tmp_path / "generated")
    clock(monkeypatch, {0: 4.0, 1: 2.0}, {0: 4.0, 1: 2.0})
    won = tune.tune(entry, "forward", settings)
    clock(monkeypatch, {0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    lost = tune.tune(entry, "forward", settings)
    before = copy.read_text()
    assert ship.write_table([lost]) == copy and copy.read_text() == before
    ship.write_table([won])
    assert f'Shipped(\n        "{KEY}",\n        "forward",\n        "cpu",' in copy.read_text()
