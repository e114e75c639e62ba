"""Training steps: gradients are ops of their own, and what is computed again is no op of eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from advisor.model.graph import GRADIENT, Graph
from analyzers.dataflow import dataflow
from analyzers.program_cost import source_ops
from tests.analyzers.rules.test_captured import matches
from tests.builders.captured import captured_training

ROWS, WIDTH = 2048, 256


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    module = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
    found = captured_training(module, torch.randn(ROWS, WIDTH))
    return [item.lowered.graph for item in found.graphs]


def test_a_gradient_is_one_op_with_what_it_computes_again(graphs: list[Graph]) -> None:
    (backward,) = [graph for graph in graphs if graph.phase == "backward"]
    flow = dataflow(backward)
    (gradient,) = [
        nodes
        for nodes in source_ops(flow, [n.id for n in backward.nodes if n.args])
        if any("gelu_backward" in flow.nodes[name].label for name in nodes)
    ]
    ops = {flow.nodes[name].op for name in gradient}
    assert {"erf", "exp"} <= ops, "the error function is the forward pass's, computed again"
    assert all((flow.nodes[name].origin or "").startswith(GRADIENT) for name in gradient)


def test_no_chain_joins_an_activation_and_its_gradient(graphs: list[Graph]) -> None:
    assert not [m for m in matches(graphs) if m.finding.rule == "pointwise-chain"]
