"""Walking a graph, whatever it was captured from: views are passed, calls have one name."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.model.graph import Node, node_of
from advisor.model.optable import spec_of
from advisor.model.sizes import Size, product
from analyzers.library_ops import COPIES, VIEWS, call_of, is_product
from analyzers.subject import GraphFacts


def is_view(node: Node) -> bool:
    """A node that only reads its operand another way."""
    return spec_of(node.op).kind == "view" or (
        node.op == "opaque" and len(node.value_args) == 1 and call_of(node) in VIEWS
    )


def source(facts: GraphFacts, value: str) -> str:
    """The value behind all views, those that permute or cut included."""
    while True:
        node = facts.flow.nodes[node_of(value)[0]]
        if not is_view(node) or not node.args:
            return value
        value = node.value_args[0]


def producer(facts: GraphFacts, value: str) -> Node:
    """The computing node behind a value and its views."""
    return facts.flow.nodes[node_of(source(facts, value))[0]]


def readers(facts: GraphFacts, node: Node) -> tuple[Node, ...]:
    """The computing nodes that read a node's first output, through views of any kind."""
    found: dict[str, Node] = {}
    pending = [node]
    while pending:
        for use in facts.flow.uses.get(pending.pop().value(), ()):
            reader = facts.flow.nodes[use.consumer]
            if is_view(reader):
                pending.append(reader)
            else:
                found.setdefault(reader.id, reader)
    return tuple(found.values())


def operands(facts: GraphFacts, node: Node) -> Iterator[Node]:
    """The computing nodes behind a node's operands, one each."""
    for value in node.value_args:
        yield producer(facts, value)


def calls(node: Node, names: frozenset[str]) -> bool:
    """Whether an opaque node calls one of these."""
    return node.op == "opaque" and call_of(node) in names


def is_gemm(node: Node) -> bool:
    """A matrix product of any spelling."""
    return is_product(node)


def is_copy(node: Node) -> bool:
    """A call that copies; between dtypes it is a cast as well (`moves_only` tells)."""
    return calls(node, COPIES)


def moves_only(facts: GraphFacts, node: Node) -> bool:
    """A copy between equal dtypes: it computes nothing."""
    if not is_copy(node) or not node.value_args or not node.outputs:
        return False
    meta = facts.flow.meta(node.value_args[0])
    return meta is not None and meta.dtype == node.outputs[0].dtype


def elements(facts: GraphFacts, node: Node) -> Size | None:
    """The size of a node's first output, None if it has none."""
    return product(node.outputs[0].shape) if node.outputs else None
