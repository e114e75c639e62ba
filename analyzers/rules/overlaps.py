"""A kernel belongs to one recommended finding; its other uses are alternatives inside that one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from advisor.model.findings import Alternative, Finding
from analyzers.replay_changes import Change
from analyzers.rules.base import Match


def changes_of(matches: Sequence[Match]) -> dict[str, Change]:
    """What findings do to the recorded step, by their ids."""
    return {match.finding.id: match.change for match in matches if match.change is not None}


def without_overlaps(matches: Sequence[Match]) -> tuple[Finding, ...]:
    """The findings in order; one that shares nodes with a better one moves into it.

    An opportunity is better than a note. Of two, a finding with a plan can be proven here and now,
    so it stays unless the other one saves more than the upper end of what the plan is priced at. A
    bet gives way to whatever is sure to save anything.
    """
    kept: list[Match] = []
    for match in matches:
        place, best = len(kept), match
        while (rival := _rival(kept, best)) is not None:
            place = kept.index(rival)
            kept.remove(rival)
            best = _absorbing(*_preferred(rival, best))
        kept.insert(place, best)
    return tuple(match.finding for match in kept)


def _rival(kept: Sequence[Match], match: Match) -> Match | None:
    """The finding kept so far that shares most nodes with this one."""
    shared = [other for other in kept if other.nodes & match.nodes]
    return max(shared, key=lambda other: len(other.nodes & match.nodes), default=None)


def _preferred(first: Match, second: Match) -> tuple[Match, Match]:
    """(what to recommend, what becomes an alternative)."""
    opportunities = [item for item in (first, second) if item.finding.kind == "opportunity"]
    if len(opportunities) == 1:
        chosen = opportunities[0]
        return chosen, second if chosen is first else first
    sure = [item for item in (first, second) if not item.bet]
    if len(sure) == 1 and _middle(sure[0]) > 0:
        return sure[0], second if sure[0] is first else first
    planned = [item for item in (first, second) if item.finding.plan_id is not None]
    if len(planned) != 1:
        pair = sorted((first, second), key=lambda item: -_middle(item))
        return pair[0], pair[1]
    plan = planned[0]
    other = second if plan is first else first
    bound = plan.saved_ns.high if plan.saved_ns is not None else 0
    return (other, plan) if _middle(other) > bound else (plan, other)


def _middle(match: Match) -> int:
    return match.saved_ns.mid if match.saved_ns is not None else 0


def _absorbing(winner: Match, loser: Match) -> Match:
    """The winner with the loser's ways among its alternatives, each with its own price."""
    text = f"{loser.finding.title}: {loser.finding.action}"
    ways = [other for other in loser.finding.alternatives if other.plan_ids] or [
        Alternative(route=loser.route, text=text, saving_ns=loser.saved_ns)
    ]
    own = winner.finding.alternatives
    if ways[0].plan_ids:
        # The unpriced mention of a generated kernel gives way to the kernel itself.
        own = tuple(o for o in own if o.route != "generated_kernel" or o.plan_ids)
    finding = msgspec.structs.replace(winner.finding, alternatives=(*own, *ways))
    return replace(winner, finding=finding)
