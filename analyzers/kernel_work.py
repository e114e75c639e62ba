"""What kernels compute: floating-point operations and least bytes, of kernels where both are known.

Matrix products, convolutions and attention are counted by the shapes of their operands, as the
operation and not as the algorithm that a library chose; the other ops by the op table, for every
element of their widest operand. Bytes are operands read once and results written once. Where a
kernel runs several ops, all must be known; where an op runs several kernels, a product is done by
the longest, and of other ops none is known. Nothing is guessed: such a kernel has no work here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from msgspec.structs import replace

from advisor.errors import IllegalFusionError
from advisor.model.base import Location
from advisor.model.graph import TensorMeta, node_of
from advisor.model.optable import FLOAT_DTYPES, item_bytes, spec_of
from advisor.model.report import KernelRow, KernelWork
from advisor.model.sizes import product
from advisor.model.trace import Trace
from analyzers.activities import NONE, activities, step_of
from analyzers.dataflow import Dataflow
from analyzers.matrix_work import MATRIX_OPS, OpWork, matrix_work
from analyzers.pricing import PriceList
from analyzers.recorded_ops import recorded_op
from analyzers.subject import GraphFacts

_COUNTED = ("pointwise", "reduction")
_RECORDED = ("name", "input_shapes", "input_dtypes", "input_strides", "input_values")


def with_work(
    rows: Iterable[KernelRow],
    trace: Trace,
    steps: pd.DataFrame,
    graphs: Sequence[GraphFacts],
) -> tuple[KernelRow, ...]:
    """The rows with what their kernels compute per step, by the executions of the last step.

    A row has work only if every execution has, and the step has as many as the others.
    """
    last = _last_step(trace, steps)
    works = _products(trace, last) | _units(graphs)
    names = last["name"]
    executions = {str(name): int(count) for name, count in names.value_counts().items()}
    found: dict[str, list[OpWork]] = defaultdict(list)
    for row in names.index.intersection(list(works)):
        found[str(names[row])].append(works[row])
    return tuple(
        replace(row, work=_sum(found[row.name]))
        if row.count == len(found[row.name]) == executions.get(row.name)
        else row
        for row in rows
    )


def _last_step(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
    """The kernels of the last step; without steps, all."""
    kernels = trace.kernels
    if not len(steps):
        return kernels
    owner = step_of(activities(trace), steps)[: len(kernels)]
    inside = owner[owner != NONE]
    last: pd.DataFrame = kernels[owner == (np.max(inside) if len(inside) else NONE - 1)]
    return last


def _sum(works: Sequence[OpWork]) -> KernelWork | None:
    """Of all executions of a kernel; None where they are of several kinds."""
    if len({(work.arithmetic, work.matrix) for work in works}) != 1:
        return None
    return KernelWork(
        flops=sum(work.flops for work in works),
        bytes=sum(work.bytes for work in works),
        arithmetic=works[0].arithmetic,
        matrix=works[0].matrix,
    )


def _products(trace: Trace, last: pd.DataFrame) -> dict[int, OpWork]:
    """The work of products by the row of the kernel that does it: the longest that the op ran."""
    ops = trace.ops[trace.ops["name"].isin(MATRIX_OPS)]
    launched = last[last["op"].isin(ops.index)]
    longest = launched.sort_values("duration_ns").drop_duplicates("op", keep="last")
    columns = ops.loc[longest["op"].astype(int), list(_RECORDED)].astype(object)
    texts = columns.itertuples(index=False, name=None)
    # A model calls few products, each many times.
    known: dict[tuple[object, ...], OpWork | None] = {}
    found: dict[int, OpWork] = {}
    for kernel, text in zip(longest.index.tolist(), texts, strict=True):
        if text not in known:
            name, shapes, dtypes, strides, values = text
            recorded = recorded_op(str(name), shapes, dtypes, strides, values, Location())
            known[text] = matrix_work(recorded) if recorded is not None else None
        work = known[text]
        if work is not None:
            found[kernel] = work
    return found


def _units(graphs: Sequence[GraphFacts]) -> dict[int, OpWork]:
    """The work of units that are one kernel, by its row."""
    found: dict[int, OpWork] = {}
    for facts in graphs:
        for unit in facts.prices.units:
            single = [rows[0] for rows in (unit.kernels, *unit.again) if len(rows) == 1]
            if not single:
                continue
            work = group_work(facts.flow, _whole(facts.flow, facts.prices, unit.nodes))
            if work is not None:
                found = {**dict.fromkeys(single, work), **found}
    return found


def _whole(flow: Dataflow, prices: PriceList, nodes: frozenset[str]) -> frozenset[str]:
    """The nodes with those that a generated kernel computes besides: no kernel is said to."""
    if not prices.fused:
        return nodes
    found, pending = set(nodes), list(nodes)
    while pending:
        for value in flow.nodes[pending.pop()].value_args:
            producer = flow.nodes[node_of(flow.base(value))[0]]
            inlined = spec_of(producer.op).kind in _COUNTED and producer.id not in prices.by_node
            if inlined and producer.id not in found:
                found.add(producer.id)
                pending.append(producer.id)
    return frozenset(found)


def group_work(flow: Dataflow, nodes: frozenset[str]) -> OpWork | None:
    """The work of one kernel for all of `nodes`; None if an op or a size of them is unknown."""
    members = frozenset(name for name in nodes if spec_of(flow.nodes[name].op).kind != "view")
    if not members or any(spec_of(flow.nodes[n].op).kind not in _COUNTED for n in members):
        return None
    if not all(_is_float(flow, name) for name in members):
        return None
    try:
        flops = sum(spec_of(flow.nodes[n].op).flops * _widest(flow, n) for n in members)
        moved = _read_bytes(flow, members) + _written_bytes(flow, members)
    except IllegalFusionError:
        return None
    return OpWork(flops, moved, "float32", matrix=False) if moved else None


def _is_float(flow: Dataflow, name: str) -> bool:
    """Whether an op works on floats that the float32 pipe computes with; a mask beside them may."""
    node = flow.nodes[name]
    metas = [flow.meta(value) for value in (node.value(), *node.value_args)]
    types = {meta.dtype for meta in metas if meta is not None}
    return bool(types & set(FLOAT_DTYPES)) and "float64" not in types


def _widest(flow: Dataflow, name: str) -> int:
    node = flow.nodes[name]
    return max(_elements(flow, flow.need_meta(v)) for v in (node.value(), *node.value_args))


def _read_bytes(flow: Dataflow, members: frozenset[str]) -> int:
    """Every value from outside once, as far as it is read."""
    sizes: dict[str, int] = {}
    for name in members:
        for value in flow.nodes[name].value_args:
            base = flow.base(value)
            if node_of(base)[0] not in members:
                meta = flow.need_meta(value)
                sizes[base] = max(
                    sizes.get(base, 0), _distinct(flow, meta) * item_bytes(meta.dtype)
                )
    return sum(sizes.values())


def _written_bytes(flow: Dataflow, members: frozenset[str]) -> int:
    """Every result that something outside reads, or that leaves the graph."""
    total = 0
    for name in members:
        node = flow.nodes[name]
        outside = any(use.consumer not in members for use in flow.uses.get(node.value(), ()))
        if outside or node.mutates or node.value() in flow.escapes_graph:
            meta = flow.need_meta(node.value())
            total += _elements(flow, meta) * item_bytes(meta.dtype)
    return total


def _elements(flow: Dataflow, meta: TensorMeta) -> int:
    return flow.hint(product(meta.shape))


def _distinct(flow: Dataflow, meta: TensorMeta) -> int:
    """Elements that differ: axes repeated without a copy (stride 0) count once."""
    pairs = zip(meta.shape, meta.strides, strict=True)
    return flow.hint(product(tuple(size for size, stride in pairs if stride != 0)))
