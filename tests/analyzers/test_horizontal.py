"""Small independent programs: found by dataflow, priced as one launch, swapped in together."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch.nn import functional

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.findings import Finding
from advisor.model.graph import Graph
from advisor.model.plan import FusionPlan
from advisor.model.scores import ResidualQuantiles
from advisor.pipeline.backend import choose_swaps
from advisor.pipeline.graph_programs import programs_of
from analyzers.dataflow import dataflow
from analyzers.exposure import Situation
from analyzers.horizontal import RULE
from analyzers.independent import SUMS_ROWS, WAITS, candidates, independent_sets
from analyzers.opportunities import PricedGraph, advise
from analyzers.row_programs import row_programs
from collectors.live.fx_graph import Lowered
from tests.apply.test_rewrite import assert_ordered, calls, swapped
from tests.builders.captured import captured, ready
from tests.builders.graph import Sketch, tensor

H200 = gpu_by_key("h200")
COMPILED = Situation(H200, default_calibration(H200), eager=False)
WIDTHS = (32, 48, 32, 64, 32, 48, 32, 32)


class Branches(nn.Module):
    """Branches of linear, RMS norm and SiLU, linear; in an order of their own."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.order = tuple(order)
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for width in WIDTHS)
        self.down = nn.ModuleList(nn.Linear(32, width) for width in WIDTHS)
        self.up = nn.ModuleList(nn.Linear(width, 32) for width in WIDTHS)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        found: dict[int, Tensor] = {}
        for n in self.order:
            hidden = functional.silu(self.norms[n](self.down[n](x)))
            found[n] = self.up[n](hidden)
        return tuple(found[n] for n in range(len(WIDTHS)))


def graph_of(module: Any, *inputs: Any) -> Lowered:
    return captured(module, *inputs).graphs[0].lowered


def groups_in(
    graph: Graph, situation: Situation = COMPILED
) -> tuple[list[FusionPlan], list[Finding]]:
    advice = advise([PricedGraph(graph)], situation)
    plans = [plan for plan in advice.plans if plan.members]
    return plans, [finding for finding in advice.findings if finding.rule == RULE]


def test_eight_branches_are_one_launch_whatever_their_order() -> None:
    order = list(range(len(WIDTHS)))
    x = torch.randn(16, 32)
    lowered = graph_of(Branches(order), x)
    (plan,), (finding,) = groups_in(lowered.graph)
    assert len(plan.members) == len(WIDTHS)
    assert sorted(member.width for member in plan.members) == [32] * 5 + [64] * 3
    assert finding.plan_id == plan.id
    assert finding.title.startswith("8 small programs in one launch: 8 × RMS norm + SiLU")
    assert finding.alternatives[0].plan_ids == (plan.id,)
    random.Random(1).shuffle(order)
    (other,), _ = groups_in(graph_of(Branches(order), x).graph)
    assert other.id == plan.id


def test_what_was_learned_corrects_the_set_and_its_programs_apart_and_is_said() -> None:
    graph = graph_of(Branches(range(len(WIDTHS))), torch.randn(16, 32)).graph
    learned = ResidualQuantiles(low=0.5, mid=1.0, high=2.0)
    told = []
    for situation in (COMPILED, replace(COMPILED, residuals=learned)):
        _, (finding,) = groups_in(graph, situation)
        (time,) = (item for item in finding.evidence if item.kind == "time")
        assert situation.model in time.text
        told.append(time)
    before, after = told
    for name in ("apart_ns", "after_ns"):
        assert int(after.values[name] or 0) > int(before.values[name] or 0), name
    assert "corrected as earlier plans there taught" in after.text
    assert "earlier plans" not in before.text


def test_the_group_takes_its_place_in_the_compiled_graph() -> None:
    lowered = graph_of(Branches(range(len(WIDTHS))), torch.randn(16, 32))
    (plan,), _ = groups_in(lowered.graph)
    kernel = ready(plan)
    copy, outcomes = swapped(lowered, [kernel])
    assert [outcome.refused for outcome in outcomes] == [None]
    assert calls(copy.fx_graph) == 1
    assert_ordered(copy.fx_graph)
    nodes = len(list(lowered.fx_graph.nodes))
    assert len(list(copy.fx_graph.nodes)) < nodes - 30, "the ops of all members are gone"
    kernel_side_table.reset_table()


def test_what_a_member_needs_of_another_is_no_group() -> None:
    """A chain of norms through products waits, one for the other."""

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.RMSNorm(32) for _ in range(3))
            self.products = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for norm, product in zip(self.norms, self.products, strict=True):
                x = product(norm(x))
            return x

    lowered = graph_of(Chain(), torch.randn(16, 32))
    assert groups_in(lowered.graph) == ([], [])
    found = row_programs(dataflow(lowered.graph))
    small, _ = candidates(found, lowered.graph.phase)
    assert len(small) == 3
    sets = independent_sets(found, small)
    assert sets.taken == ()
    assert set(sets.misses.values()) == {WAITS}


