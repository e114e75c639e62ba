"""Loops of captured graphs become scans: plans equal their regions, graphs compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from advisor.apply.rewrite import rewrite
from advisor.model.configs import candidate_configs, schemes_of
from advisor.model.plan import FusionPlan
from advisor.pipeline.backend import choose_swaps
from advisor.pipeline.graph_programs import programs_of
from advisor.samples import mamba_block
from advisor.verify.region import region_disagreement
from collectors.live.fx_graph import Lowered
from tests.analyzers.planted.loops import LOOPS, Loop, lowered_of
from tests.builders.captured import CPU, arguments_of, captured, captured_training, execute, ready
from tests.builders.scans import refusals_of, scans_of

KERNELS = (
    "a sum over the state",
    "from the last part to the first",
    "a selective scan read out by products",
    "a moving average",
    "a gate that the state goes through",
    "two states one after the other",
    "a sum of which nobody reads a part",
)
# What is told of a loop that no kernel replaces.
REFUSED = {
    "two states that read each other": "not in every step",
    "products beside the state": "every step reads a value of its own",
}
TOKENS = 10
LAST_ONLY = KERNELS[-1]


def check(lowered: Lowered, plan: FusionPlan) -> Lowered:
    """The plan equals its region; returns the graph with all of its sites swapped."""
    for site in plan.sites:
        assert region_disagreement(plan, site, lowered.fx_aliases, CPU) is None
    arguments = arguments_of(lowered.fx_graph)
    wanted = execute(lowered.copy(), arguments)
    for scheme in schemes_of(plan):
        configs = candidate_configs(plan, plan.sites[0])
        config = next((c for c in configs if c.scheme == scheme), None)
        if config is None:
            continue
        twin = lowered.copy()
        kernel = ready(plan, config)
        swaps = choose_swaps(programs_of(lowered.graph), [kernel])
        outcomes = rewrite(twin.fx_graph, twin.fx_node, twin.fx_aliases, swaps)
        assert [outcome.refused for outcome in outcomes] == [None] * len(plan.sites)
        found = execute(twin, arguments, [kernel])
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=1e-3, equal_nan=True)
    return twin


@pytest.mark.parametrize("loop", [x for x in LOOPS if x.name in KERNELS], ids=str)
def test_loops_that_one_kernel_replaces(loop: Loop) -> None:
    lowered = lowered_of(loop)
    (plan,) = scans_of(lowered)
    twin = check(lowered, plan)
    assert plan.outputs[0].last == (loop.name == LAST_ONLY)
    if loop.name == LAST_ONLY:
        assert not [node for node in twin.fx_graph.nodes if "add" in node.name]


@pytest.mark.parametrize("loop", [x for x in LOOPS if x.name in REFUSED], ids=str)
def test_loops_that_none_does_say_why(loop: Loop) -> None:
    lowered = lowered_of(loop)
    assert not scans_of(lowered)
    assert any(REFUSED[loop.name] in why for why in refusals_of(lowered))


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens and channels: what is compared is computed op by op."""
    for name, size in (("TOKENS", TOKENS), ("INNER", 64), ("HIDDEN", 32), ("RANK", 4)):
        monkeypatch.setattr(mamba_block, name, size)


@pytest.mark.usefixtures("_short")
def test_a_mamba_block_becomes_one_kernel_with_all_that_feeds_it() -> None:
    block, inputs = mamba_block.inference()
    lowered = captured(block, *inputs).graphs[0].lowered
    (plan,) = scans_of(lowered)
    site = plan.sites[0]
    assert (site.row_sizes, site.columns) == (
        (mamba_block.BATCH, mamba_block.INNER, TOKENS),
        mamba_block.STATES,
    )
    # Neither decay nor drive is written: the steps compute them from what is as small as a token.
    assert {op.op for op in plan.ops} >= {"exp", "log1p", "sum"}
    largest = max(lowered.graph.nodes, key=lambda node: len(node.args))
    assert largest.id in site.nodes
    before = len(list(lowered.fx_graph.nodes))
    after = len(list(check(lowered, plan).fx_graph.nodes))
    assert before - after > 5 * TOKENS


