"""Every catalogue variant's kernels on the CPU meet the error rule, forward and all gradients."""

from __future__ import annotations

import pytest
import torch
from catalogue_cases import CASES, check_kernel

from flashgen.generator.arch import TARGETS
from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.kernel import Kernel


@pytest.fixture(scope="module")
def entries():
    """By name; the kernels of all are built at once, into the cache that the environment names."""
    found = {e.spec.name: e for e in Catalogue.load().entries if e.spec.name in CASES}
    build(
        [
            BuildRequest(e.variant, name, TARGETS["cpu"], pins=e.spec.pins_for("cpu", name))
            for e in found.values()
            for name in e.spec.passes
        ]
    )
    return found


@pytest.mark.parametrize("name", sorted(CASES))
def test_error_rule(entries, name):
    entry = entries[name]
    kernel = Kernel(entry.variant, torch.device("cpu"), spec=entry.spec)
    check_kernel(kernel, CASES[name], "cpu", backward="backward" in entry.spec.passes)
