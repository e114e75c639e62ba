"""Mixture of experts: the outputs of a token's experts gathered, weighted and summed."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence
from advisor.model.graph import Node
from advisor.units import counted, format_bytes
from analyzers.rules.base import Cost, Match, Place, Rule, cost_of, is_worth, opportunity
from analyzers.rules.chains import single_reader
from analyzers.rules.walk import calls, elements, operands, producer
from analyzers.subject import GraphFacts, Subject

_GATHERS = frozenset({"index", "index_select", "gather", "_unsafe_index"})
# More rows than this in a sum are a pooling over tokens, not the experts of one.
_MOST_EXPERTS = 32


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for all layers."""
    places = []
    for facts in subject.graphs:
        for node in facts.graph.nodes:
            members = _combine(facts, node)
            if members and all(subject.free(facts, name) for name in members):
                places.append(Place(facts, members))
    if not places:
        return ()
    cost = cost_of(subject, places)
    return (_match(subject, places, cost),) if is_worth(subject, cost) else ()


def _match(subject: Subject, places: list[Place], cost: Cost) -> Match:
    stored = cost.bytes_before - cost.bytes_after
    match = opportunity(
        RULE.id,
        subject,
        places,
        cost,
        title=f"Experts' outputs gathered, weighted, summed apart, {counted(len(places), 'layer')}",
        action=(
            "measure a fused combine (the engine's unpermute kernel, or torch.compile) before "
            "taking it: it may lose"
        ),
        dataflow=(
            "the gathered rows and their weighted copies are stored only for the sum that reads "
            "them"
        ),
        values={"intermediate_bytes": stored},
        alternatives=(
            Alternative(
                route="do_not_fuse",
                text=(
                    "as it is, if the fused reduction keeps the tiles of a plain sum: each of its "
                    "reads is then a scattered row"
                ),
            ),
        ),
    )
    doubt = Evidence(
        kind="cannot_judge",
        text=(
            f"{format_bytes(stored)} need not be stored and read again; against it, the reduction "
            "gathers its rows itself and gets heavier, which without tile sizes of its own makes "
            "it slower than the pieces. Low confidence until it is measured"
        ),
        values={"needs": "a measurement of the fused kernel"},
    )
    head, *rest = match.finding.evidence
    finding = msgspec.structs.replace(
        match.finding,
        exposed_saving_ns=_bound(match.finding.exposed_saving_ns),
        evidence=(head, doubt, *rest),
    )
    return replace(match, finding=finding, saved_ns=_bound(match.saved_ns))


def _bound(saving: Range | None) -> Range | None:
    """Only the upper end of a saving: nothing says that any of it will be reached."""
    return None if saving is None else Range(low=0, mid=0, high=saving.high)


def _combine(facts: GraphFacts, total: Node) -> frozenset[str]:
    """The nodes from the gather to this sum over experts; empty if it is none."""
    if total.op != "sum" or not total.value_args or not total.outputs:
        return frozenset()
    members = {total.id}
    weighted = _past_casts(facts, total, members)
    meta = facts.flow.meta(total.value_args[0])
    axes = total.attributes.get("axes")
    if meta is None or not isinstance(axes, tuple) or len(axes) != 1 or weighted.op != "mul":
        return frozenset()
    (axis,) = axes
    size = meta.shape[axis]
    if axis == len(meta.shape) - 1 or not isinstance(size, int) or not 1 < size <= _MOST_EXPERTS:
        return frozenset()
    members.add(weighted.id)
    for side in operands(facts, weighted):
        if elements(facts, side) != elements(facts, weighted):
            continue
        inside: set[str] = set()
        source = side
        if side.op == "cast":
            inside.add(side.id)
            source = producer(facts, side.value_args[0])
        if calls(source, _GATHERS) and single_reader(facts, source) is not None:
            return frozenset(members | inside | {source.id})
    return frozenset()


def _past_casts(facts: GraphFacts, node: Node, members: set[str]) -> Node:
    """The computing node behind the operand, casts passed and remembered."""
    at = producer(facts, node.value_args[0])
    while at.op == "cast":
        members.add(at.id)
        at = producer(facts, at.value_args[0])
    return at


RULE = Rule(
    id="moe-combine",
    title="Experts' outputs combined in pieces",
    explanation=(
        "After the experts of a mixture have run, each token gathers its rows, weights them and "
        "sums them. In pieces, the gathered rows are stored and read again. Fused, the reduction "
        "reads scattered rows itself: fewer bytes, but a heavier kernel, and with the tile sizes "
        "of a plain sum a slower one. Both sides are stated; only a measurement decides."
    ),
    bad="(out[order].view(tokens, k, hidden) * weights[..., None]).sum(1)",
    good="a combine kernel tuned for it, measured against the pieces",
    find=find,
)
