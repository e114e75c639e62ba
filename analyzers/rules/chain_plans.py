"""Kernels of pointwise ops for findings of other rules that say what those ops are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace as replaced

from msgspec.structs import replace

from advisor.model.findings import Evidence, Finding
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
            evidence = (*told.evidence, *_priced(finding, keys, found[place]))
            told = replace(told, plan_id=finding.plan_id, alternatives=ways, evidence=evidence)
            found[place] = replaced(found[place], finding=told)
    return found


def _priced(finding: Finding, keys: set[tuple[str, str]], match: Match) -> tuple[Evidence, ...]:
    """What the kernels' saving rests on, and of how many of the rule's ops they are.

    The rule's own figures are of all of them, by bandwidth alone.
    """
    part = "" if keys == match.nodes else f", {len(keys)} of {len(match.nodes)} ops"
    return tuple(
        replace(item, text=f"as generated kernels{part}: {item.text}", values={})
        for item in finding.evidence
        if item.kind == "time"
    )


def _takes(match: Match, keys: set[tuple[str, str]]) -> bool:
    finding = match.finding
    open_ = finding.kind == "opportunity" and finding.plan_id is None
    return open_ and keys <= match.nodes
