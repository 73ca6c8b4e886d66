from __future__ import annotations

import pytest
import torch

from flashgen.generator.variant import parse_key
from flashgen.runtime import verify
from flashgen.runtime.catalogue import Catalogue
from flashgen.runtime.kernel import Kernel


@pytest.fixture(scope="module", autouse=True)
def module_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path_factory.mktemp("verify")))
        patch.delenv("FLASHGEN_PREBUILT", raising=False)
        patch.delenv("FLASHGEN_SPECS", raising=False)
        yield


@pytest.fixture
def entries(tmp_path):
    (tmp_path / "two.yaml").write_text(
        "- {name: both, head_dim: 16, dtype: fp16, causal: true, dropout: true}\n"
        "- {name: one, head_dim: 16, dtype: fp32, passes: forward}\n"
    )
    catalogue = Catalogue.load([tmp_path])
    return [catalogue.find_one("both"), catalogue.find_one("one")]


def test_a_row_for_each_quantity(entries):
    seen = []
    rows = verify.verify(entries, "cpu", seen.append)
    assert seen == ["d16-fp16-causal-dropout", "d16-fp32"]
    assert [(r.key, r.pass_name, r.quantity) for r in rows] == [
        ("d16-fp16-causal-dropout", "forward", "out"),
        ("d16-fp16-causal-dropout", "forward", "lse"),
        ("d16-fp16-causal-dropout", "backward", "dq"),
        ("d16-fp16-causal-dropout", "backward", "dk"),
        ("d16-fp16-causal-dropout", "backward", "dv"),
        ("d16-fp32", "forward", "out"),
        ("d16-fp32", "forward", "lse"),
    ]
    assert all(row.ok and row.target == "cpu" for row in rows)
    assert all(0 <= row.max_error <= row.bound for row in rows)


@pytest.mark.parametrize(
    ("quantity", "pass_name"), [("out", "forward"), ("lse", "forward"), ("dk", "backward")]
)
def test_a_wrong_element_is_found(entries, monkeypatch, quantity, pass_name):
    run = getattr(Kernel, f"run_{pass_name}")
    index = {"out": 0, "lse": 1, "dk": 1}[quantity]

    def wrong(self, *arguments):
        results = run(self, *arguments)
        results[index].view(-1)[-1] += 0.1
        return results

    monkeypatch.setattr(Kernel, f"run_{pass_name}", wrong)
    rows = verify.verify(entries[:1], "cpu")
    failed = [row for row in rows if not row.ok]
    assert quantity in {row.quantity for row in failed}
    (row,) = (row for row in failed if row.quantity == quantity)
    assert row.max_error > row.bound and "ours" in row.detail and "Shape(" in row.detail


def test_a_mask_of_another_seed_is_found(entries, monkeypatch):
    run = Kernel.run_forward

    def wrong(self, q, k, v, rng_state, *scalars):
        other = None if rng_state is None else rng_state + 4
        return run(self, q, k, v, other, *scalars)

    monkeypatch.setattr(Kernel, "run_forward", wrong)
    rows = {row.quantity: row.ok for row in verify.verify(entries[:1], "cpu")}
    assert not rows["out"] and rows["lse"]


def test_inputs_are_the_same_each_time():
    variant = parse_key("d16-fp16")
    first, again = (verify.random_inputs(variant, verify.SHAPES[0], "cpu", seed=3) for _ in "ab")
    assert torch.equal(first.q, again.q) and torch.equal(first.dlse, again.dlse)
    assert first.q.dtype == torch.float16 and first.dlse.dtype == torch.float32
    other = verify.random_inputs(variant, verify.SHAPES[0], "cpu", seed=4)
    assert not torch.equal(first.q, other.q)
