"""The axes of a group: its full-size shapes refined to common ones, cut into rows and columns.

Shapes of a group need not be equal: `[4, 1024, 2048]` and `[4096, 2048]` hold the same elements in
the same linear order. All full-size shapes are refined to common *axes* (the ratios of their sorted
suffix products). The reduction that a group is grown around divides them: what it reduces is the
columns if these are the innermost axes, the rows if they are the outermost. Where they are neither
(channels in the middle), the columns are the side along which memory is read without gaps. Where
everything is reduced to one value, everything is one row, along an axis of size 1 of its own. Of a
group without reductions they are the innermost axes that its seed walks as one (`turned`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from advisor.errors import IllegalFusionError
from advisor.model.graph import Node, TensorMeta, node_of
from advisor.model.optable import spec_of
from advisor.model.sizes import ONE, Dim, Size, parse, product
from analyzers.dataflow import Dataflow
from analyzers.turned import columns_of

# Column numbers are 32-bit in a kernel, and the last block's may run past the last column.
MAX_COLUMNS = 2**30
AxisRun = tuple[int, ...]
Placement = tuple[AxisRun, ...]


@dataclass(frozen=True)
class Axes:
    """The sizes of the axes, outermost first, and which of them are rows, which columns.

    Columns stand in the order in which memory holds them, the widest stride first. The axis of a
    `lone` row is no part of any shape: the first dimension of what is not a single value has it.
    """

    sizes: tuple[Size, ...]
    row_run: AxisRun
    column_run: AxisRun
    lone: bool = False

    @property
    def total(self) -> Size:
        """Elements of a full-size value."""
        total = ONE
        for size in self.sizes:
            total = total.times(size)
        return total

    @property
    def whole_run(self) -> AxisRun:
        """All axes."""
        return tuple(range(len(self.sizes)))

    def partition(self, shape: tuple[Dim, ...], run: AxisRun) -> Placement:
        """Split an ordered run of axes over the dimensions of a shape of as many elements."""
        left, placement = list(run), []
        for dim in shape:
            want, took, size = parse(dim), [], ONE
            while size != want:
                if not left:
                    raise IllegalFusionError(
                        f"shape {list(shape)} does not follow the axes of the group"
                    )
                axis = left.pop(0)
                took.append(axis)
                size = size.times(self.sizes[axis])
            placement.append(tuple(took))
        if left:
            raise IllegalFusionError(f"shape {list(shape)} does not follow the axes of the group")
        return tuple(placement)

    def across(
        self, view: Node, placement: Placement, known: tuple[Dim, ...], wanted: tuple[Dim, ...]
    ) -> Placement:
        """The placement on the other side of a view, of shape `wanted`."""
        if view.op == "expand":
            return aligned(wanted, known, placement)
        return self.partition(wanted, tuple(axis for run in placement for axis in run))


def aligned(operand: tuple[Dim, ...], shape: tuple[Dim, ...], placement: Placement) -> Placement:
    """The placement of an operand broadcast to a placed result (right-aligned)."""
    offset = len(shape) - len(operand)
    return tuple(
        () if parse(dim).is_one else placement[offset + position]
        for position, dim in enumerate(operand)
    )


def axes_of(
    flow: Dataflow,
    order: Sequence[Node],
    members: frozenset[str],
    seed: str,
    width: Size | None = None,
) -> Axes:
    """The axes of a group around its seed; `IllegalFusionError` says why it has none.

    `width` says how many columns there are, the innermost elements of the seed's result.
    """
    node = flow.nodes[seed]
    reduces = spec_of(node.op).kind == "reduction"
    whole = flow.need_meta(str(node.args[0]) if reduces else node.value())
    total = product(whole.shape)
    if flow.hint(total) == 0:
        raise IllegalFusionError("there is nothing to compute: a tensor of the group is empty")
    if width is not None:
        columns = _innermost(whole, width)
    else:
        columns = _reduction_columns(flow, whole, node) if reduces else columns_of(flow, node)
    count = flow.hint(product(whole.shape[d] for d in columns))
    if count > MAX_COLUMNS:
        raise IllegalFusionError(f"{count:,} columns are more than a kernel can number")
    sizes = _refined(flow, _full_size_metas(flow, order, members, total), total)
    if reduces and len(columns) == sum(not parse(size).is_one for size in whole.shape):
        return Axes((ONE, *sizes), (0,), tuple(range(1, len(sizes) + 1)), lone=True)
    undivided = Axes(sizes, (), ())
    placement = undivided.partition(whole.shape, undivided.whole_run)
    inside = [axis for d in columns for axis in placement[d]]
    rows = tuple(axis for axis in undivided.whole_run if axis not in inside)
    if not rows:
        # All tensors are walked alike: one run of elements, a single row of them.
        sizes, rows, inside = (ONE, *sizes), (0,), [axis + 1 for axis in inside]
    last = [a for copy in copies(flow, order) if (a := innermost(flow, copy, undivided)) in rows]
    if reduces and last:
        # Programs with rows side by side along this axis write whole sectors of the copy.
        rows = (*(axis for axis in rows if axis != last[0]), last[0])
    return Axes(sizes, rows, tuple(inside))


def copies(flow: Dataflow, nodes: Sequence[Node]) -> list[Node]:
    """The ops that store a value once more, in another order."""
    casts = (node for node in nodes if node.op == "cast")
    return [
        node
        for node in casts
        if [flow.need_meta(value).dtype for value in node.value_args] == [node.outputs[0].dtype]
    ]


def innermost(flow: Dataflow, node: Node, axes: Axes) -> int | None:
    """The axis along which memory holds a full-size result without gaps; None if it has none."""
    meta = flow.need_meta(node.value())
    if product(meta.shape) != axes.total:
        return None
    run = axes.whole_run[1:] if axes.lone else axes.whole_run
    for size, stride, placed in zip(
        meta.shape, meta.strides, axes.partition(meta.shape, run), strict=True
    ):
        if parse(stride) == ONE and not parse(size).is_one and placed:
            return placed[-1]
    return None


def _innermost(meta: TensorMeta, width: Size) -> list[int]:
    """The innermost dimensions, so many that they hold `width` elements."""
    found: list[int] = []
    size = ONE
    for dim in reversed(range(len(meta.shape))):
        if size == width and found:
            break
        found.insert(0, dim)
        size = size.times(parse(meta.shape[dim]))
    if size != width:
        raise IllegalFusionError(f"shape {list(meta.shape)} does not keep the columns of a product")
    return found


def _reduction_columns(flow: Dataflow, operand: TensorMeta, seed: Node) -> list[int]:
    """The dimensions of a reduction's operand that are columns, from the widest stride on."""
    # Axes of size 1 hold nothing to reduce and stand in nobody's way.
    wide = [d for d, size in enumerate(operand.shape) if not parse(size).is_one]
    reduced = [d for d in seed.axes if d in wide]
    if not reduced:
        raise IllegalFusionError("the reduction is over a single element")
    if len(reduced) == len(wide):
        return reduced
    kept = [d for d in wide if d not in reduced]
    strides = {d: flow.hint(parse(operand.strides[d]), unknown=1) for d in wide}
    if reduced == wide[-len(reduced) :]:
        found = reduced
    elif reduced == wide[: len(reduced)]:
        found = kept
    else:
        innermost = min(wide, key=lambda d: (strides[d], -d))
        found = reduced if innermost in reduced else kept
    return sorted(found, key=lambda d: -strides[d])


