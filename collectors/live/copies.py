"""Copies of results that are results themselves, stored in another order."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from torch import fx

from advisor.model.graph import node_of, value_id
from collectors.live.fx_builder import GraphBuilder, graph_node


def turned_copy(builder: GraphBuilder, node: fx.Node) -> bool:
    """A copy of eight-bit results in the other order: another result, stored with other strides.

    A matrix product in eight bits wants its operand so, and the quantiser has it in registers.
    """
    turned, result = node.args[0], node.meta["val"]
    if not isinstance(turned, fx.Node) or str(turned.target) != "aten.permute.default":
        return False
    source = turned.args[0]
    axes: Any = turned.args[1]
    value = builder.values.get(source) if isinstance(source, fx.Node) else None
    if result.dtype.itemsize > 1 or not isinstance(value, str) or value not in builder.cast_values:
        return False
    held, wanted = builder.meta[value], builder.tensor_meta(result)
    places = [int(axis) % len(held.shape) for axis in axes]
    strides = tuple(wanted.strides[places.index(axis)] for axis in range(len(places)))
    meta = replace(held, strides=strides)
    view = builder.values.get(turned)
    if isinstance(view, str) and len(turned.users) == 1:
        builder.spent.add(node_of(view)[0])
    copy = builder.emit(node, "cast", (value,), meta, dtype=held.dtype)
    builder.bind(node, copy)
    name = builder.fresh(node.name)
    builder.nodes.append(graph_node(node, name, "opaque", (copy,), (wanted,), {}, alias_of=copy))
    builder.meta[value_id(name)] = wanted
    builder.values[node] = value_id(name)
    return True
