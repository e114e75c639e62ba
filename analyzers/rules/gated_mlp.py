"""Gated MLP: act(x W₁) · (x W₂) with the gate as separate ops."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.findings import Alternative
from advisor.model.graph import Node
from advisor.model.plan import PlanOp
from advisor.units import counted
from analyzers.activation_names import activations
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
from analyzers.rules.chains import apart, units_of
from analyzers.rules.walk import elements, is_gemm, operands
from analyzers.subject import GraphFacts, Subject

_ACTIVATIONS = ("sigmoid", "tanh", "erf", "exp")
_GATES = {"SiLU": "SwiGLU", "GELU": "GEGLU"}
_MOST_OPS = 12


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for all gates of the step."""
    found: dict[str, list[Place]] = {}
    for facts in subject.graphs:
        for node in facts.graph.nodes:
            gate = _gate(subject, facts, node)
            if gate is not None:
                name, place = gate
                found.setdefault(name, []).append(place)
    matches = []
    for name, places in found.items():
        cost = cost_of(subject, places)
        if is_worth(subject, cost):
            matches.append(_match(subject, name, places, cost))
    return tuple(matches)


def _match(subject: Subject, name: str, places: list[Place], cost: Cost) -> Match:
    return opportunity(
        RULE.id,
        subject,
        places,
        cost,
        title=f"{name} gate {apart(places[0].facts)}, {counted(len(places), 'site')}",
        action="fuse activation and product (torch.compile, Liger, or a generated kernel)",
        dataflow=(
            "the activation of one matrix product times another: the activated tensor is written "
            "and read again"
        ),
        alternatives=(
            Alternative(
                route="do_not_fuse",
                text="into the GEMM's epilogue: an extra full-size operand; measure first",
            ),
        ),
    )


def _gate(subject: Subject, facts: GraphFacts, node: Node) -> tuple[str, Place] | None:
    """The pointwise ops between two matrix products and this product of theirs."""
    if node.op != "mul" or not subject.free(facts, node.id) or len(node.value_args) != 2:
        return None
    size = elements(facts, node)
    sides = list(operands(facts, node))
    for gate, other in (sides, sides[::-1]):
        if not is_gemm(other) and not _is_plain_projection(facts, other, size):
            continue
        members, root = _activation(facts, gate, size)
        if not members or not all(subject.free(facts, name) for name in members):
            continue
        projected = [other] if is_gemm(other) else operands(facts, other)
        if root in (node.id for node in projected):
            continue  # x · sigmoid(x) is an activation itself, and no gate
        whole = members | {node.id}
        if units_of(facts, whole) > 1:
            return _name([n for n in facts.graph.nodes if n.id in members]), Place(facts, whole)
    return None


def _name(nodes: Sequence[Node]) -> str:
    """By the activation, recognised whole; a bare sigmoid or tanh gates as in the first GLU."""
    kinds = {node.op for node in nodes}
    if not kinds & {"mul", "div"}:
        return "GLU" if kinds & {"sigmoid", "tanh"} else "Activation"
    ops = [
        PlanOp(name=n.value(), op=n.op, args=n.args, dtype=n.outputs[0].dtype, space="tile")
        for n in nodes
    ]
    return next((name for kind, name in _GATES.items() if kind in activations(ops)), "Activation")


def _activation(facts: GraphFacts, node: Node, size: object) -> tuple[frozenset[str], str]:
    """The pointwise ops of an activation back to the one matrix product it reads, and that; none
    where it is no activation of one.
    """
    members: set[str] = set()
    roots: set[str] = set()
    pending = [node]
    while pending and len(members) <= _MOST_OPS:
        current = pending.pop()
        if is_gemm(current):
            roots.add(current.id)
        elif is_pointwise(facts, current.id) and elements(facts, current) == size:
            members.add(current.id)
            pending += [o for o in operands(facts, current) if elements(facts, o) == size]
        else:
            return frozenset(), ""
    activates = any(facts.flow.nodes[name].op in _ACTIVATIONS for name in members)
    return (frozenset(members), roots.pop()) if activates and len(roots) == 1 else (frozenset(), "")


def _is_plain_projection(facts: GraphFacts, node: Node, size: object) -> bool:
    """A bias added to a matrix product."""
    return (
        node.op == "add"
        and elements(facts, node) == size
        and any(is_gemm(o) for o in operands(facts, node))
    )


RULE = Rule(
    id="gated-mlp",
    title="Gated MLP in separate ops",
    explanation=(
        "SwiGLU and GEGLU (N. Shazeer, 2020) multiply one projection by the activation of another. "
        "As separate ops the activated tensor is written and read again: five passes over the "
        "widest tensor of the layer where three suffice."
    ),
    bad="silu(gate), then a product with up",
    good="one kernel that reads both projections and writes the product",
    find=find,
)