def _refined(flow: Dataflow, metas: Sequence[TensorMeta], total: Size) -> tuple[Size, ...]:
    """The ratios of all suffix products of full-size shapes: the coarsest common refinement."""
    marks = {ONE, total}
    for meta in metas:
        suffix = ONE
        for dim in reversed(meta.shape):
            suffix = suffix.times(parse(dim))
            marks.add(suffix)
    ordered = sorted(marks, key=flow.hint)
    axes = []
    for inner, outer in pairwise(ordered):
        ratio = outer.over(inner)
        if ratio is None:
            raise IllegalFusionError(
                "shapes in the group split the same elements in incompatible ways"
            )
        axes.append(ratio)
    return tuple(reversed(axes))


def _full_size_metas(
    flow: Dataflow, order: Sequence[Node], members: frozenset[str], total: Size
) -> list[TensorMeta]:
    found = []
    for node in order:
        values = [node.value(), *node.value_args]
        for value in [*values, *_views_behind(flow, members, values)]:
            meta = flow.meta(value)
            if meta is not None and product(meta.shape) == total:
                found.append(meta)
    return found


def _views_behind(flow: Dataflow, members: frozenset[str], values: Sequence[str]) -> list[str]:
    """View nodes on the way from a member's operand back to another member."""
    found = []
    for start in values:
        value, path = start, []
        while spec_of(flow.nodes[node_of(value)[0]].op).kind == "view":
            path.append(value)
            value = str(flow.nodes[node_of(value)[0]].args[0])
        if node_of(value)[0] in members:
            found += path
    return found
