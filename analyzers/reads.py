"""How an op reads a tensor: the value behind all views, the way through them, and where they cut.

Two reads with one way and one root differ at most in where they cut: they are parts of one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from advisor.model.graph import AXIS, START, Node, is_value, node_of
from advisor.model.optable import spec_of
from advisor.model.sizes import Dim, product
from analyzers.dataflow import Dataflow

# (op or call, shape and strides of its result): what a view does, apart from where it cuts.
Step = tuple[str, tuple[Dim, ...], tuple[Dim, ...]]
# (first index, extent) along the axis that a view cuts; None for a cut at an unknown place.
Cut = tuple[int, int] | None


@dataclass(frozen=True)
class Read:
    """`root` read by `way`, the views nearest to the root first, with a cut for each that cuts."""

    root: str
    way: tuple[Step, ...] = ()
    cuts: tuple[Cut, ...] = ()

    @property
    def producer(self) -> str:
        """The node that makes the value."""
        return node_of(self.root)[0]


def read_of(flow: Dataflow, value: str) -> Read:
    """How a value is read, followed to what owns its memory or writes it."""
    way: list[Step] = []
    cuts: list[Cut] = []
    while True:
        name, output = node_of(value)
        node = flow.nodes[name]
        if not passes(node) or output >= len(node.outputs):
            return Read(value, tuple(reversed(way)), tuple(reversed(cuts)))
        meta = node.outputs[output]
        way.append((node.op if node.op != "opaque" else node.target, meta.shape, meta.strides))
        source = node.value_args[0]
        if _is_part(flow, node, output, source):
            cuts.append(_cut(flow, node, output, source))
        value = source


def values_of(node: Node) -> Iterator[tuple[int, str]]:
    """The operands of a node that are values, by position."""
    for position, arg in enumerate(node.args):
        if isinstance(arg, str) and is_value(arg):
            yield position, arg


def passes(node: Node) -> bool:
    """A view of any kind: what it returns lies in the memory of its only operand, unchanged."""
    if spec_of(node.op).kind == "view":
        return bool(node.value_args)
    return (
        node.op == "opaque"
        and node.alias_of is not None
        and not node.mutates
        and node.value_args == (node.alias_of,)
    )


def _is_part(flow: Dataflow, node: Node, output: int, source: str) -> bool:
    if node.op != "opaque":
        return False
    held = flow.meta(source)
    return held is not None and product(node.outputs[output].shape) != product(held.shape)


def _cut(flow: Dataflow, node: Node, output: int, source: str) -> Cut:
    axis, start = node.attributes.get(AXIS), node.attributes.get(START)
    if not isinstance(axis, int):
        # A part by its offset in memory, in elements: who reads it knows strides, not axes.
        return (start, _reach(node, output)) if isinstance(start, int) else None
    held = flow.meta(source)
    rank = len(held.shape) if held is not None else 0
    own = [item.shape for item in node.outputs]
    sizes = [shape[axis] if len(shape) == rank else 1 for shape in own]
    if isinstance(start, int):
        return _known(start, sizes[output])
    before = sizes[:output]
    first = sum(size for size in before if isinstance(size, int))
    return None if any(isinstance(size, str) for size in before) else _known(first, sizes[output])


def _known(start: int, size: Dim) -> Cut:
    return (start, size) if isinstance(size, int) else None


def _reach(node: Node, output: int) -> int:
    """The longest run of elements that a part fills without a gap: its neighbour starts behind."""
    meta = node.outputs[output]
    rows = zip(meta.shape, meta.strides, strict=True)
    run = 1
    for stride, size in sorted(
        (s, n) for n, s in rows if isinstance(n, int) and isinstance(s, int)
    ):
        if size > 1 and stride <= run:
            run = stride * size
    return run


def walked(reads: Sequence[Read], *, certain: bool) -> bool:
    """Whether reads of one root by one way go along one axis, part by part, none twice.

    Where cuts are at unknown places they are taken to, unless that must be `certain`.
    """
    rows = list(zip(*(read.cuts for read in reads), strict=True))
    moving = [row for row in rows if len(set(row)) > 1]
    if not moving:
        return not certain and any(None in row for row in rows)
    known = [cut for cut in moving[0] if cut is not None]
    if len(moving) > 1 or len(known) < len(reads):
        return False
    starts = [start for start, _ in known]
    strides = {after - before for before, after in pairwise(starts)}
    return len(strides) == 1 and all(abs(stride) >= size for stride in strides for _, size in known)
