"""The work of one eager op of a graph: what PyTorch's own kernel for it moves and computes."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from advisor.hardware.gpu import Gpu
from advisor.model.graph import TensorMeta, node_of
from advisor.model.optable import item_bytes, spec_of
from advisor.model.sizes import Dim, product
from analyzers.access import walk
from analyzers.batch_norm_work import BatchNorm, batch_norm_work
from analyzers.cost_model import Work
from analyzers.dataflow import Dataflow
from analyzers.eager_work import FITTED, NORM_THREADS, REGISTER_ROW, converts, index_instructions
from analyzers.recorded_ops import Operand

# ATen `Reduce.cuh`, `vt0`: elements of a column that a thread loads at a time.
COLUMN_UNROLL = 4
# What the labels of all forms of it have, forward and backward.
BATCH_NORM, BACKWARD = "batch_norm", "backward"


def source_op_work(flow: Dataflow, nodes: set[str], bytes_moved: int, gpu: Gpu) -> tuple[Work, ...]:
    """The work of each kernel of a source op that was decomposed into `nodes` and moves so many
    bytes. All ops but batch norms are one kernel.
    """
    work = Work(
        bytes_moved=bytes_moved,
        flops=sum(spec_of(flow.nodes[name].op).flops * widest(flow, name) for name in nodes),
        special=sum(spec_of(flow.nodes[name].op).special * widest(flow, name) for name in nodes),
        pattern="vector",
    )
    kinds = {spec_of(flow.nodes[name].op).kind for name in nodes}
    own = _batch_norm(flow, nodes, work, gpu)
    if own is not None:
        return own
    if "reduction" in kinds:
        return (_reduction(flow, nodes, work),)
    return (_elementwise(flow, nodes, work) if kinds == {"pointwise"} else work,)


def _batch_norm(flow: Dataflow, nodes: set[str], work: Work, gpu: Gpu) -> tuple[Work, ...] | None:
    """A batch norm or a part of one, by the types of the whole op; None if it is no such thing."""
    label = next((n.label for name in nodes if BATCH_NORM in (n := flow.nodes[name]).label), None)
    if label is None:
        return None
    first = next(n for name in nodes if (n := flow.nodes[name]).label == label)
    op = (first.origin or first.id, label)
    every = (n for n in flow.graph.nodes if n.value_args)  # what has none is given to the op
    whole = {n.id for n in every if (n.origin or n.id, n.label) == op}
    largest = max(widest(flow, name) for name in whole)
    given = [_operand(flow, meta) for meta in _given(flow, whole)]
    wide = [item for item in given if item.elements == largest]
    if not wide or largest != max(widest(flow, name) for name in nodes):
        return None
    norm = BatchNorm(
        wide=wide,
        channels=[item for item in given if item.elements < largest and item.shape],
        reduces=_reduces(flow, nodes),
        writes=any(_leaves(flow, name, whole, largest) for name in nodes),
        training=_reduces(flow, whole),
        backward=BACKWARD in label,
    )
    read = [_operand(flow, meta) for meta in _given(flow, nodes)]
    passed = _passed(flow, nodes, whole, largest)
    work = replace(work, bytes_moved=work.bytes_moved - passed)
    again = sum(i.elements * item_bytes(i.dtype) for i in read if i.elements == largest)
    return batch_norm_work(norm, work, again, gpu)


def _passed(flow: Dataflow, nodes: set[str], op: set[str], elements: int) -> int:
    """Bytes of results of so many elements that only the rest of the op reads: the op itself
    writes none of them.
    """
    given = {value for name in op - nodes for value in flow.nodes[name].value_args}
    wide = [
        meta
        for name in nodes
        if (value := flow.nodes[name].value()) in given
        and (meta := flow.meta(value)) is not None
        and not _leaves(flow, name, op, elements)
    ]
    sizes = ((elements_of(flow, meta), item_bytes(meta.dtype)) for meta in wide)
    return sum(count * size for count, size in sizes if count == elements)


def _reduces(flow: Dataflow, nodes: set[str]) -> bool:
    return any(spec_of(flow.nodes[name].op).kind == "reduction" for name in nodes)


def _leaves(flow: Dataflow, name: str, op: set[str], elements: int) -> bool:
    """Whether others than an op read a result of so many elements; its halves find it anew."""
    value = flow.nodes[name].value()
    meta = flow.meta(value)
    if meta is None or elements_of(flow, meta) != elements:
        return False
    outside = any(use.consumer not in op for use in flow.uses.get(value, ()))
    return outside or value in flow.escapes_graph


def _given(flow: Dataflow, nodes: set[str]) -> list[TensorMeta]:
    """The tensors that nodes read of others, in order, as eager code lays them out."""
    values = dict.fromkeys(
        value
        for name in sorted(nodes, key=lambda n: flow.index.get(n, 0))
        for value in flow.nodes[name].value_args
        if node_of(value)[0] not in nodes
    )
    return [meta for value in values if (meta := _eager_meta(flow, value)) is not None]


def _reduction(flow: Dataflow, nodes: set[str], work: Work) -> Work:
    """Norms and softmaxes by the op they are a part of; a bare reduction by the axes it reduces."""
    label = " ".join(flow.nodes[name].label for name in nodes)
    elements = max(widest(flow, name) for name in nodes)
    reductions = [name for name in nodes if spec_of(flow.nodes[name].op).kind == "reduction"]
    rows = [_reduced_row(flow, name) for name in reductions]
    if "norm" in label and any(rows):
        threads = NORM_THREADS * elements / max(row or 1 for row in rows)
        each, own = FITTED.norm, FITTED.norm_thread
        return replace(work, instructions=each * elements + own * threads, pattern="norm")
    if "softmax" in label:
        short = all(row is not None and row <= REGISTER_ROW for row in rows)
        each = FITTED.softmax if short else 0
        return replace(work, instructions=each * elements, pattern="softmax")
    if "norm" not in label and all(_reads_along(flow, name) for name in reductions):
        each = FITTED.row_reduction
        return replace(work, instructions=each * elements, pattern="row_reduction")
    # Statistics of a channel too, and gradients of a norm's weights. Where few are added up, no
    # second stage is needed: a thread walks down them.
    trips = max(_reduced(flow, name) for name in reductions) / COLUMN_UNROLL
    tail = min(FITTED.column_tail, trips)
    return replace(work, tail_trips=tail, pattern="column_reduction")


def _reduced_row(flow: Dataflow, name: str) -> int | None:
    """Elements of the rows that a reduction reduces, None unless it reduces the last axes alone.

    A batch norm reduces the first axis too: its channels are no rows that lie in one piece.
    """
    node = flow.nodes[name]
    meta = flow.meta(node.value_args[0]) if node.value_args else None
    if meta is None or not node.axes:
        return None
    first = min(node.axes)
    if {*node.axes} != {*range(first, len(meta.shape))}:
        return None
    return flow.hint(product(meta.shape[first:]), unknown=1)


def _reads_along(flow: Dataflow, name: str) -> bool:
    """Whether a reduction reduces the axis along which its operand lies in memory."""
    node = flow.nodes[name]
    meta = _eager_meta(flow, node.value_args[0]) if node.value_args else None
    if meta is None or not meta.shape:
        return False
    long = [axis for axis, size in enumerate(meta.shape) if _hint(flow, size) > 1]
    fastest = min(long, key=lambda axis: _hint(flow, meta.strides[axis]), default=0)
    return fastest in node.axes


def _reduced(flow: Dataflow, name: str) -> int:
    """How many elements a reduction makes one of."""
    node = flow.nodes[name]
    meta = flow.meta(node.value_args[0]) if node.value_args else None
    if meta is None:
        return 1
    return flow.hint(product(meta.shape[axis] for axis in node.axes), unknown=1)


def _elementwise(flow: Dataflow, nodes: set[str], work: Work) -> Work:
    """The loop that PyTorch runs over the operands from outside, as they are laid out."""
    given = _given(flow, nodes)
    inputs = [_operand(flow, meta) for meta in given if meta.shape]
    last = max(nodes, key=lambda n: flow.index.get(n, 0))
    result = _eager_meta(flow, flow.nodes[last].value())
    if not inputs or result is None or not result.shape:
        return work
    cast = len(nodes) == 1 and flow.nodes[last].op == "cast"
    loop = walk(
        inputs,
        [item_bytes(item.dtype) for item in inputs],
        result_bytes=item_bytes(result.dtype),
        converts=converts(
            "copy_" if cast else "",
            result.dtype,
            [_operand(flow, result), *inputs] if cast else inputs,
        ),
    )
    each = {"vector": 0.0, "cast": FITTED.cast, "index": index_instructions(loop)}[loop.path]
    return replace(work, instructions=each * loop.elements, pattern=loop.path)


def widest(flow: Dataflow, name: str) -> int:
    """Elements of the widest operand or result."""
    node = flow.nodes[name]
    metas = [flow.meta(value) for value in (node.value(), *node.value_args)]
    return max((elements_of(flow, meta) for meta in metas if meta is not None), default=0)


def elements_of(flow: Dataflow, meta: TensorMeta) -> int:
    """Elements of a tensor; a size nobody knows counts as 1, so that the rest can be priced."""
    return flow.hint(product(meta.shape), unknown=1)


def _eager_meta(flow: Dataflow, value: str) -> TensorMeta | None:
    """The tensor as eager code lays it out."""
    meta, strides = flow.meta(value), flow.graph.eager_strides.get(value)
    return meta if meta is None or strides is None else structs.replace(meta, strides=strides)


def _operand(flow: Dataflow, meta: TensorMeta) -> Operand:
    shape = tuple(_hint(flow, dim) for dim in meta.shape)
    return Operand(meta.dtype, shape, tuple(_hint(flow, step) for step in meta.strides))


def _hint(flow: Dataflow, dim: Dim) -> int:
    return flow.hint(product((dim,)), unknown=1)
