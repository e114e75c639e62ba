"""Kernels of pointwise ops for findings of other rules that say what those ops are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace as replaced

from msgspec.structs import replace

from analyzers.opportunities import Built
from analyzers.rules.base import Match


def with_kernels(matches: Sequence[Match], chains: Iterable[Built]) -> list[Match]:
    """The matches, those that hold all ops of a chain and have no kernel with that chain's.

    A gate of an MLP, say: its own rule tells of it, and one kernel computes it.
    """
    found = list(matches)
    for plans, finding, _ in chains:
        keys = {(site.graph, name) for plan in plans for site in plan.sites for name in site.nodes}
        place = next((n for n, match in enumerate(found) if _takes(match, keys)), None)
        if place is not None:
            told = found[place].finding
            ways = (*finding.alternatives[:1], *told.alternatives)
            told = replace(told, plan_id=finding.plan_id, alternatives=ways)
            found[place] = replaced(found[place], finding=told)
    return found


def _takes(match: Match, keys: set[tuple[str, str]]) -> bool:
    finding = match.finding
    open_ = finding.kind == "opportunity" and finding.plan_id is None
    return open_ and keys <= match.nodes
