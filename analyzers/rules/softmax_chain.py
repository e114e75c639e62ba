"""Scaling, mask and casts around a library softmax, each a pass over the same matrix."""

from __future__ import annotations

from advisor.units import counted
from analyzers.rules.base import (
    Match,
    Place,
    Rule,
    cost_of,
    is_pointwise,
    is_worth,
    opportunity,
)
from analyzers.rules.chains import in_pieces, single_reader, units_of
from analyzers.rules.softmaxes import softmaxes
from analyzers.rules.walk import elements, operands
from analyzers.subject import GraphFacts, Subject


def find(subject: Subject) -> tuple[Match, ...]:
    """Softmaxes with pointwise neighbours of the same size that nobody else reads."""
    places = []
    for facts in subject.graphs:
        for item in softmaxes(facts):
            if item.last != item.nodes[0] or not subject.free(facts, item.last):
                continue
            nodes = _with_neighbours(subject, facts, item.last)
            if len(nodes) > 1:
                places.append(Place(facts, nodes))
                subject = subject.without(places[-1].nodes)
    if not places:
        return ()
    cost = cost_of(subject, places)
    if not is_worth(subject, cost):
        return ()
    most = max(units_of(place.facts, place.fused) for place in places)
    return (
        opportunity(
            RULE.id,
            subject,
            places,
            cost,
            title=(
                f"Softmax with its neighbours {in_pieces(places[0].facts, most)}, "
                f"{counted(len(places), 'site')}"
            ),
            action=(
                "fuse scaling, mask, casts and softmax into one row kernel (torch.compile, or a "
                "generated one)"
            ),
            dataflow=(
                "each op reads and writes the whole matrix; one pass over the rows needs neither"
            ),
        ),
    )


def _with_neighbours(subject: Subject, facts: GraphFacts, name: str) -> frozenset[str]:
    size = elements(facts, facts.flow.nodes[name])
    nodes = {name}
    pending = [name]
    while pending:
        node = facts.flow.nodes[pending.pop()]
        after = single_reader(facts, node)
        around = [o for o in operands(facts, node) if single_reader(facts, o) is node]
        for other in [*around, *([after] if after is not None else [])]:
            fits = is_pointwise(facts, other.id) and elements(facts, other) == size
            if other.id not in nodes and fits and subject.free(facts, other.id):
                nodes.add(other.id)
                pending.append(other.id)
    return frozenset(nodes)


RULE = Rule(
    id="softmax-chain",
    title="Softmax with scaling, mask or casts beside it",
    explanation=(
        "A library softmax reads its matrix once and writes it once; so does every pointwise op "
        "before and after it. One kernel that holds a row in registers does all of it in one pass. "
        "A softmax by itself is already one kernel and stays."
    ),
    bad="mul, add, cast to float32, softmax, cast back: ten passes",
    good="one row kernel: two passes; or a softmax with nothing to absorb",
    find=find,
)
