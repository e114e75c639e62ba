"""An execution trace as exact graphs of what the captured graphs do not reach.

The compiler sees the model; the optimizer's step, a loss outside the model and code between graphs
it does not. Here they become graphs of their own, their dataflow taken from the memory that the ops
touched. A timeline of the same run, joined by record-function id, gives the kernels and the places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from advisor.model.base import Location, Warning_
from advisor.model.execution import ExecutedOp, ExecutionTrace
from advisor.model.graph import Graph
from advisor.model.optable import spec_of
from advisor.model.range_names import (
    CAPTURED_RANGE,
    CLOSURE_RANGE,
    COMPILED_REGION,
    GRADIENT_PREFIX,
    OPTIMIZER_STEP,
    STEP_PREFIX,
)
from advisor.model.trace import Trace
from analyzers.execution_builder import ExecutionBuilder, recorded
from analyzers.execution_join import JoinedOps, join_ops
from analyzers.inferred_ops import translate
from analyzers.library_ops import attributes_of, operands_of
from analyzers.pricing import PriceList, Unit, price_list

Part = Literal["optimizer", "rest"]
# Ranges that the recorder and PyTorch put around parts of a step.
CAPTURED = (CAPTURED_RANGE, COMPILED_REGION)
# What an optimizer that calls a closure runs inside its step.
OF_CLOSURES = (CAPTURED_RANGE, CLOSURE_RANGE)
_ACCUMULATE = "AccumulateGrad"
# Ops that make memory or read a number from it, and do no work of their own.
_NO_WORK = (
    "aten::empty", "aten::new_empty", "aten::resize_", "aten::set_", "aten::_local_scalar_dense",
    "aten::item", "aten::is_nonzero", "aten::result_type", "aten::lift_fresh",
    "aten::record_stream", "aten::detach_",
)  # fmt: skip
# One kernel over many tensors on a GPU, whatever this device made of it.
_WHOLE = ("aten::_foreach_", "aten::copy_")
_COMMUNICATION = ("c10d::", "nccl:", "record_param_comms", "_c10d_functional::")


@dataclass(frozen=True)
class ExecutedPart:
    """One part of a step as an exact graph with its measured prices."""

    part: Part
    graph: Graph
    prices: PriceList
    ops: int


def executed_parts(
    trace: ExecutionTrace,
    decomposed: frozenset[str],
    timeline: Trace | None = None,
    timed: Trace | None = None,
) -> tuple[tuple[ExecutedPart, ...], tuple[Warning_, ...]]:
    """The parts of the last step that no captured graph covers, and what could not be joined.

    `decomposed` are overloads (`aten::linear`) that run as other ops of the trace. `timeline` was
    recorded with the trace; `timed` holds the same step, recorded without the observer: kernels and
    their times are then those of its last step.
    """
    ops = _last_step(trace)
    work = list(_working(ops, decomposed))
    owned = _parts(ops, work)
    joined = join_ops(timeline, timed, {op.record_function_id for op in work})
    parts = tuple(_part(part, found, joined) for part, found in owned.items() if found)
    return parts, (*trace.warnings, *_warnings(owned, joined))


def _last_step(trace: ExecutionTrace) -> list[ExecutedOp]:
    """The ops inside the last step range; all, where there is none."""
    steps = [op.id for op in trace.ops if op.name.startswith(STEP_PREFIX)]
    if not steps:
        return list(trace.ops)
    inside = {steps[-1]}
    found = []
    for op in trace.ops:
        if op.parent in inside or op.id in inside:
            inside.add(op.id)
            found.append(op)
        elif op.id > steps[-1] and op.name.startswith(GRADIENT_PREFIX):
            # On a GPU gradients run on a thread of their own, beside the range of the step.
            inside.add(op.id)
            found.append(op)
    return found


# --- which ops do the work, and whose they are ----------------------------------------------------


def _working(ops: Sequence[ExecutedOp], decomposed: frozenset[str]) -> Iterator[ExecutedOp]:
    """The outermost ops that do work themselves, in the order in which they began."""
    children: dict[int, list[ExecutedOp]] = {}
    known = {op.id for op in ops}
    for op in ops:
        children.setdefault(op.parent, []).append(op)
    roots = [op for op in ops if op.parent not in known or op.parent == op.id]
    for root in roots:
        yield from _work_of(root, children, decomposed)


def _work_of(
    op: ExecutedOp, children: Mapping[int, list[ExecutedOp]], decomposed: frozenset[str]
) -> list[ExecutedOp]:
    if op.name.startswith(_NO_WORK):
        return []
    is_op = bool(op.schema or op.generated)
    if is_op and not op.is_view and (op.overload not in decomposed or op.name.startswith(_WHOLE)):
        return [op]
    inner = [
        found
        for child in children.get(op.id, ())
        if child is not op
        for found in _work_of(child, children, decomposed)
    ]
    if inner or not is_op or op.is_view:
        return inner
    given = {tensor.memory for tensor in op.tensors()}
    made = [tensor for tensor in op.outputs if tensor.memory not in given]
    return [op] if made or op.writes else []


def _parts(ops: Sequence[ExecutedOp], work: Sequence[ExecutedOp]) -> dict[Part, list[ExecutedOp]]:
    """The working ops of the optimizer, and those that neither it nor a captured graph holds."""
    by_id = {op.id: op for op in ops}
    gradients = _captured_gradients(ops, by_id)
    found: dict[Part, list[ExecutedOp]] = {"optimizer": [], "rest": []}
    for op in work:
        if _is_update(op, by_id, gradients):
            found["optimizer"].append(op)
        elif not _is_captured(op, by_id, gradients):
            found["rest"].append(op)
    return found


def _is_update(op: ExecutedOp, by_id: Mapping[int, ExecutedOp], gradients: set[int]) -> bool:
    """Whether an optimizer's step does it by itself: not the loss that it calls, nor gradients."""
    for around in _around(op, by_id):
        if around.name.startswith(OPTIMIZER_STEP):
            return True
        if around.id in gradients or around.name.startswith((*OF_CLOSURES, GRADIENT_PREFIX)):
            return False
    return False


