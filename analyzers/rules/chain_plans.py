"""Kernels of pointwise ops for findings of other rules that say what those ops are.

A gate of an MLP, say: its own rule tells of it, and one kernel computes it, with what stands beside
it where that shares its pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace as replaced

from msgspec.structs import replace

from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence
from advisor.model.plan import FusionPlan, Site
from advisor.model.site_work import bytes_share
from advisor.units import counted
from analyzers.opportunities import Built
from analyzers.rules.base import Match
from analyzers.subject import NodeKey


def with_kernels(matches: Sequence[Match], chains: Iterable[Built]) -> list[Match]:
    """The matches, those without a kernel with the kernels of the chains whose ops they tell.

    Of chains with ops in common the first one counts; a bet, which takes some of a chain's ops,
    names what it leaves of them.
    """
    found = list(matches)
    given: dict[int, list[Built]] = {}
    left: list[Built] = []
    taken: set[NodeKey] = set()
    for chain in chains:
        keys = _keys(chain)
        place = _teller(matches, keys) if not keys & taken else None
        if place is None:
            left.append(chain)
        else:
            given.setdefault(place, []).append(chain)
            taken |= keys
    for place, own in given.items():
        found[place] = _with(found[place], own)
    told = [chain for own in given.values() for chain in own]
    return [_with_rest(match, told, left) if match.bet else match for match in found]


def _teller(matches: Sequence[Match], keys: set[NodeKey]) -> int | None:
    """The place of the match that a chain's kernel is told with, None where there is none.

    The first that holds all of its ops. Else the largest of those that tell of any, if all of them
    are parts of the chain: one kernel then computes what several findings tell.
    """
    whole = (n for n, match in enumerate(matches) if _is_open(match) and keys <= match.nodes)
    place = next(whole, None)
    if place is not None:
        return place
    parts = [n for n, match in enumerate(matches) if not match.bet and match.nodes & keys]
    if not all(_is_open(matches[n]) and matches[n].nodes <= keys for n in parts):
        return None
    return max(parts, key=lambda n: len(matches[n].nodes), default=None)


def _is_open(match: Match) -> bool:
    return match.finding.kind == "opportunity" and match.finding.plan_id is None


def _with(match: Match, chains: Sequence[Built]) -> Match:
    """The match with the kernels of chains. Its own figures are of its own ops, by bandwidth alone;
    of one kernel that computes more than these they are the kernel's.
    """
    told, keys = match.finding, {key for chain in chains for key in _keys(chain)}
    way, (_, first, change) = _together([_way(chain) for chain in chains]), chains[0]
    told = replace(told, plan_id=first.plan_id, alternatives=(way, *told.alternatives))
    if not match.nodes < keys:
        evidence = (*told.evidence, *_priced(chains, keys, match))
        return replaced(match, finding=replace(told, evidence=evidence))
    own = (item for item in told.evidence if item.kind == "dataflow")
    told = replace(
        told,
        exposed_saving_ns=first.exposed_saving_ns,
        evidence=(*own, _beside(match, keys), *first.evidence),
        members=first.members,
    )
    return Match(told, frozenset(keys), way.saving_ns, "generated_kernel", change)


def _beside(match: Match, keys: set[NodeKey]) -> Evidence:
    """That the figures are of more ops than those that the rule tells of."""
    more = counted(len(keys - match.nodes), "op")
    text = f"one kernel computes {more} beside these in the same pass: the figures are of all"
    return Evidence(kind="dataflow", text=text)


def _priced(chains: Sequence[Built], keys: set[NodeKey], match: Match) -> tuple[Evidence, ...]:
    """What the kernels' saving rests on, and of how many of the rule's ops they are."""
    part = "" if keys == match.nodes else f", {len(keys)} of {len(match.nodes)} ops"
    return tuple(
        replace(item, text=f"as generated kernels{part}: {item.text}", values={})
        for _, finding, _ in chains
        for item in finding.evidence
        if item.kind == "time"
    )


def _with_rest(bet: Match, told: Sequence[Built], left: Sequence[Built]) -> Match:
    """The bet with the kernels of what it leaves: other sites of chains whose ops it takes, and the
    chains of the ops that these have besides.
    """
    rivals = [chain for chain in told if _keys(chain) & bet.nodes]
    free = {key for chain in rivals for key in _keys(chain)} - bet.nodes
    parts = []
    for chain in (*rivals, *left):
        sites = [(plan, site) for plan, site in _sites(chain) if _nodes(site) <= free]
        free -= {key for _, site in sites for key in _nodes(site)}
        parts += [_part(chain, sites)] if sites else []
    if not parts:
        return bet
    way, *others = bet.finding.alternatives
    ways = (_together([way, *parts]), *others)
    return replaced(bet, finding=replace(bet.finding, alternatives=ways))


def _part(chain: Built, sites: Sequence[tuple[FusionPlan, Site]]) -> Alternative:
    """A chain's kernel at some of its sites, with their share of what it saves, by bytes."""
    way = _way(chain)
    plans = dict.fromkeys(plan.id for plan, _ in sites)
    titles = ", ".join(dict.fromkeys(plan.title for plan, _ in sites))
    saving = way.saving_ns and way.saving_ns.scaled(bytes_share(sites, _sites(chain)))
    text = f"{titles} at {counted(len(sites), 'site')}"
    return replace(way, text=text, saving_ns=saving, plan_ids=tuple(plans))


def _together(ways: Sequence[Alternative]) -> Alternative:
    """Several ways at once, of ops of their own; without a price where one of them has none."""
    first, *others = ways
    saving: Range | None = first.saving_ns
    for way in others:
        saving = saving and way.saving_ns and saving.plus(way.saving_ns)
    return replace(
        first,
        text="; ".join(way.text for way in ways),
        saving_ns=saving,
        plan_ids=tuple(dict.fromkeys(plan for way in ways for plan in way.plan_ids)),
    )


def _way(chain: Built) -> Alternative:
    """The best way to fuse a chain."""
    return chain[1].alternatives[0]


def _sites(chain: Built) -> list[tuple[FusionPlan, Site]]:
    plans = (plan for plan in chain[0] if plan.id in _way(chain).plan_ids)
    return [(plan, site) for plan in plans for site in plan.sites]


def _nodes(site: Site) -> set[NodeKey]:
    return {(site.graph, name) for name in site.nodes}


def _keys(chain: Built) -> set[NodeKey]:
    return {key for _, site in _sites(chain) for key in _nodes(site)}