@pytest.mark.usefixtures("_short")
def test_the_forward_pass_of_training_has_one_and_the_backward_says_why_not() -> None:
    block, inputs = mamba_block.inference()
    forward, backward = (item.lowered for item in captured_training(block, *inputs).graphs)
    (plan,) = scans_of(forward)
    check(forward, plan)
    assert not scans_of(backward)
    assert any("gradients of its parts are added up" in why for why in refusals_of(backward))


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Linear attention: the sum of its first step is folded away, since the state is zero."""
    state, outputs = q.new_zeros(2, 3, 8, 8), []
    for t in range(TOKENS):
        state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
        outputs.append((q[:, :, t, :, None] * state).sum(2))
    return torch.stack(outputs, 2)


def retained(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """RetNet's: a state that decays, read out by products with one row each."""
    state, outputs = q.new_zeros(2, 3, 8, 8), []
    for t in range(TOKENS):
        state = 0.9 * state + k[:, :, t, :, None] @ v[:, :, t, None, :]
        outputs.append((q[:, :, t, None, :] @ state)[:, :, 0])
    return torch.stack(outputs, 2)


@pytest.mark.parametrize("function", [attended, retained])
def test_a_first_step_that_zeros_folded_away_is_put_back(
    function: Callable[..., torch.Tensor],
) -> None:
    inputs = [torch.randn(2, 3, TOKENS, 8) for _ in range(3)]
    lowered = captured(function, *inputs).graphs[0].lowered
    (plan,) = scans_of(lowered)
    assert plan.sites[0].row_sizes[-1] == TOKENS
    check(lowered, plan)


def from_a_row(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The first state is one row, spread over the batch by the first step."""
    state, states = a[0, 0], []
    for t in range(TOKENS):
        state = b[:, t] * state + a[:, t]
        states.append(state)
    return torch.stack(states, 1)


def test_a_first_state_may_have_fewer_axes() -> None:
    lowered = captured(from_a_row, *[torch.randn(2, TOKENS, 8) for _ in range(2)]).graphs[0].lowered
    (plan,) = scans_of(lowered)
    check(lowered, plan)


def summed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A sum in the step whose operand no state reaches."""
    state, states = torch.zeros_like(a[:, 0]), []
    for t in range(TOKENS):
        state = b[:, t].sum(-1, keepdim=True) * state + a[:, t]
        states.append(state)
    return torch.stack(states, 1)


def twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The steps are put together in two tensors."""
    state, states = torch.zeros_like(a[:, 0]), []
    for t in range(TOKENS):
        state = b[:, t] * state + a[:, t]
        states.append(state)
    return torch.stack(states, 1) + torch.stack(states, 1).mean()


def with_a_number(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Beside the op of a number another op of the step looks like it."""
    first, second, states = a[:, 0], b[:, 0], []
    for t in range(TOKENS):
        cut = torch.where(a[:, t] > 0, b[:, t], first.half().float())
        first = a[:, -1 - t] * second + (cut + ((0.9 + first) - b[:, t]))
        second = a[:, t] * second + torch.where(b[:, t] > 0, b[:, t].half().float(), second)
        states.append(first + b[:, t])
    return torch.stack(states, 1)


@pytest.mark.parametrize(
    ("function", "why"),
    [(summed, "along which axes"), (twice, "put together twice"), (with_a_number, "")],
)
def test_loops_of_a_kind_that_no_kernel_takes(
    function: Callable[..., torch.Tensor], why: str
) -> None:
    lowered = captured(function, *[torch.randn(2, TOKENS, 8) for _ in range(2)]).graphs[0].lowered
    assert not scans_of(lowered)
    assert any(why in reason for reason in [*refusals_of(lowered), ""])
