"""Rotary embedding written out: x cos + rotate_half(x) sin."""

from __future__ import annotations

from advisor.model.findings import Alternative
from advisor.model.graph import Node
from advisor.units import counted
from analyzers.rules.base import Match, Place, Rule, cost_of, is_worth, opportunity
from analyzers.rules.walk import calls, elements, operands, source
from analyzers.subject import GraphFacts, Subject

_CAT = frozenset({"cat"})
# Queries and keys of one layer are rotated one after the other: so few ops lie between.
_PAIR_DISTANCE = 8


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for all rotations of the step."""
    places: list[Place] = []
    pairs = 0
    for facts in subject.graphs:
        found = [
            place for node in facts.graph.nodes if (place := _rotation(facts, node)) is not None
        ]
        pairs += _pairs(facts, found)
        places += found
    if not places:
        return ()
    cost = cost_of(subject, places)
    if not is_worth(subject, cost):
        return ()
    layers = f" ({counted(pairs, 'pair')} of queries and keys)" if pairs else ""
    return (
        opportunity(
            RULE.id,
            subject,
            places,
            cost,
            title=f"Rotary embedding written out, {counted(len(places), 'site')}{layers}",
            action=(
                "rotate queries and keys in one kernel (a fused rotary embedding, or torch.compile "
                "of the function)"
            ),
            dataflow=(
                "x·cos + rotate_half(x)·sin: a negation, a concatenation, two products and a sum "
                "over the same tensor"
            ),
            values={"pairs": pairs},
            alternatives=(
                Alternative(
                    route="library",
                    text="Liger, FlashAttention or Transformer Engine have the kernel",
                ),
                Alternative(
                    route="compile_region",
                    text="torch.compile makes one kernel of it, the concatenation included",
                ),
            ),
        ),
    )


def _rotation(facts: GraphFacts, node: Node) -> Place | None:
    """The ops of one rotation that end in this sum."""
    if node.op != "add":
        return None
    parts = [part for part in operands(facts, node) if part.op == "mul"]
    if len(parts) != 2:
        return None
    size = elements(facts, node)
    for straight, turned in (parts, parts[::-1]):
        rotated = next((o for o in operands(facts, turned) if calls(o, _CAT)), None)
        if rotated is None or elements(facts, rotated) != size or elements(facts, straight) != size:
            continue
        negated = next((o for o in operands(facts, rotated) if o.op == "neg"), None)
        if negated is not None and _is_of_one(facts, straight, rotated, negated):
            return Place(
                facts, frozenset((node.id, straight.id, turned.id, rotated.id, negated.id))
            )
    return None


def _is_of_one(facts: GraphFacts, straight: Node, rotated: Node, negated: Node) -> bool:
    """Whether both halves, the negated one and the other, are of the tensor that is multiplied.

    A graph that was inferred from a trace does not say what is cut from what: there the form alone
    tells.
    """
    if len(rotated.value_args) != 2 or facts.graph.source == "inferred":
        return len(rotated.value_args) == 2
    halves = {source(facts, value) for value in rotated.value_args} - {negated.value()}
    multiplied = {source(facts, value) for value in straight.value_args}
    whole = source(facts, negated.value_args[0])
    return halves == {whole} and whole in multiplied


def _pairs(facts: GraphFacts, places: list[Place]) -> int:
    """Rotations that follow each other closely: queries and keys of one layer."""
    spans = [sorted(facts.flow.index[name] for name in place.fused) for place in places]
    pairs = index = 0
    while index + 1 < len(spans):
        near = spans[index + 1][0] - spans[index][-1] <= _PAIR_DISTANCE
        pairs += near
        index += 2 if near else 1
    return pairs


RULE = Rule(
    id="rotary-written-out",
    title="Rotary embedding in separate ops",
    explanation=(
        "Rotating queries and keys as x·cos + cat(−x₂, x₁)·sin (J. Su et al., RoFormer, 2021) "
        "costs five kernels a tensor, the concatenation included. Everything happens at the same "
        "element or its partner: one pass suffices."
    ),
    bad="mul, neg, cat, mul, add for q and again for k in every layer",
    good="one kernel for q and k, or rotation inside the attention kernel",
    find=find,
)
