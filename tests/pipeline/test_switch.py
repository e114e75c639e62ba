"""Graphs of a compiled step exchanged one by one; on the CPU, with passes of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

from advisor.model.base import Phase
from advisor.pipeline.switch import PLAIN, GraphSwitch, Selection
from collectors.live.capture import GraphHook
from collectors.live.workload import Workload

CPU = torch.device("cpu")
aten = torch.ops.aten


def replacing(old: Any, new: Any) -> GraphHook:
    """A pass that makes every `old` of a graph a `new`."""

    def hook(graph: fx.Graph, phase: Phase, identity: str) -> None:
        for node in graph.nodes:
            if node.target is old:
                node.target = new

    return hook


class Halves(nn.Module):
    """Two graphs with a break between them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x + 1.0).exp()
        torch._dynamo.graph_break()
        return y.sin() * 2.0


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


def switched(module: Callable[..., Any]) -> tuple[GraphSwitch, Callable[..., Any]]:
    switch = GraphSwitch()
    return switch, torch.compile(module, backend=switch.backend())


def test_each_graph_is_exchanged_alone_and_put_back() -> None:
    x = torch.randn(8, 16)
    switch, part = switched(Halves())
    plain = part(x)
    first = switch.recompiled([0], replacing(aten.exp.default, aten.tanh.default), "first")
    second = switch.recompiled([1], replacing(aten.sin.default, aten.cos.default), "second")
    both = Selection({**first.graphs, **second.graphs})
    expected = [
        (first, (x + 1).tanh().sin() * 2),
        (second, (x + 1).exp().cos() * 2),
        (both, (x + 1).tanh().cos() * 2),
        (PLAIN, (x + 1).exp().sin() * 2),
    ]
    for selection, value in expected:
        switch.select(selection)
        torch.testing.assert_close(part(x), value)
    torch.testing.assert_close(part(x), plain)


def test_a_backward_graph_is_exchanged_without_the_forward() -> None:
    weight = torch.randn(16, requires_grad=True)
    x = torch.randn(16)

    def loss() -> torch.Tensor:
        value: torch.Tensor = part(weight, x).sum()
        value.backward()
        return value.detach()

    switch, part = switched(lambda w, x: (w * x).sin())
    plain = loss()
    torch.testing.assert_close(weight.grad, (weight * x).cos().detach() * x)
    swap = switch.recompiled([1], replacing(aten.cos.default, aten.exp.default), "backward")
    switch.select(swap)
    weight.grad = None
    torch.testing.assert_close(loss(), plain)
    torch.testing.assert_close(weight.grad, (weight * x).exp().detach() * x)


def test_outputs_keep_the_strides_that_the_user_sees() -> None:
    x = torch.randn(4, 6)
    switch, part = switched(lambda x: (x + 1.0).t())
    strides = part(x).stride()
    switch.select(switch.recompiled([0], lambda *_: None, "same"))
    assert part(x).stride() == strides == (1, 6)


def test_what_the_compiler_raises_comes_out_and_the_step_runs_on() -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such thing")

    x = torch.randn(3)
    switch, part = switched(lambda x: x.sin() + 1)
    plain = part(x)
    with pytest.raises(Exception, match="no such thing"):
        switch.recompiled([0], broken, "broken")
    torch.testing.assert_close(part(x), plain)


def training() -> Workload:
    """The same small network every time, with its optimizer."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    x = torch.randn(8, 16)

    def loss(model: Callable[..., Any]) -> torch.Tensor:
        result: torch.Tensor = model(x).square().mean()
        return result

    return Workload("test", "training", CPU, module, optimizer=optimizer, loss=loss)


def test_a_training_step_trains_alike_with_all_graphs_compiled_again() -> None:
    def losses(selection: Selection | None) -> list[float]:
        torch.compiler.reset()
        work = training()
        switch, part = switched(work.part)
        step = work.step_of(lambda _: part)
        found = [float(step())]
        if selection is None:
            switch.select(switch.recompiled([0, 1], lambda *_: None, "same"))
        return [*found, float(step()), float(step())]

    again = losses(None)
    assert again == losses(PLAIN)
    assert len(set(again)) == 3, "every step changes the weights"
