"""A graph that is compiled once and runs often in a step: every run is priced and counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.pipeline.profile_report import _priced
from analyzers.exposure import Situation
from analyzers.opportunities import Advice, advise
from collectors.live.capture import Capture, capture
from collectors.live.graph_runs import GraphCall, _backward_of
from collectors.live.workload import Workload

CPU = torch.device("cpu")
GPU = gpu_by_key("h200")
SITUATION = Situation(GPU, load_calibration(GPU), eager=True)
TIMES = 5


class Block(nn.Module):
    """A softmax written out, a norm, and a product with a gate; nothing fuses with a sort."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512))
        self.product = nn.Linear(512, 512, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sort(-1).values
        less = torch.exp(x - x.amax(-1, keepdim=True))
        rows = less / less.sum(-1, keepdim=True)
        normed = rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight
        return torch.nn.functional.silu(self.product(normed)) * normed


def blocks_in(step: Callable[[list[Block], torch.Tensor], Any]) -> Callable[[], Any]:
    blocks, x = [Block() for _ in range(TIMES)], torch.randn(256, 512, requires_grad=True)
    return lambda: step(blocks, x)


def apart(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
    """A graph of one block, which all share."""
    for block in blocks:
        torch._dynamo.graph_break()
        x = block(x)
    return x


def together(blocks: list[Block], x: torch.Tensor) -> torch.Tensor:
    """One graph of all blocks."""
    for block in blocks:
        x = block(x)
    return x


def captured(step: Callable[[], Any], *, generate_code: bool = False) -> Capture:
    return capture(Workload("w", "step", CPU, step), generate_code=generate_code)[0]


def advised(found: Capture) -> Advice:
    return advise(_priced(found, None, eager=True)[0], SITUATION)


def trained(step: Callable[[], torch.Tensor]) -> Callable[[], None]:
    return lambda: step().sum().backward()


def totals(advice: Advice) -> dict[str, list[float]]:
    """By title: runs a step, time before, saving (ns), bytes before and after."""
    found: dict[str, list[float]] = {}
    for plan in advice.plans:
        told = plan.prediction
        assert told is not None
        runs = sum(site.executions for site in plan.sites)
        own = (runs, told.before_ns.mid, told.saving_ns.mid, told.bytes_before, told.bytes_after)
        before = found.get(plan.title, [0.0] * len(own))
        found[plan.title] = [a + b for a, b in zip(before, own, strict=True)]
    return found


def test_runs_of_one_graph_are_worth_what_their_like_in_one_graph_is() -> None:
    with torch.no_grad():
        often, once = (captured(blocks_in(step)) for step in (apart, together))
    assert len(often.graphs) == 2, "of the first input, which needs a gradient, and of the others"
    assert len(once.graphs) == 1
    found, wanted = totals(advised(often)), totals(advised(once))
    assert found.keys() == wanted.keys()
    assert len(found) == 2
    for title, values in found.items():
        assert values[0] == TIMES
        assert values == pytest.approx(wanted[title], abs=2 * TIMES)  # rounded to ns


@pytest.mark.parametrize("generate_code", [False, True])
def test_runs_are_in_the_order_of_the_step_with_those_of_gradients(generate_code: bool) -> None:
    found = captured(trained(blocks_in(apart)), generate_code=generate_code)
    phases = [(item.number, item.lowered.graph.phase) for item in found.graphs]
    assert phases == [(0, "forward"), (1, "forward"), (1, "backward"), (0, "backward")]
    blocks, loss = [GraphCall(0)] * TIMES, [GraphCall(1), GraphCall(2)]
    assert found.calls() == [*blocks, *loss, *[GraphCall(3)] * TIMES]


def test_gradients_of_some_runs_alone() -> None:
    """What the step does not use of a forward has no backward."""
    model = Block()

    def step() -> None:
        kept = []
        for _ in range(3):
            torch._dynamo.graph_break()
            kept.append(model(torch.randn(4, 512)))
        kept[1].sum().backward()

    calls = captured(step).calls()
    assert calls == [GraphCall(0)] * 3 + [GraphCall(1)]


def test_a_result_that_is_a_view_is_known_by_the_graph_behind_it() -> None:
    weight = nn.Parameter(torch.randn(8))

    def part(x: torch.Tensor) -> torch.Tensor:
        return (x * weight).view(-1)

    def step() -> None:
        for _ in range(2):
            torch._dynamo.graph_break()
            part(torch.randn(4, 8)).sum().backward()

    calls = captured(step).calls()
    assert calls == [GraphCall(0), GraphCall(1), GraphCall(0), GraphCall(1)]


def test_runs_on_other_sizes_are_told_apart() -> None:
    rows = itertools.cycle([4, 6, 4])

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + x

    def step() -> None:
        for _ in range(3):
            torch._dynamo.graph_break()
            x = torch.randn(next(rows), 8)
            torch._dynamo.mark_dynamic(x, 0)
            scaled(x)

    with torch.no_grad():
        found = captured(step)
    assert found.calls() == [GraphCall(0), GraphCall(0, like=False), GraphCall(0)]
    (priced,) = _priced(found, None, eager=True)[0]
    assert priced.graph.executions == 2


def test_gradients_are_those_of_the_graph_that_made_a_result() -> None:
    weight = torch.randn(4, requires_grad=True)
    made = torch.compile(lambda x: x * 2, backend="aot_eager")(weight)
    assert _backward_of([weight], [made]) is made.grad_fn
    assert _backward_of([weight], [torch.ones(2), made.view(2, 2)]) is made.grad_fn
    assert _backward_of([made], [made]) is None, "what was given is an earlier graph's"
    assert _backward_of([made], [made.view(2, 2)]) is None
    assert _backward_of([weight], [torch.ones(2)]) is None
