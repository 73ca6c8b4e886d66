"""Every catalogue variant's kernels on this GPU meet the error rule, forward and all gradients."""

from __future__ import annotations

import pytest
from catalogue_cases import CASES, check_kernel

from flashgen.runtime.build import BuildRequest, build
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.devices import target_of
from flashgen.runtime.kernel import Kernel

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def entries(device):
    """By name; the kernels of all are built at once."""
    found = {e.spec.name: e for e in Catalogue.load().entries if e.spec.name in CASES}
    target = target_of(device)
    build(
        [
            BuildRequest(e.variant, name, target, pins=e.spec.pins_for(target.name, name))
            for e in found.values()
            for name in e.spec.passes
        ]
    )
    return found


@pytest.mark.parametrize("name", sorted(CASES))
def test_error_rule(entries, device, name):
    entry = entries[name]
    kernel = Kernel(entry.variant, device, spec=entry.spec)
    check_kernel(kernel, CASES[name], device, backward="backward" in entry.spec.passes)
