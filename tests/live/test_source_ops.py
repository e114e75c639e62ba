"""Ops of the program behind nodes: gradients that a function brings itself, checkpoints, bodies."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from advisor.model.graph import GRADIENT, Graph
from analyzers.dataflow import dataflow
from analyzers.program_cost import source_ops
from collectors.live.capture import capture
from collectors.live.workload import Workload

CPU = torch.device("cpu")


class Swish(torch.autograd.Function):
    """Its gradient is six ops of the user's own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        result: torch.Tensor = x * torch.sigmoid(x)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        result: torch.Tensor = grad * (gate + x * gate * (1 - gate))
        return result


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(x.tanh() + x)


class Stack(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.call(block, x.sort(-1).values)
        return x

    def call(self, block: nn.Module, x: torch.Tensor) -> Any:
        return block(x)


class Checkpointed(Stack):
    def call(self, block: nn.Module, x: torch.Tensor) -> Any:
        return checkpoint(block, x, use_reentrant=False)


def trained(model: Any, x: torch.Tensor) -> dict[str, Graph]:
    workload = Workload("w", "step", CPU, lambda: model(x).sum().backward())
    graphs = [item.lowered.graph for item in capture(workload, generate_code=False)[0].graphs]
    found: dict[str, Graph] = {graph.phase: graph for graph in graphs}
    assert sorted(found) == ["backward", "forward"]
    return found


def ops_of(graph: Graph) -> dict[str, int]:
    """How many ops of each label eager runs."""
    flow = dataflow(graph)
    found: dict[str, int] = defaultdict(int)
    for nodes in source_ops(flow, [name for name in flow.index if flow.nodes[name].args]):
        found[flow.nodes[next(iter(nodes))].label] += 1
    return found


@pytest.mark.parametrize("times", [1, 3])
def test_the_ops_of_a_gradient_that_a_function_brings_itself_are_each_one(times: int) -> None:
    x = torch.randn(8, 64, requires_grad=True)

    def model(x: torch.Tensor) -> torch.Tensor:
        for _ in range(times):
            x = Swish.apply(x.sort(-1).values)  # type: ignore[no-untyped-call]
        return x

    graphs = trained(model, x)
    # The compiler moves what needs no gradient to come into the forward graph.
    found = [ops_of(graph) for graph in graphs.values()]
    for label, count in (("aten.rsub.Scalar", 1), ("aten.add.Tensor", 1), ("aten.mul.Tensor", 3)):
        assert sum(ops.get(label, 0) for ops in found) == count * times, label
    own = [n for n in graphs["backward"].nodes if n.args and "@" in (n.origin or "")]
    assert own
    assert all((node.origin or "").startswith(GRADIENT) for node in own)


def test_what_is_checkpointed_runs_again_in_eager_too() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 64, requires_grad=True)
    plain, again = (trained(kind(3), x)["backward"] for kind in (Stack, Checkpointed))
    assert "aten.native_layer_norm.default" not in ops_of(plain)
    found = ops_of(again)
    assert found["aten.native_layer_norm.default"] == 3
    assert found["aten.tanh.default"] == 3
    assert found["aten.native_layer_norm_backward.default"] == 3
    assert ops_of(plain)["aten.native_layer_norm_backward.default"] == 3


def test_bodies_that_name_their_nodes_alike_are_told_apart() -> None:
    x = torch.randn(8, 64, requires_grad=True)
    graph = trained(Checkpointed(3), x)["forward"]
    found = ops_of(graph)
    assert found["aten.native_layer_norm.default"] == 3
    origins = {node.origin for node in graph.nodes if "layer_norm" in node.label}
    assert len(origins) == 3
    assert {(origin or "").partition("@")[0] for origin in origins} == {"layer_norm"}
    # Names are the same in every run.
    again = trained(Checkpointed(3), x)["forward"]
    assert [node.origin for node in again.nodes] == [node.origin for node in graph.nodes]
    # The graph itself names its nodes without a number.
    plain = trained(Stack(3), x)["forward"]
    assert not any("@" in (node.origin or "") for node in plain.nodes)
