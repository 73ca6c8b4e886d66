"""torch.compile of models of transformers: one graph, whatever the length."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", minversion="4.57")

from transformers_models import batch, make, run

from flashgen.integrations import transformers as fgen
from flashgen.runtime import bodies, calls, ops
from flashgen.runtime.catalogue import find_for_load


@pytest.fixture(scope="module", autouse=True)
def registered(kernels):
    fgen.register()


@pytest.fixture
def keys(monkeypatch):
    """The keys of kernels that traces have asked for."""
    found = []
    find = calls.find_kernel
    monkeypatch.setattr(calls, "find_kernel", lambda *call: (found.append(call[0]), find(*call))[1])
    return found


@pytest.mark.parametrize(
    ("name", "padding", "use_cache"),
    [("llama", "none", True), ("gpt2", "left", False), ("gemma2", "packed", False)],
)
def test_one_graph_gives_what_eager_mode_gives(name, padding, use_cache, keys):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    model, compiled = make(name), make(name)
    compiled.compile(backend=backend, fullgraph=True)
    for tokens in (21, 25, 33):  # the second length makes lengths arguments of the graph
        data = batch(name, padding, tokens)
        data.inputs["use_cache"] = use_cache
        expected, found = run(model, "fgen", data), run(compiled, "fgen", data)
        torch.testing.assert_close(found.out, expected.out, rtol=1e-5, atol=1e-6)
        assert found.gradients.keys() == expected.gradients.keys()
        for parameter, grad in found.gradients.items():
            torch.testing.assert_close(grad, expected.gradients[parameter], rtol=1e-4, atol=1e-7)
    assert len(graphs) == 2
    if (name, padding) == ("llama", "none"):
        assert set(keys) == {"d16-fp32-causal"}  # no mask was made
    nodes = [node for graph in graphs for node in graph.graph.nodes]
    handles = {node.args[4] for node in nodes if "flashgen.forward" in str(node.target)}
    assert handles and handles == set(keys)


def test_a_kernel_of_a_graph_is_found_by_its_key_alone():
    """As in a process that only runs what another has traced, or builds it ahead."""
    key = f"d16-fp32-softcaprt{bodies.find_model_mark('seen', '', 'fp32', False, False)}"
    assert find_for_load(key).variant.softcap == "runtime"
    ops._runners.pop(key, None)
    assert ops.runner_of(key, torch.device("cpu")).handle == key
