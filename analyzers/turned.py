"""Pointwise ops whose tensors are stored in different orders: which axes one program should take.

Ops that walk all their tensors alike are one flat loop, which every compiler writes at the speed
of memory: they are no row program (`chain_programs`). Where a tensor is read across the order in
which another is written (a transposed matrix, channels last beside channels first), blocks of both
axes move whole sectors of both. The axes are cut by strides alone.
"""

from __future__ import annotations

from advisor.model.graph import Node
from advisor.model.optable import spec_of
from advisor.model.sizes import Size, parse
from analyzers.dataflow import Dataflow
from analyzers.strides import Strides, mergeable


def reads_across(flow: Dataflow, name: str) -> bool:
    """Whether a pointwise op reads a whole tensor across the order in which it writes."""
    node = flow.nodes[name]
    if spec_of(node.op).kind != "pointwise" or len(node.outputs) != 1 or not node.value_args:
        return False
    if any(flow.meta(value) is None for value in node.value_args):
        return False
    order = _order(flow, node)
    if len(order) < 2:
        return False
    for strides in _walks(flow, node)[1:]:
        steps = {d: stride for d in order if (stride := strides[d]) is not None}
        if len(steps) == len(order):
            innermost = min(order, key=lambda d: (flow.hint(steps[d], unknown=1), -order.index(d)))
            if innermost != order[-1]:
                return True
    return False


def columns_of(flow: Dataflow, node: Node) -> list[int]:
    """The dimensions of a pointwise result that are columns, from the widest stride on.

    The innermost one, and those outside it that all tensors walk with it as if they were one.
    """
    order, walks = _order(flow, node), _walks(flow, node)
    sizes = tuple(parse(dim) for dim in node.outputs[0].shape)
    found = order[-1:]
    for outer in reversed(order[:-1]):
        if not all(mergeable(sizes, strides, outer, found[0]) for strides in walks):
            break
        found.insert(0, outer)
    return found


def _order(flow: Dataflow, node: Node) -> list[int]:
    """The dimensions of a result with more than one element, from its widest stride on."""
    meta = node.outputs[0]
    wide = [d for d, size in enumerate(meta.shape) if not parse(size).is_one]
    return sorted(wide, key=lambda d: -flow.hint(parse(meta.strides[d]), unknown=1))


def _walks(flow: Dataflow, node: Node) -> list[Strides]:
    """Strides along the dimensions of the result: its own, and those of its operands."""
    result = node.outputs[0]
    found: list[Strides] = [tuple(parse(stride) for stride in result.strides)]
    for value in node.value_args:
        meta = flow.need_meta(value)
        lead = len(result.shape) - len(meta.shape)
        steps: list[Size | None] = [None] * lead
        for size, stride in zip(meta.shape, meta.strides, strict=True):
            repeated = parse(size).is_one or parse(stride).coefficient == 0
            steps.append(None if repeated else parse(stride))
        found.append(tuple(steps))
    return found
