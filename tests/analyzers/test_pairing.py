"""A forward plan names the backward plan of the same places."""

from __future__ import annotations

import msgspec
import torch

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import Location, Phase
from advisor.model.plan import FusionPlan
from analyzers.dataflow import Dataflow, dataflow
from analyzers.exposure import Situation
from analyzers.opportunities import PricedGraph, advise
from analyzers.pairing import paired
from tests.analyzers.planted.captured import Model
from tests.builders.captured import captured_training
from tests.builders.graph import Sketch
from tests.builders.plan import rms_norm

GPU = gpu_by_key("h200")


def graph(phase: Phase, *lines: int) -> Dataflow:
    """A chain of ops at some lines of one file."""
    s = Sketch(phase=phase, identity=phase)
    value = s.input(4, 8)
    for line in lines:
        value = s.op("neg", value, location=Location(file="f", line=line))
    return dataflow(s.build(value))


FLOWS = {
    "forward": graph("forward", 1, 2, 3),
    "backward": graph("backward", 1, 2, 3, 7),
}


def plan(number: int, phase: Phase, *lines: int) -> FusionPlan:
    """A plan whose one site holds the ops of some lines."""
    made = rms_norm()
    nodes = tuple(n.id for n in FLOWS[phase].nodes.values() if n.location.line in lines)
    site = msgspec.structs.replace(made.sites[0], graph=phase, nodes=nodes)
    return msgspec.structs.replace(made, id=f"{number:016x}", phase=phase, sites=(site,))


def partners(*plans: FusionPlan) -> list[str | None]:
    return [item.backward_plan for item in paired(plans, FLOWS)]


def test_the_plan_that_shares_most_lines_is_the_partner() -> None:
    best = plan(3, "backward", 2, 3)
    found = partners(plan(1, "forward", 1, 2, 3), plan(2, "backward", 1), best)
    assert found == [best.id, None, None]


def test_no_partner_without_shared_lines_or_between_equals() -> None:
    forward = plan(1, "forward", 1, 2)
    assert partners(forward, plan(2, "backward", 7)) == [None, None]
    assert partners(forward, plan(2, "backward", 1), plan(3, "backward", 2)) == [None] * 3
    inference = msgspec.structs.replace(forward, phase="inference")
    assert partners(inference, plan(2, "backward", 1)) == [None, None]


def test_of_two_the_one_with_more_sites() -> None:
    forward, one, two = plan(1, "forward", 1, 2), plan(2, "backward", 1), plan(3, "backward", 1)
    two = msgspec.structs.replace(two, sites=two.sites * 2)
    assert partners(forward, two, one)[0] == two.id


def test_a_captured_softmax_and_its_gradient_belong_together() -> None:
    def weighed(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x * w).softmax(-1)

    captured = captured_training(Model(weighed, (32,)), torch.randn(16, 32))
    graphs = [PricedGraph(item.lowered.graph) for item in captured.graphs]
    advice = advise(graphs, Situation(GPU, default_calibration(GPU), eager=True))
    forward = next(p for p in advice.plans if p.phase == "forward")
    backward = next(p for p in advice.plans if p.phase == "backward")
    assert forward.backward_plan == backward.id
    assert {g.graph.id for g in graphs} == set(advice.near_misses)
