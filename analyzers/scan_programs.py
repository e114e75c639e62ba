"""From written-out loops to programs: a loop with what it feeds on and what it leaves, as one scan.

Physics: unrolled, every step of a recurrence is a kernel of its own that reads the state from
memory, writes it back and waits for its launch. As one kernel the state stays in registers. What is
computed for all steps before the loop and read by nothing else (decays, drives) is computed in the
step that needs it, so that it is never written; what the loop stacks is written where it belongs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.errors import IllegalFusionError
from advisor.model.base import Location
from advisor.model.graph import AXIS, Node, node_of
from advisor.model.optable import spec_of
from analyzers.dataflow import Dataflow
from analyzers.library_ops import call_of, is_product
from analyzers.reads import passes
from analyzers.recurrence import Recurrence, recurrences
from analyzers.row_plans import Program
from analyzers.scan_canonical import Axes, Output, canonical_scan
from analyzers.scan_first import with_first
from analyzers.scan_form import form_of
from analyzers.scan_growth import grown
from analyzers.scan_steps import Steps, reached, steps_of
from analyzers.scan_views import STEP, Run, is_view, numbers, strides_along, windows_of

# A tile of one step's columns is held in registers.
MOST_COLUMNS = 1024


@dataclass(frozen=True)
class FoundScan:
    """A loop of a graph: the program of its kernel, or why there is none."""

    loop: Recurrence
    program: Program | None
    why: str = ""


def scan_programs(flow: Dataflow) -> tuple[FoundScan, ...]:
    """Every written-out scan of a graph that is compiled."""
    found = []
    for loop in recurrences(flow, may_be_scanned, is_product):
        form = form_of(flow, loop)
        if form is None or form.network:
            continue
        found.append(_found(flow, loop))
    return tuple(found)


def _found(flow: Dataflow, loop: Recurrence) -> FoundScan:
    """The program of a loop, with the step that may have been folded away before its first one."""
    why = ""
    for whole in (with_first(flow, loop), loop):
        try:
            if whole is not None:
                return FoundScan(whole, program_of(flow, whole))
        except IllegalFusionError as error:
            why = error.what
    return FoundScan(loop, None, why)


def may_be_scanned(node: Node) -> bool:
    """An op of the table that may be in a step."""
    plain = spec_of(node.op).kind in ("pointwise", "reduction") and not node.mutates
    return plain and not node.has_side_effect


def program_of(flow: Dataflow, loop: Recurrence) -> Program:
    """The program that replaces a loop; `IllegalFusionError` says why there is none."""
    steps = steps_of(flow, loop)
    axes = _axes(steps)
    outputs, joined = _outputs(steps)
    members = {n for at in steps.columns for n in loop.columns[at].values()}
    whole = grown(steps, frozenset(members))
    members |= whole.absorbed.keys()
    nodes = members | joined
    between = flow.between(frozenset(nodes))
    if not all(passes(flow.nodes[name]) for name in between):
        raise IllegalFusionError("something outside the loop stands between its steps")
    where = _location(flow, members)
    return canonical_scan(steps, axes, whole, outputs, _ordered(flow, nodes), where)


def _ordered(flow: Dataflow, names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=flow.index.__getitem__))


def _location(flow: Dataflow, names: set[str]) -> Location:
    """The place in the program that most of the nodes come from."""
    counted: dict[Location, int] = {}
    for name in _ordered(flow, names):
        place = flow.nodes[name].location
        if place.module or place.file:
            counted[place] = counted.get(place, 0) + 1
    return max(counted, key=lambda place: counted[place], default=Location())


def _axes(steps: Steps) -> Axes:
    """The axes that reductions run over are the columns, all others are lanes."""
    reduced: set[Run] = set()
    for at in steps.columns:
        node = steps.node(at)
        if is_product(node):
            left, right = steps.operands[at, 0], steps.operands[at, 1]
            reduced.add(left[-1] if node.outputs[0].shape[-1] == 1 else right[-2])
        elif spec_of(node.op).kind == "reduction":
            given = steps.operands[at, 0]
            reduced.add(tuple(axis for dim in node.axes for axis in given[dim]))
    reduced.discard(())
    if len(reduced) > 1 or any(len(run) > 1 for run in reduced):
        raise IllegalFusionError("a step reduces several axes of its values")
    column = next(iter(reduced))[0] if reduced else None
    if column is not None and steps.sizes[column] > MOST_COLUMNS:
        raise IllegalFusionError(f"a step reduces more than {MOST_COLUMNS:,} elements of its state")
    lanes = tuple(axis for axis in steps.sizes if axis not in (STEP, column))
    return Axes(lanes, column, dict(steps.sizes))


# --- what a loop leaves ---------------------------------------------------------------------------


@dataclass
class _Uses:
    """Who reads a column outside the loop: `joins` by step, and the steps read otherwise."""

    joins: dict[str, dict[int, str]] = field(default_factory=dict)
    alone: set[int] = field(default_factory=set)


def _outputs(steps: Steps) -> tuple[list[Output], set[str]]:
    """What others read of the loop, and the nodes that put all steps together."""
    flow = steps.flow
    members = {n for at in steps.columns for n in steps.loop.columns[at].values()}
    found: list[Output] = []
    joined: set[str] = set()
    for at in steps.columns:
        uses = _uses_of(steps, at, members)
        for name, parts in uses.joins.items():
            found.append(_joined(steps, at, flow.nodes[name], parts))
            joined.add(name)
        if uses.alone:
            last = steps.first + steps.count - 1
            if uses.alone != {last} or at not in steps.loop.states:
                raise IllegalFusionError(
                    "what the steps make is read one by one outside the loop"
                    + (": gradients of its parts are added up" if _is_backward(flow) else "")
                )
            found.append(_last(steps, at, last))
    if not found:
        raise IllegalFusionError("nothing outside reads what the loop makes")
    if len({(item.column, item.last) for item in found}) < len(found):
        raise IllegalFusionError("what the steps make is put together twice")
    return sorted(found, key=lambda item: (flow.index[node_of(item.value)[0]], item.last)), joined


def _is_backward(flow: Dataflow) -> bool:
    return flow.graph.phase == "backward"


def _uses_of(steps: Steps, at: int, members: set[str]) -> _Uses:
    flow, found = steps.flow, _Uses()
    for k, name in steps.loop.columns[at].items():
        pending = [flow.nodes[name].value()]
        while pending:
            value = pending.pop()
            if value in flow.escapes_graph:
                found.alone.add(k)
            for use in flow.uses.get(value, ()):
                node = flow.nodes[use.consumer]
                if is_view(node):
                    pending += [node.value(n) for n in range(len(node.outputs))]
                elif node.id not in members and _joins(node):
                    read = flow.nodes[use.views[-1]].value() if use.views else value
                    found.joins.setdefault(node.id, {})[k] = read
                elif node.id not in members:
                    found.alone.add(k)
    # A value that is put together with others, and not of all steps, is read by itself.
    for name, parts in list(found.joins.items()):
        if len(parts) != steps.count or len(flow.nodes[name].value_args) != steps.count:
            found.alone |= parts.keys()
            del found.joins[name]
    return found


def _joins(node: Node) -> bool:
    return call_of(node) == "cat" and isinstance(node.attributes.get(AXIS), int)


def _joined(steps: Steps, at: int, node: Node, parts: dict[int, str]) -> Output:
    """All steps' values in one tensor, along an axis of theirs."""
    flow, axis = steps.flow, node.attributes[AXIS]
    order = [node.value_args.index(parts[k]) for k in steps.numbers]
    ascending = list(range(steps.count))
    if order not in (ascending, ascending[::-1]):
        raise IllegalFusionError("the results of the steps are stacked out of order")
    runs = {reached(flow, parts[k], steps.runs[at], steps.sizes) for k in steps.numbers}
    piece, whole = numbers(flow.need_meta(parts[steps.first])), numbers(node.outputs[0])
    run = runs.pop() if len(runs) == 1 else None
    if run is None or piece is None or whole is None or not isinstance(axis, int):
        raise IllegalFusionError("it is not clear along which axes the results are stacked")
    strides, _ = strides_along(windows_of(run), whole[1], steps.sizes)
    strides[STEP] = piece[0][axis] * whole[1][axis]
    return Output(at, node.value(), node.outputs[0].dtype, strides, reverse=order != ascending)


def _last(steps: Steps, at: int, last: int) -> Output:
    """A state after the last step."""
    node = steps.flow.nodes[steps.loop.columns[at][last]]
    layout = numbers(node.outputs[0])
    if layout is None:
        raise IllegalFusionError("its sizes are only known at run time")
    strides, _ = strides_along(windows_of(steps.runs[at]), layout[1], steps.sizes)
    return Output(at, node.value(), node.outputs[0].dtype, strides, last=True)
