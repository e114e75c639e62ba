"""A library norm with a residual sum before or an activation after it, each its own pass."""

from __future__ import annotations

from collections.abc import Callable

from advisor.model.graph import Node
from advisor.units import counted
from analyzers.library_ops import LIBRARY_NORMS, call_of
from analyzers.rules.base import (
    Cost,
    Match,
    Place,
    Rule,
    cost_of,
    is_pointwise,
    is_worth,
    opportunity,
)
from analyzers.rules.chains import apart, single_reader, whole_ops
from analyzers.rules.walk import calls, elements, operands
from analyzers.subject import GraphFacts, Subject

_NAMES = {
    "native_layer_norm": "LayerNorm", "layer_norm": "LayerNorm",
    "native_group_norm": "GroupNorm", "group_norm": "GroupNorm",
    "_fused_rms_norm": "RMSNorm", "rms_norm": "RMSNorm",
}  # fmt: skip
_MOST_BEFORE = 3


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for each norm together with the same neighbours."""
    found: dict[str, list[Place]] = {}
    for facts in subject.graphs:
        for node in facts.graph.nodes:
            if calls(node, LIBRARY_NORMS) and subject.free(facts, node.id) and node.value_args:
                name, members = _with_neighbours(subject, facts, node)
                if len(members) > 1:
                    place = Place(facts, members)
                    subject = subject.without(place.nodes)
                    found.setdefault(name, []).append(place)
    matches = []
    for kind in dict.fromkeys(
        name.split(" + ")[0 if not name.startswith("add") else 1] for name in found
    ):
        group = {name: places for name, places in found.items() if kind in name}
        places = [place for held in group.values() for place in held]
        cost = cost_of(subject, places)
        if is_worth(subject, cost):
            matches.append(_match(subject, group, places, cost))
    return tuple(matches)


def _match(
    subject: Subject, group: dict[str, list[Place]], places: list[Place], cost: Cost
) -> Match:
    common = max(group, key=lambda name: len(group[name]))
    kinds = "; ".join(f"{name} ×{len(held)}" for name, held in group.items())
    return opportunity(
        RULE.id,
        subject,
        places,
        cost,
        title=f"{common} {apart(places[0].facts)}, {counted(len(places), 'site')}",
        action=(
            "fuse the norm with its neighbours (torch.compile, Apex or Liger kernels, or a "
            "generated one)"
        ),
        dataflow=(
            "the neighbours read and write the tensor that the norm reads or writes anyway: "
            f"{kinds}"
        ),
        values={name: len(held) for name, held in group.items()},
        key=common,
    )


def _with_neighbours(subject: Subject, facts: GraphFacts, norm: Node) -> tuple[str, frozenset[str]]:
    """The norm, sums and casts straight before it, activations and casts straight after it."""
    size = elements(facts, norm)

    def fits(node: Node) -> bool:
        return (
            is_pointwise(facts, node.id)
            and elements(facts, node) == size
            and subject.free(facts, node.id)
        )

    before: list[Node] = []
    current = next(operands(facts, norm))
    while len(before) < _MOST_BEFORE and fits(current):
        before.append(current)
        wide = [o for o in operands(facts, current) if elements(facts, o) == size]
        current = next((o for o in wide if fits(o) and single_reader(facts, o) is current), norm)
    after: list[Node] = []
    reader = single_reader(facts, norm)
    while reader is not None and fits(reader):
        after.append(reader)
        reader = single_reader(facts, reader)
    # An activation is several nodes of one source op with two readers between them: take it whole.
    straight = {norm.id, *(n.id for n in before), *(n.id for n in after)}
    whole = whole_ops(facts, straight | _source_op_readers(facts, norm, fits))
    names = [_word(n) for n in reversed(before)] + [_NAMES[call_of(norm)]]
    tail = [
        _word(facts.flow.nodes[n])
        for n in sorted(whole, key=facts.flow.index.__getitem__)
        if facts.flow.index[n] > facts.flow.index[norm.id]
    ]
    return " + ".join(dict.fromkeys([*names, *tail])), frozenset(whole)


def _source_op_readers(facts: GraphFacts, norm: Node, fits: Callable[[Node], bool]) -> set[str]:
    """The nodes of the one source op that reads the norm's result, if it is pointwise."""
    users = {use.consumer for use in facts.flow.uses.get(norm.value(), ())}
    origins = {facts.flow.nodes[name].origin for name in users}
    if len(origins) != 1 or None in origins or norm.value() in facts.flow.escapes_graph:
        return set()
    origin = origins.pop()
    nodes = [n for n in facts.graph.nodes if n.origin == origin and n.id in facts.flow.index]
    return {n.id for n in nodes if n.alias_of is None} if all(fits(n) for n in nodes) else set()


def _word(node: Node) -> str:
    label = node.label.removeprefix("aten::").rstrip("_") or node.op
    return {"silu": "SiLU", "gelu": "GELU", "relu": "ReLU", "copy": "cast"}.get(label, label)


RULE = Rule(
    id="library-norm",
    title="A norm kernel with a residual, activation or cast beside it",
    explanation=(
        "A library norm reads and writes its tensor once; a residual sum before it or an "
        "activation after it does the same again. A kernel that adds, normalises and activates row "
        "by row needs one trip."
    ),
    bad="add, layer_norm; group_norm, silu",
    good="one kernel for both; or a norm with nothing beside it",
    find=find,
)
