"""Which plan of the backward pass belongs to a plan of the forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.model.base import Location
from advisor.model.plan import FusionPlan


def paired(plans: Sequence[FusionPlan]) -> tuple[FusionPlan, ...]:
    """The plans, each forward one with the id of the backward plan of the same places.

    Autograd gives a gradient the place of the op that it differentiates, so two plans belong
    together where they share places in the program; the one that shares most is the partner. Equals
    and plans without places have none.
    """
    backward = [(plan, _places(plan)) for plan in plans if plan.phase == "backward"]
    return tuple(
        msgspec.structs.replace(plan, backward_plan=_partner(_places(plan), backward))
        if plan.phase == "forward"
        else plan
        for plan in plans
    )


def _places(plan: FusionPlan) -> frozenset[Location]:
    return frozenset(site.location for site in plan.sites if site.location != Location())


def _partner(
    places: frozenset[Location], backward: Sequence[tuple[FusionPlan, frozenset[Location]]]
) -> str | None:
    shared = sorted(((len(places & theirs), plan.id) for plan, theirs in backward), reverse=True)
    if not shared or not shared[0][0] or (len(shared) > 1 and shared[1][0] == shared[0][0]):
        return None
    return shared[0][1]
