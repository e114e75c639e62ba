"""Where one kernel of the compiler may be cut: a few ways, each a split, most promising first.

What a cut costs is what passes through memory there: each value is written once and read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from advisor.model.cures import Split
from advisor.units import format_bytes

from .names import VIEWS, keys_of, stored

# Ops that a reader does itself rather than read their result: they cost nothing beside a load.
CHEAP = frozenset({torch.ops.prims.convert_element_type.default, torch.ops.aten.full.default})
SAME_ORDER = frozenset(
    {
        torch.ops.aten.alias.default,
        torch.ops.aten.reshape.default,
        torch.ops.aten.squeeze.dim,
        torch.ops.aten.squeeze.dims,
        torch.ops.aten.unsqueeze.default,
        torch.ops.aten.view.default,
    }
)
# Cuts of one kernel that are worth a measurement; beyond them one op more or less changes little.
MOST_CUTS = 4


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel of a compiled graph and the post-grad nodes that it computes, by name."""

    name: str
    nodes: tuple[str, ...]


def cuts_of(
    graph: fx.Graph, kernel: CompiledKernel, others: Sequence[CompiledKernel] = ()
) -> tuple[Split, ...]:
    """The ways to cut a kernel of a graph; none if there is nothing between its ops.

    `others` are all kernels of the graph: what several compute each for themselves is one cut.
    """
    keys = keys_of(graph)
    found: list[Split] = []
    for words, groups in _ways(graph, kernel, others):
        named = tuple(tuple(sorted({keys[node] for node in group})) for group in groups)
        flat = [key for group in named for key in group]
        if len(named) < 2 or not all(named) or len(set(flat)) < len(flat):
            continue
        split = Split(kernel=kernel.name, words=words, groups=named)
        if all(split.groups != other.groups for other in found):
            found.append(split)
    return tuple(found[:MOST_CUTS])


Way = tuple[str, list[list[fx.Node]]]


def _ways(
    graph: fx.Graph, kernel: CompiledKernel, others: Sequence[CompiledKernel]
) -> Iterator[Way]:
    own = _members(graph, kernel)
    ordered = [node for node in graph.nodes if node in own]
    yield from _recomputed(graph, ordered, kernel, others)
    yield from _around_reductions(ordered)
    yield from _narrowest(ordered)
    if len(ordered) > 2:
        yield "every op a kernel of its own", [[node] for node in ordered]


def _members(graph: fx.Graph, kernel: CompiledKernel) -> set[fx.Node]:
    """The nodes of a kernel that compute something a split can name.

    Views, and what costs nothing beside a load of what it reads, go with their readers.
    """
    named = {node for node in graph.nodes if node.name in kernel.nodes}
    return {node for node in named if _counts(node)}


def _counts(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.op != "call_function" or node.target in VIEWS or not isinstance(value, torch.Tensor):
        return False
    if node.target not in CHEAP:
        return True
    # A cast of what a kernel computed is part of what it computes.
    read = [stored(source) for source in node.all_input_nodes]
    return any(source.op == "call_function" and _counts(source) for source in read)


def _recomputed(
    graph: fx.Graph,
    ordered: Sequence[fx.Node],
    kernel: CompiledKernel,
    others: Sequence[CompiledKernel],
) -> Iterator[Way]:
    """After each value that several readers compute for themselves; most readers first."""
    places = _places(graph, kernel, others)
    readers = {node: max(_readings(node), places.get(node, 1)) for node in ordered}
    several = [node for node in ordered if readers[node] > 1]
    for node in sorted(several, key=lambda n: (-readers[n], -_depth(n, ordered))):
        before = _cone(node, ordered)
        rest = [one for one in ordered if one not in before]
        for other in others:
            if other.name != kernel.name and node.name in other.nodes:
                rest += [n for n in _members(graph, other) if n not in before and n not in rest]
        words = f"{node.name} is stored once, not computed for each of {readers[node]} readers"
        yield words, [[n for n in ordered if n in before], rest]


def _places(
    graph: fx.Graph, kernel: CompiledKernel, others: Sequence[CompiledKernel]
) -> Mapping[fx.Node, int]:
    """How many kernels compute a node."""
    names = [kernel.nodes, *(o.nodes for o in others if o.name != kernel.name)]
    return {node: sum(node.name in nodes for nodes in names) for node in graph.nodes}


def _readings(node: fx.Node) -> int:
    """At how many places a value is read by one kernel: each view of other elements is one."""
    return len(set(_paths(node, ())))


def _paths(node: fx.Node, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The views through which ops read a node, those that keep the order of elements left out."""
    for user in node.users:
        if user.target in VIEWS:
            further = () if user.target in SAME_ORDER else (f"{user.target}{user.args[1:]}",)
            yield from _paths(user, (*path, *further))
        elif user.op == "call_function":
            yield path


def _around_reductions(ordered: Sequence[fx.Node]) -> Iterator[Way]:
    """After every reduction, for what follows reads one value a row of it."""
    reductions = [node for node in ordered if _reduces(node)]
    for node in reductions:
        before = _cone(node, ordered)
        rest = [one for one in ordered if one not in before]
        if rest:
            yield f"{node.name} is a kernel with what it sums", [list(before), rest]


def _reduces(node: fx.Node) -> bool:
    value = node.meta["val"]
    sizes = [
        source.meta["val"].numel()
        for source in node.all_input_nodes
        if isinstance(source.meta.get("val"), torch.Tensor)
    ]
    return bool(sizes) and value.numel() < max(sizes)


def _narrowest(ordered: Sequence[fx.Node]) -> Iterator[Way]:
    """Between two ops, near the middle, where least passes through memory."""
    count = len(ordered)
    at = range(max(1, count // 4), min(count, count - count // 4 + 1))
    for place in sorted(at, key=lambda i: (_passing_bytes(ordered, i), abs(2 * i - count)))[:1]:
        passing = format_bytes(_passing_bytes(ordered, place))
        words = f"before {ordered[place].name}, where {passing} pass"
        yield words, [list(ordered[:place]), list(ordered[place:])]


def _passing_bytes(ordered: Sequence[fx.Node], place: int) -> int:
    late = set(ordered[place:])
    passing = {node for node in ordered[:place] if _read_by(node, late)}
    return sum(_size(node) for node in passing)


def _read_by(node: fx.Node, late: set[fx.Node]) -> bool:
    return any(
        user in late or (user not in late and not _counts(user) and _read_by(user, late))
        for user in node.users
    )


def _size(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.numel() * value.element_size())


def _cone(node: fx.Node, ordered: Sequence[fx.Node]) -> dict[fx.Node, None]:
    """The node and all of `ordered` that it is computed from, in order."""
    found, waiting = {node}, [node]
    while waiting:
        for source in waiting.pop().all_input_nodes:
            if source not in found and source.op == "call_function":
                found.add(source)
                waiting.append(source)
    return {one: None for one in ordered if one in found}


def _depth(node: fx.Node, ordered: Sequence[fx.Node]) -> int:
    return len(_cone(node, ordered))