def norm(sketch: Sketch, x: str) -> str:
    """x over the root of its mean square."""
    scale = sketch.op("rsqrt", sketch.op("add", sketch.mean(sketch.op("mul", x, x)), 1e-6))
    return sketch.op("mul", x, scale)


def test_what_a_group_leaves_of_a_plan_saves_its_share_of_the_bytes() -> None:
    """One site of three, which moves nearly all: it was a third of what the plan saves."""
    s = Sketch()
    graph = s.build(*(norm(s, s.input(rows, 512)) for rows in (8, 8, 1 << 15)))
    findings = advise([PricedGraph(graph)], COMPILED).findings
    (group,) = (f for f in findings if f.rule == RULE)
    (rows,) = (f for f in findings if f.rule != RULE)
    together, whole = group.alternatives[0], rows.alternatives[0].saving_ns
    assert together.text.endswith("1 row program elsewhere")
    assert whole is not None
    assert together.saving_ns is not None
    assert together.saving_ns.mid > 0.9 * whole.mid


def test_sets_do_not_wait_for_each_other_in_a_circle() -> None:
    """a1 feeds a2 and b2 feeds b1: {a1, b1} and {a2, b2} are each independent, not both."""
    s = Sketch()
    a1 = norm(s, s.input(8, 64))
    b2 = norm(s, s.input(8, 32))
    a2 = norm(s, s.opaque("mm", a1, outputs=(tensor(8, 32),)))
    b1 = norm(s, s.opaque("mm", b2, outputs=(tensor(8, 64),)))
    graph = s.build(a2, b1)
    found = row_programs(dataflow(graph))
    small, _ = candidates(found, graph.phase)
    assert len(small) == 4
    joint = found.flow
    taken = independent_sets(found, small).taken
    assert taken
    for chosen in taken:
        members = frozenset(name for item in chosen for name in item.members)
        assert not joint.between(members), "a path leaves the set and comes back"
        joint = joint.contracted(members)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=9))
def test_sets_of_random_graphs_stay_acyclic(
    sources: list[tuple[int, int]],
) -> None:
    """Each norm reads a product of two earlier norms, or an input; all kernels are single steps."""
    s = Sketch()
    norms: list[str] = []
    for first, second in sources:
        size = (8, 32 * (1 + first % 2))
        before = [norms[n] for n in (first, second) if n < len(norms)]
        x = s.opaque("mm", *before, outputs=(tensor(*size),)) if before else s.input(*size)
        norms.append(norm(s, x))
    graph = s.build(*norms)
    found = row_programs(dataflow(graph))
    small, _ = candidates(found, graph.phase)
    joint = found.flow
    for group in found.whole:
        joint = joint.contracted(frozenset(group.members))
    for chosen in independent_sets(found, small).taken:
        members = frozenset(name for item in chosen for name in item.members)
        for item in chosen:
            others = members - item.members
            assert not joint.mask(others) & joint.ancestors[min(item.members)], "none waits"
        joint = joint.contracted(members)


def test_sums_over_the_rows_stay_out_with_the_reason() -> None:
    s = Sketch()
    outputs = [norm(s, s.input(8, 64)) for _ in range(2)]
    gradient = s.input(8, 64)
    bias = s.op("mul", gradient, 2.0)
    outputs += [norm(s, bias), s.reduce("sum", bias, axes=(0,))]
    found = row_programs(dataflow(s.build(*outputs)))
    small, out = candidates(found, "inference")
    assert SUMS_ROWS in out.values()
    (chosen,) = independent_sets(found, small).taken
    assert len(chosen) == 2


def test_a_lion_step_over_parameters_is_a_group_of_pointwise_programs() -> None:
    """X. Chen et al., arXiv:2302.06675, as ops: no name says that this is an optimizer."""

    def lion(
        parameters: list[Tensor], gradients: list[Tensor], moments: list[Tensor]
    ) -> list[Tensor]:
        found = []
        for p, g, m in zip(parameters, gradients, moments, strict=True):
            update = torch.sign(m * 0.9 + g * 0.1)
            found += [p * (1 - 1e-4) - 1e-3 * update, m * 0.99 + g * 0.01]
        return found

    shapes = ((64, 32), (32,), (48, 16), (7, 5))
    tensors = [[torch.randn(shape) for shape in shapes] for _ in range(3)]
    lowered = graph_of(lion, *tensors)
    (plan,), (finding,) = groups_in(lowered.graph)
    assert len(plan.members) == len(shapes)
    assert "pointwise" in finding.title
    (swap,) = choose_swaps(programs_of(lowered.graph), [ready(plan)])
    assert len(swap.site.outputs) == 2 * len(shapes)
