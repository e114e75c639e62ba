"""Where values of a scan lie on its axes, followed through views of any kind.

Axes are numbered; `STEP` is the one that the loop walks. A dimension is a run of axes, outermost
first, and begins somewhere in it: a step reads `x[:, t]`, so of x the second dimension is `STEP`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.model.graph import AXIS, START, Node, TensorMeta, node_of
from analyzers.dataflow import Dataflow
from analyzers.library_ops import call_of

STEP = -1
Run = tuple[int, ...]
_TURNING = ("permute", "transpose", "t")
_CUTTING = ("select", "slice", "split", "split_with_sizes", "unbind")


@dataclass(frozen=True)
class Window:
    """One dimension of a value: the axes it varies along, and the index at which these begin."""

    run: Run = ()
    start: int = 0


Windows = tuple[Window, ...]


def windows_of(runs: Sequence[Run]) -> Windows:
    """Windows that begin at 0."""
    return tuple(Window(run) for run in runs)


def is_view(node: Node) -> bool:
    """A view of a kind that is followed: what it returns holds its operand's elements."""
    known = node.op in ("reshape", "expand") or call_of(node) in (*_TURNING, *_CUTTING)
    return known and bool(node.value_args) and not node.mutates


def shares_memory(node: Node) -> bool:
    """Whether a view's result lies in the memory of its operand."""
    return node.alias_of is not None


def numbers(meta: TensorMeta) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and strides, None where one is only known at run time."""
    shape = tuple(n for n in meta.shape if isinstance(n, int))
    strides = tuple(n for n in meta.strides if isinstance(n, int))
    known = len(shape) == len(meta.shape) and len(strides) == len(meta.strides)
    return (shape, strides) if known else None


def cut_of(flow: Dataflow, value: str) -> tuple[int, int] | None:
    """(axis, first index) of a view that takes a part; None if it takes none, or it is unknown."""
    name, output = node_of(value)
    node = flow.nodes[name]
    axis, start = node.attributes.get(AXIS), node.attributes.get(START)
    if not isinstance(axis, int):
        return None
    if isinstance(start, int):
        return axis, start
    source = flow.meta(node.value_args[0])
    if call_of(node) == "unbind" or source is None:
        return axis, output
    sizes = [meta.shape[axis] for meta in node.outputs[:output]]
    known = [size for size in sizes if isinstance(size, int)]
    return (axis, sum(known)) if len(known) == len(sizes) else None


def drops_axis(node: Node) -> bool:
    """Whether a part loses the axis along which it was taken."""
    return call_of(node) in ("select", "unbind")


def offset_of(flow: Dataflow, value: str) -> tuple[str, int] | None:
    """(the value that owns the memory, the element at which this one begins in it)."""
    offset = 0
    while True:
        node = flow.nodes[node_of(value)[0]]
        if not is_view(node) or not shares_memory(node):
            return (value, offset) if node.alias_of is None else None
        source = node.value_args[0]
        if call_of(node) in _CUTTING:
            cut, layout = cut_of(flow, value), layout_of(flow, source)
            if cut is None or layout is None:
                return None
            offset += cut[1] * layout[1][cut[0]]
        value = source


def layout_of(flow: Dataflow, value: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(shape, strides) of a value, None where one is only known at run time.

    Of a part they follow from what it is a part of: a compiler that replaced `x + 0` by `x` has
    written the strides of the sum there.
    """
    node = flow.nodes[node_of(value)[0]]
    own = numbers(flow.need_meta(value))
    cut = cut_of(flow, value) if is_view(node) and shares_memory(node) else None
    if own is None or cut is None:
        return own
    source = layout_of(flow, node.value_args[0])
    if source is None:
        return None
    strides = source[1]
    if drops_axis(node):
        strides = (*strides[: cut[0]], *strides[cut[0] + 1 :])
    return (own[0], strides) if len(strides) == len(own[0]) else None


def above(
    flow: Dataflow, value: str, windows: Windows, sizes: Mapping[int, int]
) -> tuple[str, Windows] | None:
    """One view up: the operand of the view that makes a value, with its windows."""
    node = flow.nodes[node_of(value)[0]]
    if not is_view(node):
        return None
    source = node.value_args[0]
    inner, outer = layout_of(flow, source), layout_of(flow, value)
    if inner is None or outer is None:
        return None
    (shape, strides), (own, own_strides) = inner, outer
    found: Windows | None
    if node.op == "reshape":
        found = _reshaped(windows, own, shape, sizes)
    elif node.op == "expand":
        skip = len(own) - len(shape)
        kept = zip(shape, windows[skip:], strict=True)
        found = tuple(window if size != 1 else Window() for size, window in kept)
    elif call_of(node) in _TURNING:
        found = _turned(windows, list(zip(own, own_strides, strict=True)), shape, strides)
    else:
        found = _uncut(flow, value, windows)
    return (source, found) if found is not None else None


