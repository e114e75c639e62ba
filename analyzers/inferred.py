"""A bare trace as a `Graph`: one step's ops in launch order, their dataflow guessed and marked so.

Nodes are the ops that launched kernels, in the words of the op table where ATen's meaning is known,
else opaque. Who reads whom is inferred from shapes, dtypes and strides (`inferred_values`); every
kind of guess is counted in the result. Kernels of graph replays and compiled regions, and kernels
whose op recorded no shapes, are opaque nodes without operands: nothing is guessed about them.
Kernels launched before the window belong to no step and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.model.base import Location, Warning_
from advisor.model.graph import Graph, Node
from advisor.model.range_names import COMPILED_FUNCTION, COMPILED_REGION
from advisor.model.trace import Trace
from analyzers.activities import NONE, activities, step_of
from analyzers.inferred_builder import InferredBuilder
from analyzers.inferred_ops import translate, writes_elsewhere
from analyzers.kernel_roles import classify
from analyzers.library_ops import (
    attributes_of,
    is_library_call,
    left_operand,
    operands_of,
    output_of,
)
from analyzers.pricing import PriceList, Unit, price_list
from analyzers.recorded_ops import Operand, RecordedOp, recorded_op

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

ACCUMULATE = "torch::autograd::AccumulateGrad"
REDUCER = "torch::distributed::reducer::"
COMPILED = (COMPILED_REGION, COMPILED_FUNCTION, "triton_")
# A step longer than this is analysed in its first part only: graphs are searched in Python.
MOST_KERNELS = 20_000
# What was guessed or left out, by the code of its warning.
GUESSES = {
    "inferred-binding": "operands that fit several earlier values; the rules chose one",
    "inferred-origin": (
        "operands that fit no earlier value, or one read before the last library call; taken as "
        "inputs of the step"
    ),
    "inferred-view": "views recovered from equal numbers of elements",
    "inferred-shape": "outputs of unknown ops taken to have their first operand's shape",
    "inferred-opaque": (
        "launches of which no operands are known (replays, compiled regions, no shapes recorded)"
    ),
    "inferred-cut": f"kernels beyond the first {MOST_KERNELS} of the step left out of the graph",
}


@dataclass(frozen=True)
class InferredGraph:
    """The graph of one step, its measured prices, and what had to be guessed.

    `host_ns[node]` is the host time of the source op that the node belongs to, at the first node of
    each op; `kernels[node]` the rows of `trace.kernels` of the op, likewise. `step` is the row of
    the step in `trace.steps()`, None if the whole trace was taken.
    """

    graph: Graph
    prices: PriceList
    host_ns: dict[str, int]
    kernels: dict[str, tuple[int, ...]]
    step: int | None
    warnings: tuple[Warning_, ...]


@dataclass(frozen=True)
class _Source:
    """One op that launched kernels (`op` is None where no op is known), or one kernel by itself."""

    op: int | None
    kernels: tuple[int, ...]
    accumulates: bool = False
    reduces: bool = False


def infer_graph(trace: Trace, steps: pd.DataFrame) -> InferredGraph:
    """The graph of the last step that launched kernels; without steps, of the whole trace."""
    rows, step = _window(trace, steps)
    cut = max(len(rows) - MOST_KERNELS, 0)
    rows = rows[:MOST_KERNELS]
    sources = _sources(trace, rows)
    builder = InferredBuilder()
    units: list[Unit] = []
    host: dict[str, int] = {}
    owned: dict[str, tuple[int, ...]] = {}
    hosts = _host_times(trace, sources)
    times = trace.kernels["duration_ns"].to_numpy()
    untold = 0
    for source, recorded in zip(sources, _recorded(trace, sources), strict=True):
        mark = len(builder.nodes)
        untold += recorded is None
        _translate(builder, trace, source, recorded)
        own = [n for n in builder.nodes[mark:] if n.origin is not None and n.alias_of is None]
        name = recorded.name if recorded else _kernel_name(trace, source)
        total = int(times[list(source.kernels)].sum())
        nodes = frozenset(n.id for n in own)
        units.append(Unit(name, nodes, total, len(source.kernels), source.kernels))
        owned[own[0].id] = source.kernels
        if source.op is not None:
            host[own[0].id] = hosts.get(source.op, 0)
    graph = Graph(
        id="step",
        source="inferred",
        level="dynamo",
        phase="inference",
        nodes=tuple(builder.nodes),
        inputs=tuple(builder.inputs),
        outputs=(*builder.stored, *builder.pool.unread()),
    )
    graph.check()
    return InferredGraph(
        graph, price_list(units), host, owned, step, _warnings(builder, untold, cut)
    )


def _warnings(builder: InferredBuilder, untold: int, cut: int) -> tuple[Warning_, ...]:
    pool = builder.pool
    counts = {
        "inferred-binding": pool.ambiguous,
        "inferred-origin": pool.unknown,
        "inferred-view": builder.views,
        "inferred-shape": builder.guessed_outputs,
        "inferred-opaque": untold,
        "inferred-cut": cut,
    }
    return tuple(
        Warning_(code=code, message=GUESSES[code], count=count)
        for code, count in counts.items()
        if count
    )


# --- which kernels, by which op -------------------------------------------------------------------


def _window(trace: Trace, steps: pd.DataFrame) -> tuple[NDArray[Any], int | None]:
    """(rows of the kernels to look at, the step they belong to)."""
    every = np.arange(len(trace.kernels))
    if not len(steps):
        return every, None
    owner = step_of(activities(trace), steps)[: len(trace.kernels)]
    known = owner[owner != NONE]
    if not len(known):
        return every, None
    last = int(known.max())
    return np.flatnonzero(owner == last), last


def _sources(trace: Trace, rows: NDArray[Any]) -> list[_Source]:
    """The launching ops by first launch; a kernel in a launching op's child is the op's."""
    kernels = trace.kernels
    ops = kernels["op"].to_numpy(dtype=np.int64, na_value=NONE)[rows]
    launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=NONE)[rows]
    begun = trace.launches["start_ns"].to_numpy()
    start = kernels["start_ns"].to_numpy()[rows]
    moment = np.where(launch == NONE, start, begun[launch] if len(begun) else start)
    kind = trace.launches["kind"].astype(str).to_numpy()
    parents = trace.ops["parent"].to_numpy(dtype=np.int64, na_value=NONE)
    launching = set(ops[ops != NONE].tolist())
    inside = _compiled_ops(trace, launching, parents)
    grouped: dict[tuple[str, int], list[int]] = {}
    for index in np.lexsort((start, moment)).tolist():
        op, call = int(ops[index]), int(launch[index])
        replayed = call != NONE and kind[call] == "graph"
        if op == NONE or replayed or op in inside:
            key = ("kernel", index)
        else:
            key = ("op", _owner(op, parents, launching))
        grouped.setdefault(key, []).append(int(rows[index]))
    adding, reducing = _called_by(trace, ACCUMULATE), _called_by(trace, REDUCER)
    return [
        _Source(at, tuple(found), at in adding, at in reducing)
        if what == "op"
        else _Source(None, tuple(found))
        for (what, at), found in grouped.items()
    ]


def _owner(op: int, parents: NDArray[Any], launching: set[int]) -> int:
    """The outermost op around this one that launches kernels itself."""
    owner, parent = op, int(parents[op])
    while parent != NONE:
        if parent in launching:
            owner = parent
        parent = int(parents[parent])
    return owner


def _compiled_ops(trace: Trace, launching: set[int], parents: NDArray[Any]) -> set[int]:
    """Launching ops that a compiler made or that run inside a compiled region."""
    names = trace.ops["name"].cat
    marked = np.array([*(str(n).startswith(COMPILED) for n in names.categories), False])
    compiled = marked[names.codes.to_numpy()]
    found = set()
    for op in launching:
        at = op
        while at != NONE and not compiled[at]:
            at = int(parents[at])
        if at != NONE:
            found.add(op)
    return found


def _host_times(trace: Trace, sources: list[_Source]) -> dict[int, int]:
    """Host time of each op: of the outermost op around it that contains no other launching op."""
    parents = trace.ops["parent"].to_numpy(dtype=np.int64, na_value=NONE)
    durations = trace.ops["duration_ns"].to_numpy()
    owners = [source.op for source in sources if source.op is not None]
    below: dict[int, int] = {}
    for op in owners:
        at: int = op
        while at != NONE:
            below[at] = below.get(at, 0) + 1
            at = int(parents[at])
    found = {}
    for op in owners:
        at = op
        while (parent := int(parents[at])) != NONE and below[parent] == 1:
            at = parent
        found[op] = int(durations[at])
    return found


# --- from recorded op to nodes --------------------------------------------------------------------


def _recorded(trace: Trace, sources: list[_Source]) -> Iterator[RecordedOp | None]:
    rows = [source.op for source in sources if source.op is not None]
    columns = (
        "name",
        "input_shapes",
        "input_dtypes",
        "input_strides",
        "input_values",
        "module",
        "source",
    )
    table = trace.ops.loc[rows, list(columns)].astype(object)
    held = iter(table.itertuples(index=False, name=None))
    for source in sources:
        if source.op is None:
            yield None
            continue
        name, shapes, dtypes, strides, values, module, place = next(held)
        yield recorded_op(str(name), shapes, dtypes, strides, values, _location(module, place))


def _location(module: object, place: object) -> Location:
    file, _, line = place.rpartition(":") if isinstance(place, str) else ("", "", "")
    return Location(
        module=module if isinstance(module, str) else None,
        file=file or None,
        line=int(line) if line.isdecimal() else None,
    )


def _translate(
    builder: InferredBuilder, trace: Trace, source: _Source, recorded: RecordedOp | None
) -> None:
    name = _kernel_name(trace, source)
    if recorded is None:
        known = "" if source.op is None else str(trace.ops["name"].iat[source.op])
        target = known.replace("::", ".") or "kernel"
        node = Node(
            id=f"n{len(builder.nodes)}", op="opaque", target=target, label=name, origin=target
        )
        builder.nodes.append(node)
        builder.end(library_call=True)
        return
    builder.begin(recorded, f"op{source.op}", accumulates=source.accumulates)
    # What autograd and DDP do to a parameter's gradient is no op of the program: a compiler that
    # is given the module or its loss leaves it where it is.
    outside = source.accumulates or source.reduces
    value = None if outside else translate(builder, recorded)
    if value is None:
        meta, certain = output_of(recorded)
        builder.guessed_outputs += not certain
        left = left_operand(recorded)
        value = builder.opaque(meta, _read(source, recorded), attributes_of(recorded), left)
        if outside:
            builder.store(value)
        elif meta is not None:
            builder.publish(value)
    elif writes_elsewhere(recorded):
        builder.store(value)
    else:
        builder.publish(value)
    communicates = classify(name).role == "communication"
    builder.end(
        library_call=communicates or is_library_call(recorded.name),
        product=left_operand(recorded) is not None,
    )


def _read(source: _Source, op: RecordedOp) -> tuple[Operand, ...]:
    """The tensors an opaque op reads; the buffer of a gradient, which no op made, left out."""
    if source.accumulates:
        return op.tensors[1:2]
    return op.tensors[:1] if source.reduces else operands_of(op)


def _called_by(trace: Trace, prefix: str) -> frozenset[int]:
    """Ops called directly by one whose name begins so: by autograd, say, to add to gradients."""
    names = trace.ops["name"].cat
    called = np.array([*(str(n).startswith(prefix) for n in names.categories), False])
    parents = trace.ops["parent"].to_numpy(dtype=np.int64, na_value=NONE)
    inside = (parents != NONE) & called[names.codes.to_numpy()][parents]
    return frozenset(np.flatnonzero(inside).tolist())


def _kernel_name(trace: Trace, source: _Source) -> str:
    return str(trace.kernels["name"].iat[source.kernels[0]])
