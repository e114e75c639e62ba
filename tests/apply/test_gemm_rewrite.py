"""Products of captured graphs with what follows: plans equal their regions, graphs compute the
same, and what stays out says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.apply.rewrite import rewrite
from advisor.model.plan import FusionPlan
from advisor.pipeline.backend import choose_swaps
from advisor.pipeline.graph_programs import programs_of
from advisor.verify.region import region_disagreement
from collectors.live.fx_graph import Lowered
from tests.builders.captured import CPU, arguments_of, captured, captured_training, execute, ready
from tests.builders.gemms import gemms_of, products_of

Forward = Callable[[Any, torch.Tensor], object]


class Layers(nn.Module):
    """Three linear layers for the forward of a test."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(48, 96), nn.Linear(48, 96, bias=False)
        self.down, self.scale = nn.Linear(96, 48), nn.Parameter(torch.rand(48))
        self.body = forward

    def forward(self, x: torch.Tensor) -> object:
        return self.body(self, x)


def gelu(m: Any, x: torch.Tensor) -> object:
    return m.down(functional.gelu(m.up(x)))


def gated(m: Any, x: torch.Tensor) -> object:
    return m.down(functional.silu(m.gate(x)) * m.up(x))


def residual(m: Any, x: torch.Tensor) -> object:
    return x + torch.tanh(m.down(torch.relu(m.up(x)))) * m.scale


def both(m: Any, x: torch.Tensor) -> object:
    before = m.up(x)
    return before, functional.gelu(before, approximate="tanh")


def turned(m: Any, x: torch.Tensor) -> object:
    left = x.reshape(-1, 48).t().contiguous().t()
    return torch.relu(torch.mm(left, m.scale[:, None] * left.t()))


def scaled(m: Any, x: torch.Tensor) -> object:
    wide = x.reshape(-1, 48)
    weight = m.gate.weight.t()
    bias = m.up.bias
    return torch.sigmoid(torch.addmm(bias, wide, weight, beta=0.5, alpha=2.0))


def across(m: Any, x: torch.Tensor) -> object:
    return torch.relu(m.up(x)) + x.new_ones(5, 2, 96).transpose(0, 1)


FORWARDS: tuple[tuple[Forward, int], ...] = (
    (gelu, 1), (gated, 1), (residual, 2), (both, 1), (turned, 1), (scaled, 1), (across, 1),
)  # fmt: skip


def lowered_of(forward: Forward, dtype: torch.dtype = torch.float32) -> Lowered:
    torch.manual_seed(0)
    return captured(Layers(forward).to(dtype), torch.randn(2, 5, 48, dtype=dtype)).graphs[0].lowered


def check(lowered: Lowered, plans: list[FusionPlan]) -> Lowered:
    """The plans equal their regions; returns the graph with all of their sites swapped."""
    arguments = arguments_of(lowered.fx_graph)
    wanted = execute(lowered.copy(), arguments)
    for plan in plans:
        for site in plan.sites:
            assert region_disagreement(plan, site, lowered.fx_aliases, CPU) is None
    twin, kernels = lowered.copy(), [ready(plan) for plan in plans]
    swaps = choose_swaps(programs_of(lowered.graph), kernels)
    outcomes = rewrite(twin.fx_graph, twin.fx_node, twin.fx_aliases, swaps)
    assert [outcome.refused for outcome in outcomes] == [None] * sum(len(p.sites) for p in plans)
    found = execute(twin, arguments, kernels)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=1e-2)
    return twin


@pytest.mark.parametrize(("forward", "count"), FORWARDS, ids=lambda f: getattr(f, "__name__", ""))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_goes_on_with_what_follows(
    forward: Forward, count: int, dtype: torch.dtype
) -> None:
    lowered = lowered_of(forward, dtype)
    plans = gemms_of(lowered)
    assert len(plans) == count
    check(lowered, plans)
    assert {plan.product.tf32 for plan in plans if plan.product} == {False}


