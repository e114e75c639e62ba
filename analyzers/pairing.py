"""Which plan of the backward pass belongs to a plan of the forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from advisor.model.plan import FusionPlan
from analyzers.dataflow import Dataflow

Line = tuple[str, int]


def paired(plans: Sequence[FusionPlan], flows: Mapping[str, Dataflow]) -> tuple[FusionPlan, ...]:
    """The plans, each forward one with the id of the backward plan of the same places.

    Autograd gives a gradient the source line of the op that it differentiates, so two plans belong
    together where their nodes share lines. The one that shares most is the partner, of several the
    one with more sites, then with more ops; equals are left undecided. `flows` is by graph id.
    """
    backward = [(plan, _lines(plan, flows)) for plan in plans if plan.phase == "backward"]
    return tuple(
        msgspec.structs.replace(plan, backward_plan=_partner(_lines(plan, flows), backward))
        if plan.phase == "forward"
        else plan
        for plan in plans
    )


def _lines(plan: FusionPlan, flows: Mapping[str, Dataflow]) -> frozenset[Line]:
    """Where the ops of all sites stand in the program, as far as that is known."""
    places = (
        flows[site.graph].nodes[name].location
        for site in plan.sites
        if site.graph in flows
        for name in site.nodes
    )
    return frozenset((p.file, p.line) for p in places if p.file is not None and p.line is not None)


def _partner(
    lines: frozenset[Line], backward: Sequence[tuple[FusionPlan, frozenset[Line]]]
) -> str | None:
    ranked = sorted(
        (
            (len(lines & theirs), len(plan.sites), len(plan.ops), plan.id)
            for plan, theirs in backward
        ),
        reverse=True,
    )
    if not ranked or not ranked[0][0]:
        return None
    if len(ranked) > 1 and ranked[1][:3] == ranked[0][:3]:
        return None
    return ranked[0][3]
