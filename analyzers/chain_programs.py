"""Chains of pointwise ops that no other program takes: each may be one kernel.

They grow last: a row program, a scan or a product that wants an op has more to gain from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from advisor.model.optable import spec_of
from analyzers.choice import CLAIMED, is_chain
from analyzers.gemm_programs import taken_by
from analyzers.growth import Group, NearMiss, grow
from analyzers.row_programs import RowPrograms


@dataclass(frozen=True)
class Chains:
    """The chains of a graph, and what stays out of them."""

    groups: tuple[Group, ...]
    misses: tuple[NearMiss, ...]


def chains_beside(found: RowPrograms, others: Sequence[Iterable[str]]) -> Chains:
    """The chains of what neither row programs nor `others`, each the ops of one kernel, take."""
    flow = joint = found.flow
    claimed = dict.fromkeys(taken_by(found, *others), CLAIMED)
    for members in (*(group.members for group in found.whole), *others):
        together = frozenset(members)
        if not joint.between(together):
            joint = joint.contracted(together)
    groups: list[Group] = []
    misses: list[NearMiss] = []
    for name in flow.index:
        if name in claimed or spec_of(flow.nodes[name].op).kind != "pointwise":
            continue
        grown = grow(joint, name, claimed)
        if grown.group is not None and is_chain(flow, grown.group):
            joint = joint.contracted(frozenset(grown.group.members))
            claimed.update(dict.fromkeys(grown.group.members, CLAIMED))
            groups.append(grown.group)
            misses += grown.misses
    return Chains(tuple(groups), tuple(misses))
