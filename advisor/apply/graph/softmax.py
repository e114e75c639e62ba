"""Finds every softmax of a graph: as one op, as log-softmax and exp, or written out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from advisor.apply.graph.flow import Flow
from advisor.apply.graph.spelling import Call, read, value_of


@dataclass(frozen=True)
class Softmax:
    """`result = softmax(source)`; `nodes` are those that compute it, the result last."""

    source: fx.Node
    result: fx.Node
    nodes: tuple[fx.Node, ...]
    over_last_axis: bool


def softmaxes(flow: Flow, graph: fx.Graph) -> Iterator[Softmax]:
    """Every softmax over one axis, in the order of the graph."""
    for node in graph.nodes:
        call = read(node)
        if call is None or value_of(node) is None:
            continue
        found = None
        if call.name == "softmax":
            found = _plain(flow, node, call)
        elif call.name == "exp":
            found = _of_logarithm(flow, node, call)
        elif call.name == "div":
            found = _written_out(flow, node, call)
        if found is not None:
            yield found


def _plain(flow: Flow, node: fx.Node, call: Call) -> Softmax | None:
    source = call["input"]
    if value_of(source) is None or not isinstance(call["dim"], int) or call.in_place:
        return None
    return Softmax(flow.now(source, node), node, (node,), _is_last(node, call["dim"]))


def _is_last(node: fx.Node, axis: int) -> bool:
    value = value_of(node)
    return value is not None and value.dim() > 0 and axis % value.dim() == value.dim() - 1


def _of_logarithm(flow: Flow, node: fx.Node, call: Call) -> Softmax | None:
    inner = _call(call["input"])
    if inner is None or inner.name != "log_softmax" or call.in_place:
        return None
    logarithm = call["input"]
    found = _plain(flow, logarithm, inner)
    if found is None or flow.readers(logarithm) != [node]:
        return None
    return Softmax(found.source, node, (logarithm, node), found.over_last_axis)


def _written_out(flow: Flow, node: fx.Node, call: Call) -> Softmax | None:
    """`e / e.sum(-1, keepdim=True)` with `e = (x - x.amax(-1, keepdim=True)).exp()`."""
    power, total = call["input"], call["other"]
    exponential, summed = _call(power), _call(total)
    if exponential is None or summed is None or call.in_place:
        return None
    if exponential.name != "exp" or summed.name != "sum" or summed["input"] is not power:
        return None
    shift = exponential["input"]
    shifted = _call(shift)
    if shifted is None or shifted.name != "sub" or not _keeps_last(power, summed):
        return None
    source, largest = shifted["input"], shifted["other"]
    maximum = _maximum(source, largest)
    if maximum is None:
        return None
    nodes = (*maximum, shift, power, total, node)
    if any(set(flow.readers(item)) - set(nodes) for item in nodes[:-1]):
        return None
    return Softmax(flow.now(source, shift), node, nodes, True)


def _maximum(source: Any, largest: Any) -> tuple[fx.Node, ...] | None:
    """The nodes that compute the largest value of each row of `source`."""
    call = _call(largest)
    if call is not None and call.name == "detach":
        inner = _maximum(source, call["input"])
        return None if inner is None else (*inner, largest)
    if call is not None and call.name == "getitem" and call["index"] == 0:
        pair = call["input"]
        reduced = _call(pair)
        if reduced is None or reduced.name != "max" or reduced["input"] is not source:
            return None
        return (pair, largest) if _keeps_last(source, reduced) else None
    if call is None or call.name != "amax" or call["input"] is not source:
        return None
    return (largest,) if _keeps_last(source, call) else None


def _keeps_last(node: fx.Node, call: Call) -> bool:
    axis = call["dim"]
    if isinstance(axis, tuple | list) and len(axis) == 1:
        axis = axis[0]
    return isinstance(axis, int) and call["keepdim"] is True and _is_last(node, axis)


def _call(value: Any) -> Call | None:
    return read(value) if isinstance(value, fx.Node) else None
