"""Chains of pointwise ops and casts that run as one kernel each."""

from __future__ import annotations

from advisor.units import counted
from analyzers.naming import op_word
from analyzers.rules.base import Cost, Match, Place, Rule, cost_of, is_worth, opportunity
from analyzers.rules.chains import by_signature, chains, in_pieces, units_of
from analyzers.subject import GraphFacts, Subject

_NAMED_OPS = 4
_CASTS = ("cast",)


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for each kind of chain that is worth it."""
    groups = [
        (facts, members)
        for facts in subject.graphs
        for members in chains(subject, facts)
        if units_of(facts, members) > 1
    ]
    found = []
    for signature, sites in by_signature(groups).items():
        places = [Place(facts, frozenset(members)) for facts, members in sites]
        cost = cost_of(subject, places)
        if is_worth(subject, cost):
            found.append(_match(subject, places, signature, sites[0], cost))
    return tuple(found)


def _match(
    subject: Subject,
    places: list[Place],
    signature: tuple[str, ...],
    first: tuple[GraphFacts, tuple[str, ...]],
    cost: Cost,
) -> Match:
    facts, members = first
    names = list(
        dict.fromkeys(
            op_word(facts.flow.nodes[name].label or facts.flow.nodes[name].op) for name in members
        )
    )
    shown = " + ".join(names[:_NAMED_OPS]) + (
        f" + {len(names) - _NAMED_OPS} more" if len(names) > _NAMED_OPS else ""
    )
    ops = {facts.flow.nodes[name].op for name in members}
    kind = "Cast chain" if ops <= set(_CASTS) else "Pointwise chain"
    count = max(units_of(place.facts, place.fused) for place in places)
    return opportunity(
        RULE.id,
        subject,
        places,
        cost,
        title=f"{kind} {shown} {in_pieces(facts, count)}, {counted(len(places), 'site')}",
        action="compile the region (torch.compile) or use one generated kernel",
        dataflow=(
            f"{count} kernels over the same elements, one after the other; one pass reads the "
            "inputs once"
        ),
        key="|".join(signature),
    )


RULE = Rule(
    id="pointwise-chain",
    title="Pointwise ops and casts one after the other",
    explanation=(
        "Pointwise ops compute almost nothing per byte: each costs a round trip of its whole "
        "tensor to memory. In one kernel the values between them stay in registers. Ops that a "
        "permutation, a cut or a library call separates do not belong to one chain."
    ),
    bad="x.float() * scale + shift, then .half(): four kernels",
    good="the same expression compiled: one kernel; or a single pointwise op",
    find=find,
)
