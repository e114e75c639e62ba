"""Chains of pointwise ops: groups of one size; every value is read inside, or leaves once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from advisor.model.graph import GRADIENT, Node
from advisor.units import counted
from analyzers.program_cost import source_ops
from analyzers.rules.base import is_pointwise
from analyzers.rules.walk import elements, is_view, readers
from analyzers.subject import GraphFacts, Subject


def single_reader(facts: GraphFacts, node: Node) -> Node | None:
    """The only computing node that reads this one's value, which does not leave the graph."""
    if node.value() in facts.flow.escapes_graph:
        return None
    users = readers(facts, node)
    return users[0] if len(users) == 1 else None


def chains(subject: Subject, facts: GraphFacts) -> list[tuple[str, ...]]:
    """Convex groups of two or more free pointwise ops with results of one size, in graph order.

    Eager runs no op of the forward pass a second time in the backward one: what the compiler
    computes there again is in no group.
    """
    size_of = {
        node.id: elements(facts, node)
        for node in facts.graph.nodes
        if node.id in facts.flow.index
        and is_pointwise(facts, node.id)
        and subject.free(facts, node.id)
        and not (subject.eager and is_recomputed(facts, node))
    }
    group: dict[str, set[str]] = {name: {name} for name in size_of}
    for name, size in size_of.items():
        for reader in _direct_readers(facts, facts.flow.nodes[name]):
            if size_of.get(reader.id) != size or group[reader.id] is group[name]:
                continue
            joined = group[name] | group[reader.id]
            if facts.flow.between(frozenset(joined)):
                continue
            for member in joined:
                group[member] = joined
    order = facts.flow.index.__getitem__
    distinct = {id(found): found for found in group.values() if len(found) > 1}
    return sorted(
        (tuple(sorted(found, key=order)) for found in distinct.values()), key=lambda g: order(g[0])
    )


def is_recomputed(facts: GraphFacts, node: Node) -> bool:
    """An op of the forward pass in the graph of the backward pass."""
    return (
        facts.graph.phase == "backward"
        and node.origin is not None
        and not node.origin.startswith(GRADIENT)
    )


def _direct_readers(facts: GraphFacts, node: Node) -> list[Node]:
    """Readers that take the value as it lies: past a permutation or a cut, positions differ."""
    return [
        reader
        for use in facts.flow.uses.get(node.value(), ())
        if not is_view(reader := facts.flow.nodes[use.consumer])
    ]


def by_signature(
    groups: Iterable[tuple[GraphFacts, tuple[str, ...]]],
    describe: Callable[[Node], str] = lambda node: f"{node.op}:{node.outputs[0].dtype}",
) -> dict[tuple[str, ...], list[tuple[GraphFacts, tuple[str, ...]]]]:
    """Groups with the same ops on the same dtypes, whatever their sizes."""
    found: dict[tuple[str, ...], list[tuple[GraphFacts, tuple[str, ...]]]] = {}
    for facts, members in groups:
        key = tuple(describe(facts.flow.nodes[name]) for name in members)
        found.setdefault(key, []).append((facts, members))
    return found


def whole_ops(facts: GraphFacts, members: Iterable[str]) -> frozenset[str]:
    """The nodes and all others of their source ops: on a trace they are one kernel each."""
    names = frozenset(members)
    if facts.graph.source != "inferred":
        return names
    origins = {facts.flow.nodes[name].origin for name in names} - {None}
    return names | {
        node.id
        for node in facts.graph.nodes
        if node.origin in origins and node.id in facts.flow.index and node.alias_of is None
    }


def units_of(facts: GraphFacts, members: Iterable[str]) -> int:
    """How many kernels the nodes are today.

    In eager, nodes of one source op run as one; a compiler says which of its kernels computes what.
    """
    names = frozenset(members)
    if facts.prices.fused:
        return len(facts.prices.price(facts.flow, names).units)
    ops = source_ops(facts.flow, names)
    nodes = [facts.flow.nodes[name] for own in ops for name in own]
    return len({node.origin or node.id for node in nodes})


def in_pieces(facts: GraphFacts, count: int) -> str:
    """So many kernels in words: `in 3 separate ops`, or `in 2 generated kernels`."""
    return f"in {counted(count, _piece(facts))}"


def apart(facts: GraphFacts) -> str:
    """The same without a number: `in separate ops`, or `in several generated kernels`."""
    return "in several generated kernels" if facts.prices.fused else "in separate ops"


def _piece(facts: GraphFacts) -> str:
    return "generated kernel" if facts.prices.fused else "separate op"
