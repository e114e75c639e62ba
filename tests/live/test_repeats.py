"""Equal ops of a program are one node of its graph, which says that eager runs each of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.model.graph import Node
from analyzers.dataflow import dataflow
from analyzers.program_cost import source_ops
from collectors.live.capture import capture
from collectors.live.workload import Workload

CPU = torch.device("cpu")
NORM, TANH = "aten.native_layer_norm.default", "aten.tanh.default"


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Parameter(torch.ones(8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = torch.tanh(x) * self.one + torch.tanh(x) * self.other
        first = functional.layer_norm(x, (8,), self.one)
        return scaled + first * functional.layer_norm(x, (8,), self.other)


def _workload(*, trains: bool) -> Workload:
    x = torch.randn(4, 8, requires_grad=trains)
    model = Twice()
    if not trains:
        return Workload("twice", "inference", CPU, model.eval(), inputs=(x,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return Workload(
        "twice", "training", CPU, model, optimizer=optimizer, loss=lambda m: m(x).square().mean()
    )  # fmt: skip


def _forward(*, trains: bool) -> tuple[Node, ...]:
    captured, _ = capture(_workload(trains=trains), generate_code=False, eager=True)
    return captured.graphs[0].lowered.graph.nodes


@pytest.mark.parametrize("trains", [False, True])
def test_what_the_compiler_merges_is_counted(*, trains: bool) -> None:
    """In training AOTAutograd merges equal nodes, otherwise our own lowering does."""
    nodes = _forward(trains=trains)
    (tanh,) = [node for node in nodes if node.op == "tanh"]
    assert [(op.origin, op.label) for op in tanh.repeats] == [("tanh_1", TANH)]
    norms = [node for node in nodes if node.label == NORM and node.args]
    shared = [node for node in norms if node.repeats]
    assert {op.label for node in shared for op in node.repeats} == {NORM}
    assert len(norms) - len(shared) == 2, "each scales by a weight of its own"
    captured, _ = capture(_workload(trains=trains), generate_code=False, eager=True)
    flow = dataflow(captured.graphs[0].lowered.graph)
    every = [n for n, node in flow.nodes.items() if node.label == NORM and node.args]
    assert [len(own) for own in source_ops(flow, every, again=True)] == [len(shared) + 1] * 2


def test_what_a_backward_pass_computes_again_is_no_op() -> None:
    captured, _ = capture(_workload(trains=True), generate_code=False, eager=True)
    backward = captured.graphs[1].lowered.graph.nodes
    again = [node for node in backward if node.op == "tanh"]
    assert not any(node.repeats for node in again)
    labels = {op.label for node in backward for op in node.repeats}
    assert TANH not in labels
    assert NORM not in labels
