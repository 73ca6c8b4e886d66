from __future__ import annotations

import time
from contextlib import contextmanager

import pytest
import torch

from flashgen.runtime.bench.meter import Meter
from flashgen.runtime.bench.timing import Samples, Timed, measure, rotate

CPU = torch.device("cpu")


def test_a_sample_of_each_call_in_each_round():
    found = measure({"slow": Timed(lambda: time.sleep(0.012)), "fast": Timed(int)}, 5, CPU)
    assert {name: len(samples.ms) for name, samples in found.items()} == {"slow": 5, "fast": 5}
    assert found["slow"].median_ms >= 12 > 1 > found["fast"].median_ms


def test_every_round_has_an_order_of_its_own():
    ran = []

    def logged(name):
        def call():
            ran.append(name)
            time.sleep(0.011)  # a burst is one call

        return Timed(call)

    measure({"a": logged("a"), "b": logged("b"), "c": logged("c")}, 12, CPU)
    rounds = [tuple(ran[i : i + 3]) for i in range(len(ran) - 36, len(ran), 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 1


def test_the_context_is_entered_around_bursts():
    inside = []

    @contextmanager
    def context():
        inside.append(True)
        yield
        inside.pop()

    seen = []
    measure({"a": Timed(lambda: seen.append(bool(inside)), context)}, 2, CPU)
    assert seen and all(seen) and not inside


def test_rotate_takes_the_sets_in_turn():
    call = rotate([lambda: "a", lambda: "b", lambda: "c"])
    assert [call() for _ in range(4)] == ["b", "c", "a", "b"]


def test_median_and_quartiles():
    samples = Samples([4.0, 1.0, 2.0, 3.0, 100.0])
    assert samples.median_ms == 3.0 and samples.quartiles_ms == (2.0, 4.0)
    assert Samples([2.0]).quartiles_ms == (2.0, 2.0)


def test_a_meter_of_the_cpu_shows_nothing():
    meter = Meter(CPU)
    reading = meter.read()
    assert (reading.sm_clock_mhz, reading.power_w, meter.driver_version) == (None, None, None)
    assert meter.peak_flops(1000) is None


@pytest.mark.gpu
def test_a_queue_hides_the_host():
    """A call of 100 us on the host and a few on the device is timed at the few."""
    x = torch.zeros(256, device="cuda")

    def call():
        start = time.perf_counter()
        while time.perf_counter() - start < 1e-4:
            pass
        x.add_(1)

    found = measure({"a": Timed(call)}, 3, torch.device("cuda", 0), meter=Meter(x.device))
    assert found["a"].median_ms < 0.03
    reading = found["a"].readings[0]
    assert reading.sm_clock_mhz and reading.power_w