def below(
    flow: Dataflow, value: str, runs: Sequence[Run], sizes: Mapping[int, int]
) -> tuple[Run, ...] | None:
    """The runs of a view's result from those of its operand; None where they are not decided."""
    node = flow.nodes[node_of(value)[0]]
    inner, outer = layout_of(flow, node.value_args[0]), layout_of(flow, value)
    if inner is None or outer is None:
        return None
    (shape, strides), (own, own_strides) = inner, outer
    windows = windows_of(runs)
    found: Windows | None
    if node.op == "reshape":
        found = _reshaped(windows, shape, own, sizes)
    elif node.op == "expand":
        wider = own[len(own) - len(shape) :] != shape or any(n != 1 for n in own[: -len(shape)])
        found = None if wider else (*(Window(),) * (len(own) - len(shape)), *windows)
    elif call_of(node) in _TURNING:
        found = _turned(windows, list(zip(shape, strides, strict=True)), own, own_strides)
    else:
        cut = cut_of(flow, value)
        if cut is None or shape[cut[0]] != 1:
            return None
        dropped = drops_axis(node)
        found = tuple(w for axis, w in enumerate(windows) if not dropped or axis != cut[0])
    return tuple(window.run for window in found) if found is not None else None


def _uncut(flow: Dataflow, value: str, windows: Windows) -> Windows | None:
    """The operand of a part that is the same in every step."""
    cut = cut_of(flow, value)
    if cut is None:
        return None
    axis, start = cut
    if drops_axis(flow.nodes[node_of(value)[0]]):
        return (*windows[:axis], Window((), start), *windows[axis:])
    moved = Window(windows[axis].run, windows[axis].start + start)
    return (*windows[:axis], moved, *windows[axis + 1 :])


def _turned(
    windows: Windows, held: list[tuple[int, int]], shape: Sequence[int], strides: Sequence[int]
) -> Windows | None:
    """Windows in another order: dimensions are told by size and stride, so equal ones are alike."""
    left = list(zip(held, windows, strict=True))
    found = []
    for pair in zip(shape, strides, strict=True):
        match = next((item for item in left if item[0] == pair), None)
        if match is None:
            return None
        left.remove(match)
        found.append(match[1])
    return tuple(found)


def _reshaped(
    windows: Windows, shape: Sequence[int], wanted: Sequence[int], sizes: Mapping[int, int]
) -> Windows | None:
    """Windows of the same elements in another shape."""
    wide = [w for size, w in zip(shape, windows, strict=True) if size != 1]
    if [size for size in shape if size != 1] == [size for size in wanted if size != 1]:
        rest = iter(wide)
        return tuple(next(rest) if size != 1 else Window() for size in wanted)
    whole = all(
        window.start == 0 and math.prod(sizes[axis] for axis in window.run) == size
        for size, window in zip(shape, windows, strict=True)
    )
    runs = partition(wanted, [axis for w in windows for axis in w.run], sizes) if whole else None
    return windows_of(runs) if runs is not None else None


def partition(
    shape: Sequence[int], run: Sequence[int], sizes: Mapping[int, int]
) -> tuple[Run, ...] | None:
    """An ordered run of axes split over the dimensions of a shape; None where it does not fit."""
    left, found = list(run), []
    for dim in shape:
        took: list[int] = []
        while math.prod(sizes[axis] for axis in took) != dim:
            if not left or math.prod(sizes[axis] for axis in took) > dim:
                return None
            took.append(left.pop(0))
        found.append(tuple(took))
    return None if left else tuple(found)


def strides_along(
    windows: Windows, strides: Sequence[int], sizes: Mapping[int, int]
) -> tuple[dict[int, int], int]:
    """(stride along every axis that a value varies along, where it begins), in elements."""
    found: dict[int, int] = {}
    offset = 0
    for window, stride in zip(windows, strides, strict=True):
        offset += window.start * stride
        width = stride
        for axis in reversed(window.run):
            found[axis] = width
            width *= sizes[axis]
    return found, offset
