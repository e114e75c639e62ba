"""Losses that go through the parts of their model: captured as one function, and applied alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advisor.apply.recipe import Recipe
from advisor.pipeline.api import OptimizedStep
from collectors.live.capture import capture
from collectors.live.execution_trace import marked
from collectors.live.loss_calls import LossOfParts, calls_parts
from collectors.live.workload import Workload

CPU = torch.device("cpu")
DATA = torch.linspace(-1, 1, 32).reshape(4, 8)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


def _iterates(model: Any) -> torch.Tensor:
    x = DATA
    for layer in model:
        x = layer(x)
    return x.square().mean()


def _indexes(model: Any) -> torch.Tensor:
    assert isinstance(model, nn.Sequential)
    assert len(model) == 3
    result: torch.Tensor = model[1:](model[0](DATA)).square().mean()
    return result


def _calls(model: Any) -> torch.Tensor:
    result: torch.Tensor = model(DATA).square().mean()
    return result


def _fails(model: Any) -> torch.Tensor:
    raise ValueError("of the user")


def _workload(loss: Callable[[Any], torch.Tensor]) -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return Workload(
        "parts", "training", CPU, model, optimizer=optimizer, loss=LossOfParts(loss)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "through"), [(_iterates, True), (_indexes, True), (_calls, False), (_fails, False)]
)
def test_what_a_loss_calls_first_is_told_without_running_it(
    loss: Callable[[Any], torch.Tensor], through: bool
) -> None:
    model = nn.Sequential(*[Block() for _ in range(3)])
    state = torch.get_rng_state()
    assert calls_parts(loss, model) is through
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(part._forward_pre_hooks for part in model.modules())


def test_what_the_host_draws_meanwhile_is_drawn_again() -> None:
    model, held = nn.Sequential(Block()), random.getstate()

    def loss(part: Any) -> torch.Tensor:
        result: torch.Tensor = part[0](torch.rand(2, 8) + random.random())
        return result

    assert calls_parts(loss, model)
    assert random.getstate() == held


@pytest.mark.parametrize("loss", [_iterates, _indexes])
def test_its_step_is_captured_whole_and_computes_the_same(
    loss: Callable[[Any], torch.Tensor],
) -> None:
    work = _workload(loss)
    captured, _ = capture(work, generate_code=False)
    assert [item.lowered.graph.phase for item in captured.graphs] == ["forward", "backward"]
    targets = [node.target for node in captured.graphs[0].lowered.graph.nodes]
    assert sum("mm" in target for target in targets) == 3
    places = {node.location.module for node in captured.graphs[0].lowered.graph.nodes}
    assert "2.linear" in places
    compiled = work.results_of(lambda part: torch.compile(part, backend="aot_eager"))
    for ours, own in zip(compiled, _workload(loss).results_of(), strict=True):
        torch.testing.assert_close(ours, own)


def test_all_of_it_is_inside_the_captured_range() -> None:
    work = _workload(_iterates)
    with torch.profiler.profile() as profiler, marked(work) as step:
        step()
    events = profiler.events()
    assert events is not None
    named = [event for event in events if event.name == "fusion_advisor.captured"]
    assert len(named) == 1, sorted({event.name for event in events})[:50]
    products = [event for event in events if event.name == "aten::addmm"]
    assert len(products) == 3
    assert all(
        named[0].time_range.start <= event.time_range.start <= named[0].time_range.end
        for event in products
    )


def test_an_applied_step_trains_it_as_eager_does() -> None:
    own, ours = _workload(_iterates), _workload(_iterates)
    assert isinstance(own.loss, LossOfParts)
    assert isinstance(ours.part, nn.Module)
    assert ours.optimizer is not None
    step = OptimizedStep(Recipe(), ours.part, ours.optimizer, _iterates)
    eager = own.step_of()
    for _ in range(2):
        torch.testing.assert_close(step(), eager().detach())
    torch.compiler.reset()
