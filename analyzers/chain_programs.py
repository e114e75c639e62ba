"""Chains of pointwise ops that no row program and no scan takes: each may be one kernel.

They grow last: a row program or a scan that wants an op has more to gain from it. So may a product,
but that is a bet: chains are grown beside products and, where these lose, as if there were none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from advisor.model.optable import spec_of
from analyzers.choice import CLAIMED, Chains, grow_chains
from analyzers.gemm_programs import taken_by
from analyzers.row_programs import RowPrograms


def chains_beside(found: RowPrograms, others: Sequence[Iterable[str]]) -> Chains:
    """The chains of what neither row programs nor `others`, each the ops of one kernel, take."""
    flow = joint = found.flow
    for members in (*(group.members for group in found.whole), *others):
        together = frozenset(members)
        if not joint.between(together):
            joint = joint.contracted(together)
    seeds = (name for name in flow.index if spec_of(flow.nodes[name].op).kind == "pointwise")
    return grow_chains(flow, joint, seeds, dict.fromkeys(taken_by(found, *others), CLAIMED))