def _captured_gradients(ops: Sequence[ExecutedOp], by_id: Mapping[int, ExecutedOp]) -> set[int]:
    """The gradient ranges whose forward op ran inside a captured range.

    Every op notes the number that the next function of autograd will get: the last op with a number
    is the one that made the function.
    """
    maker: dict[int, ExecutedOp] = {}
    ranges: dict[int, int] = {}
    for op in ops:
        if op.sequence < 0:
            continue
        around = by_id.get(op.parent)
        if around is not None and around.name.startswith(GRADIENT_PREFIX):
            ranges[around.id] = op.sequence
        elif not _within(op, by_id, GRADIENT_PREFIX):
            maker[op.sequence] = op
    return {
        at
        for at, number in ranges.items()
        if number in maker and _within(maker[number], by_id, CAPTURED)
    }


def _is_captured(op: ExecutedOp, by_id: Mapping[int, ExecutedOp], gradients: set[int]) -> bool:
    """Inside a captured range, the gradient of an op that is, or a sum of gradients."""
    return any(
        around.id in gradients or around.name.startswith(CAPTURED) or _ACCUMULATE in around.name
        for around in _around(op, by_id)
    )


def _within(op: ExecutedOp, by_id: Mapping[int, ExecutedOp], prefix: str | tuple[str, ...]) -> bool:
    return any(around.name.startswith(prefix) for around in _around(op, by_id))


def _around(op: ExecutedOp, by_id: Mapping[int, ExecutedOp]) -> Iterator[ExecutedOp]:
    """The op and everything around it, from the inside."""
    seen: ExecutedOp | None = op
    while seen is not None:
        yield seen
        seen = by_id.get(seen.parent) if seen.parent != seen.id else None


# --- from ops to a graph --------------------------------------------------------------------------


def _warnings(owned: Mapping[Part, Sequence[ExecutedOp]], joined: JoinedOps) -> Iterator[Warning_]:
    if not joined.recorded:
        return
    ops = [op for found in owned.values() for op in found]
    lost = sum(op.record_function_id not in joined.known for op in ops)
    if lost:
        note = (
            f"of {len(ops)} ops outside the captured graphs some were not found in the timed "
            "trace: these have no measured time"
        )
        yield Warning_(code="execution-unjoined", message=note, count=lost)


def _part(part: Part, ops: Iterable[ExecutedOp], joined: JoinedOps) -> ExecutedPart:
    builder = ExecutionBuilder()
    units, count = [], 0
    for op in ops:
        count += 1
        mark = len(builder.nodes)
        _emit(builder, op, joined.places.get(op.record_function_id, Location()))
        own = [node.id for node in builder.nodes[mark:] if node.origin is not None]
        own = [n for n in own if spec_of(builder.nodes[int(n[1:])].op).kind != "view"]
        rows = joined.kernels.get(op.record_function_id, [])
        if rows and own:
            total = int(joined.durations[rows].sum())
            known = tuple(rows) if joined.timed else ()
            units.append(Unit(op.name, frozenset(own), total, len(rows), known))
    graph = Graph(
        id=f"executed-{part}",
        source="execution_trace",
        level="dynamo",
        phase="inference",
        nodes=tuple(builder.nodes),
        inputs=tuple(builder.inputs),
        outputs=builder.outputs(),
    )
    graph.check()
    return ExecutedPart(part, graph, price_list(units), count)


def _emit(builder: ExecutionBuilder, op: ExecutedOp, location: Location) -> None:
    """One op as nodes: of the table where its meaning and its result are known, else opaque."""
    source = recorded(op, location)
    builder.begin(source, f"op{op.id}")
    mark = len(builder.nodes)
    written = op.written()
    results = written or op.outputs
    if len(results) == 1:
        value = translate(builder, source)
        if value is not None and builder.settle(value, results[0]):
            if written:
                builder.mutate(value, results[0])
            else:
                builder.define(value, results[0])
            builder.end(library_call=False)
            return
        builder.rollback(mark)
    communicates = op.name.startswith(_COMMUNICATION)
    if op.generated:
        # A compiler's kernel does not say which of its arguments it writes: perhaps all.
        op = replace(op, writes=tuple(range(len(op.inputs))))
    builder.call(op, operands_of(source), attributes_of(source), side_effect=communicates)
    builder.end(library_call=communicates)
