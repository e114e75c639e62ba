"""What a scan feeds on, taken into its steps: pointwise ops before the loop that only it reads.

An op before the loop computes all steps at once and writes them; in the step it computes the part
that the step needs, and nothing is written. It is taken along where the scan alone reads it and
where it is not computed for many lanes that would be the same.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.model.graph import Node, is_value, node_of
from advisor.model.optable import FLOAT_DTYPES, spec_of
from analyzers.dataflow import Dataflow
from analyzers.scan_steps import Steps, initial_runs, initial_value
from analyzers.scan_views import (
    STEP,
    Window,
    Windows,
    above,
    cut_of,
    drops_axis,
    is_view,
    windows_of,
)

MOST_OPS = 64
# The same value computed for more lanes than this is read instead, if it takes more than a cast.
MOST_AGAIN = 8
_CHEAP_FLOPS = 1

Seen = tuple[str, Windows]


@dataclass
class Grown:
    """Ops taken into the steps with the axes of their results, and how operands reach them.

    `reached` leads from an operand, a value with the axes of its dimensions, to the value behind
    its views, with the axes of that; `operands` are those of the loop's own ops.
    """

    absorbed: dict[str, Windows] = field(default_factory=dict)
    reached: dict[Seen, Seen] = field(default_factory=dict)
    operands: dict[tuple[int, int], Seen] = field(default_factory=dict)


def grown(steps: Steps, members: frozenset[str]) -> Grown:
    """All ops before the loop that its steps take along, beginning with what the loop reads."""
    found = Grown()
    wanted: dict[str, set[Windows]] = {}
    for place in steps.bound:
        seen = _from_steps(steps, place)
        if seen is not None:
            found.operands[place] = seen
            wanted.setdefault(node_of(seen[0])[0], set()).add(seen[1])
    for initial in steps.initial.values():
        if not isinstance(initial, float):
            start = (initial_value(steps, initial), windows_of(initial_runs(steps, initial)))
            wanted.setdefault(node_of(_up(steps, found, start)[0])[0], set()).add(())
    _take(steps, members, found, wanted)
    return found


def _take(
    steps: Steps, members: frozenset[str], found: Grown, wanted: dict[str, set[Windows]]
) -> None:
    """Take ops, the last of the graph first: whoever reads an op is looked at before it."""
    flow = steps.flow
    heap = [-flow.index[name] for name in wanted if name in flow.index]
    heapq.heapify(heap)
    names = {bit: name for name, bit in flow.index.items()}
    done: set[str] = set()
    while heap and len(found.absorbed) < MOST_OPS:
        name = names[-heapq.heappop(heap)]
        if name in done:
            continue
        done.add(name)
        node, windows = flow.nodes[name], wanted[name]
        inside = members | found.absorbed.keys()
        if len(windows) > 1 or not _may_take(steps, node, next(iter(windows)), inside):
            continue
        own = found.absorbed[name] = next(iter(windows))
        for arg in node.value_args:
            behind, at = _up(steps, found, _operand(flow, arg, node, own))
            producer = node_of(behind)[0]
            wanted.setdefault(producer, set()).add(at)
            if producer in flow.index:
                heapq.heappush(heap, -flow.index[producer])


def _operand(flow: Dataflow, arg: str, node: Node, windows: Windows) -> Seen:
    """An operand of a pointwise op, broadcast to its result."""
    shape = flow.need_meta(arg).shape
    rest = windows[len(node.outputs[0].shape) - len(shape) :]
    return arg, tuple(w if size != 1 else Window() for size, w in zip(shape, rest, strict=True))


def operand_of(flow: Dataflow, found: Grown, arg: str, node: Node) -> Seen:
    """What an operand of a taken op is read from."""
    return found.reached[_operand(flow, arg, node, found.absorbed[node.id])]


def _up(steps: Steps, found: Grown, seen: Seen) -> Seen:
    """Through views, as far as it is known how they lie; remembered."""
    value, windows = seen
    while (higher := above(steps.flow, value, windows, steps.sizes)) is not None:
        value, windows = higher
    found.reached[seen] = value, windows
    return value, windows


def _may_take(
    steps: Steps, node: Node, windows: Windows, inside: frozenset[str] | set[str]
) -> bool:
    flow = steps.flow
    if spec_of(node.op).kind != "pointwise" or node.mutates or node.has_side_effect:
        return False
    meta = node.outputs[0]
    if not windows or meta.dtype == "float64" or not node.value_args:
        return False
    if any(flow.need_meta(arg).dtype not in (*FLOAT_DTYPES, "bool") for arg in node.value_args):
        return False
    if _readers(flow, node.value()) - inside or node.value() in flow.escapes_graph:
        return False
    along = {axis for window in windows for axis in window.run}
    again = math.prod(
        size for axis, size in steps.sizes.items() if axis not in along and axis != STEP
    )
    spec = spec_of(node.op)
    cheap = not spec.special and spec.flops <= _CHEAP_FLOPS
    return cheap or STEP not in along or again <= MOST_AGAIN * _widest(steps)


def _widest(steps: Steps) -> int:
    """The elements of a lane: what is the same for all of them is computed once a lane."""
    return max((size for axis, size in steps.sizes.items() if axis != STEP), default=1)


def _readers(flow: Dataflow, value: str) -> set[str]:
    """The computing nodes that read a value, through views of any kind."""
    pending, found = [value], set[str]()
    while pending:
        for use in flow.uses.get(pending.pop(), ()):
            node = flow.nodes[use.consumer]
            if is_view(node):
                values = [node.value(n) for n in range(len(node.outputs))]
                pending += values
                if any(v in flow.escapes_graph for v in values):
                    found.add(node.id)
            else:
                found.add(node.id)
    return found


# --- from the parts that steps read to the tensors of all steps -----------------------------------


def _from_steps(steps: Steps, place: tuple[int, int]) -> Seen | None:
    """The value of all steps behind an operand: its views are walked in all steps at once."""
    at, position = place
    column, flow = steps.loop.columns[at], steps.flow
    values: Mapping[int, str] = {
        k: str(flow.nodes[column[k]].args[position]) for k in steps.numbers if k in column
    }
    windows: Windows = windows_of(steps.operands[place])
    while True:
        sample = values[max(values)]
        if len(set(values.values())) == 1:
            return _to_top(steps, sample, windows)
        nodes = [flow.nodes[node_of(value)[0]] for value in values.values()]
        if not all(is_view(node) for node in nodes) or len({node.op for node in nodes}) > 1:
            return None
        cuts = {k: cut_of(flow, value) for k, value in values.items()}
        if len(set(cuts.values())) > 1:
            moved = _moving(steps, cuts, sample, windows)
            if moved is None:
                return None
            windows = moved
        else:
            higher = above(flow, sample, windows, steps.sizes)
            if higher is None:
                return None
            windows = higher[1]
        values = {k: flow.nodes[node_of(value)[0]].value_args[0] for k, value in values.items()}


def _to_top(steps: Steps, value: str, windows: Windows) -> Seen:
    while (higher := above(steps.flow, value, windows, steps.sizes)) is not None:
        value, windows = higher
    return value, windows


def _moving(
    steps: Steps,
    cuts: Mapping[int, tuple[int, int] | None],
    sample: str,
    windows: Windows,
) -> Windows | None:
    """The operand of a part that moves on with every step: there, the axis of the steps begins."""
    flow = steps.flow
    known = {k: cut for k, cut in cuts.items() if cut is not None}
    axes = {axis for axis, _ in known.values()}
    if len(known) < len(cuts) or len(axes) != 1 or max(known) == min(known):
        return None
    (axis,) = axes
    size = flow.need_meta(sample).shape[axis] if not _drops(flow, sample) else 1
    first, last = known[min(known)][1], known[max(known)][1]
    if not isinstance(size, int) or abs(last - first) != size * (max(known) - min(known)):
        return None
    missing = min(known) - steps.first  # a first step that was folded away begins before
    start = first - missing * size if last > first else last
    if _drops(flow, sample):
        return (*windows[:axis], Window((STEP,), start), *windows[axis:])
    held = windows[axis]
    if held.start:
        return None
    return (*windows[:axis], Window((STEP, *held.run), start), *windows[axis + 1 :])


def _drops(flow: Dataflow, value: str) -> bool:
    return drops_axis(flow.nodes[node_of(value)[0]])


def is_literal(arg: object) -> bool:
    """Whether an argument is a number."""
    return not (isinstance(arg, str) and is_value(arg))