def test_a_gated_mlp_takes_both_halves_in_the_last_product() -> None:
    (plan,) = gemms_of(lowered_of(gated))
    assert {op.op for op in plan.ops} >= {"exp", "div", "mul"}
    assert len(plan.outputs) == 1
    assert [item.spans for item in plan.inputs[2:]] in (
        [(False, False, True), (True, False, True)],
        [(True, False, True), (False, False, True)],
    )


def test_what_another_reads_is_written_as_well() -> None:
    (plan,) = gemms_of(lowered_of(both))
    assert len(plan.outputs) == 2
    lowered = lowered_of(both)
    assert plan.sites[0].outputs[0] in lowered.graph.outputs or len(lowered.graph.outputs) == 2


def test_a_training_step_saves_what_its_gradient_reads() -> None:
    """The forward pass writes what the activation reads; its backward stays what it is."""
    torch.manual_seed(0)
    graphs = captured_training(Layers(gelu), torch.randn(2, 5, 48)).graphs
    plans = gemms_of(graphs[0].lowered)
    assert [len(plan.outputs) for plan in plans] == [2]
    check(graphs[0].lowered, plans)


def test_the_caller_who_allows_tf32_gets_it_and_no_other() -> None:
    before = torch.get_float32_matmul_precision()
    plain = gemms_of(lowered_of(gelu))
    torch.set_float32_matmul_precision("high")
    try:
        allowed = lowered_of(gelu)
        narrow = gemms_of(lowered_of(gelu, torch.bfloat16))
    finally:
        torch.set_float32_matmul_precision(before)
    (plan,) = gemms_of(allowed)
    assert plan.product is not None
    assert plan.product.tf32
    assert narrow[0].product is not None
    assert not narrow[0].product.tf32
    # A plan of one precision has no site in a graph of the other.
    assert choose_swaps(programs_of(allowed.graph), [ready(plain[0])]) == []


def normed(m: Any, x: torch.Tensor) -> object:
    return torch.softmax(m.up(x) * 0.5, dim=-1)


def shifted(m: Any, x: torch.Tensor) -> object:
    whole = m.up(x)
    return whole[:, 1:] + 1.0


def vector(m: Any, x: torch.Tensor) -> object:
    return torch.relu(x.reshape(-1, 48) @ m.scale[:, None])


@pytest.mark.parametrize("forward", [normed, shifted], ids=lambda f: f.__name__)
def test_what_a_row_program_takes_or_reads_in_part_is_no_epilogue(forward: Forward) -> None:
    assert gemms_of(lowered_of(forward)) == []


def quantised(m: Any, x: torch.Tensor) -> object:
    return torch.round(m.up(x) * 8.0).clamp(-127, 127).to(torch.int8)


def test_what_is_rounded_to_integers_or_tested_stays_behind_the_float_that_it_reads() -> None:
    """Sums in another order differ in their last place, and so in what is decided by it."""
    (found,) = products_of(lowered_of(quantised))
    assert found.program is not None
    assert [output.dtype for output in found.program.outputs] == ["float32"]
    assert "another order" in found.why
    graphs = captured_training(Layers(residual), torch.randn(2, 5, 48)).graphs
    for plan in gemms_of(graphs[0].lowered):
        assert {output.dtype for output in plan.outputs} == {"float32"}


def nothing(m: Any, x: torch.Tensor) -> object:
    weight = m.gate.weight.t()
    product = torch.addmm(m.up.bias, x.reshape(-1, 48), weight, alpha=0.0)
    # What another product reads as well is left whole by the compiler.
    return torch.relu(product), product @ m.down.weight.t()


@pytest.mark.parametrize(("forward", "why"), [(vector, "vector"), (nothing, "one of them is 0")])
def test_what_stays_out_says_why(forward: Forward, why: str) -> None:
    found = products_of(lowered_of(forward))
    assert found
    for one in found:
        assert one.program is None
        assert why in one.why
