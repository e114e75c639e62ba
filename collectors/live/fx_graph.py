"""A post-grad FX graph as a `Graph`: ATen becomes ops of the table, constants become literals.

PyTorch's decompositions leave a few spellings of one computation (`pow(x, 2)`,
`prepare_softmax_online`, `var_mean`); they are brought to one form here and equal pure nodes are
merged, so that one computation has one signature on every device and version. The maps back to FX
nodes stay outside the `Graph`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from advisor.model.base import Phase
from advisor.model.graph import AttributeValue, Graph, Level, value_id
from collectors.live.aten import HANDLERS, VIEWS
from collectors.live.counted import counted_attributes
from collectors.live.cuts import cut_attributes
from collectors.live.fx_builder import GraphBuilder, flatten, graph_node
from collectors.live.layouts import EAGER
from collectors.live.lookups import lookup_attributes
from collectors.live.products import product_attributes
from collectors.live.reductions import MULTI_OUTPUT
from collectors.live.source_ops import mark_backward, told_apart


@dataclass
class Lowered:
    """A graph and the way back: the FX node that holds a value, and all that equal it."""

    graph: Graph
    fx_graph: fx.Graph
    fx_node: dict[str, fx.Node]
    fx_aliases: dict[str, list[fx.Node]]

    def copy(self) -> Lowered:
        """The same with an FX graph of its own, to be rewritten and thrown away."""
        renamed: dict[fx.Node, fx.Node] = {}
        return Lowered(
            graph=self.graph,
            fx_graph=copied(self.fx_graph, renamed),
            fx_node={value: renamed[node] for value, node in self.fx_node.items()},
            fx_aliases={
                value: [renamed[n] for n in nodes] for value, nodes in self.fx_aliases.items()
            },
        )


def copied(graph: fx.Graph, renamed: dict[fx.Node, fx.Node] | None = None) -> fx.Graph:
    """The same nodes in a graph of their own; `renamed` is filled with old to new."""
    twin = fx.Graph(owning_module=graph.owning_module)
    twin.output(twin.graph_copy(graph, {} if renamed is None else renamed))
    return twin


def lower(
    graph: fx.Graph,
    graph_id: str,
    phase: Phase,
    level: Level = "post_grad",
    *,
    on_gpu: bool = False,
    dynamo: int | None = None,
) -> Lowered:
    """Lower an FX graph of ATen ops whose nodes carry fake tensors in `meta["val"]`.

    `dynamo` is the `id` of the graph of Dynamo's that it was made of, if known.

    Where a graph has parts on a GPU, or its workload runs `on_gpu`, what it does on the CPU is
    opaque: no kernel is for it. Elsewhere the CPU stands for the GPU that there is not.
    """
    if phase == "backward":
        mark_backward(graph)
    builder = GraphBuilder()
    of_gpu = on_gpu or any(_device(node) == "cuda" for node in graph.nodes)
    outputs: tuple[str, ...] = ()
    for node in graph.nodes:
        if node.op == "output":
            leaves = [leaf for leaf in flatten(node.args) if isinstance(leaf, fx.Node)]
            outputs = tuple(v for leaf in leaves if isinstance(v := builder.values.get(leaf), str))
        elif of_gpu and _is_left_to_cpu(node):
            _opaque(builder, node, told={})
        elif node.op == "call_function":
            _call(builder, node)
        else:
            _opaque(builder, node)
    result = Graph(
        id=graph_id,
        source="compiled",
        level=level,
        phase=phase,
        nodes=told_apart(builder.finished(), dynamo),
        inputs=tuple(n.name for n in graph.nodes if n.op in ("placeholder", "get_attr")),
        outputs=outputs,
        size_hints=builder.hints,
        eager_strides={v: n.meta[EAGER] for v, n in builder.fx_node.items() if EAGER in n.meta},
    )
    return Lowered(
        graph=result, fx_graph=graph, fx_node=builder.fx_node, fx_aliases=builder.fx_aliases
    )


def _device(node: fx.Node) -> str:
    """Where the result of a node is; of several, the first."""
    tensors = [t for t in flatten(node.meta.get("val")) if isinstance(t, torch.Tensor)]
    return tensors[0].device.type if tensors else ""


def _is_left_to_cpu(node: fx.Node) -> bool:
    """Whether a node computes on the CPU: no view of a tensor, nor a number known as one."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    return _device(node) == "cpu" and HANDLERS.get(str(node.target)) not in VIEWS


def _call(builder: GraphBuilder, node: fx.Node) -> None:
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        held = builder.values.get(node.args[0])
        index = node.args[1]
        if isinstance(held, tuple) and isinstance(index, int) and index < len(held):
            builder.bind(node, held[index])
            return
    name = str(node.target)
    handler = HANDLERS.get(name)
    value = node.meta.get("val")
    if handler is None or not _is_dense_tensor(value):
        if name not in MULTI_OUTPUT:
            _opaque(builder, node)
            return
        handler = MULTI_OUTPUT[name]
    if not handler(builder, node):
        _opaque(builder, node)


def _is_dense_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _opaque(
    builder: GraphBuilder, node: fx.Node, told: dict[str, AttributeValue] | None = None
) -> None:
    """Anything else: its tensors, what it aliases and what it writes, from the op's schema.

    `told` is what kernels may make of it, by default all that is known.
    """
    value = node.meta.get("val", node.meta.get("example_value"))
    tensors = [t for t in flatten(value) if _is_dense_tensor(t)] if value is not None else []
    node_id = builder.fresh(node.name)
    arguments = [builder.values.get(n) for n in node.all_input_nodes]
    flat = tuple(
        dict.fromkeys(v for a in arguments if a for v in (a if isinstance(a, tuple) else (a,)))
    )
    alias, mutated = _aliasing(builder, node)
    metas = tuple(builder.tensor_meta(t) for t in tensors)
    if told is None:
        told = cut_attributes(node) | product_attributes(node, flat, builder.values.get)
        told |= counted_attributes(node) | lookup_attributes(node, flat, builder.values.get)
    builder.nodes.append(
        graph_node(node, node_id, "opaque", flat, metas, told, alias_of=alias, mutates=mutated)
    )
    for output, meta in enumerate(metas):
        builder.meta[value_id(node_id, output)] = meta
    if isinstance(value, (list, tuple)):
        builder.values[node] = _elements(node_id, value)
    else:
        builder.bind(node, value_id(node_id))
    if mutated:
        builder.forget()


def _elements(node_id: str, value: Sequence[Any]) -> tuple[str, ...]:
    """The value behind every element of a result; what is no tensor stands for the first."""
    held, output = [], 0
    for item in value:
        held.append(value_id(node_id, output if _is_dense_tensor(item) else 0))
        output += sum(_is_dense_tensor(leaf) for leaf in flatten(item))
    return tuple(held)


def _aliasing(builder: GraphBuilder, node: fx.Node) -> tuple[str | None, tuple[str, ...]]:
    if node.op != "call_function":
        return None, ()
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        # It does not say what it writes: if it has an effect at all, whatever it is given.
        held = [builder.values.get(leaf) for leaf in node.all_input_nodes if node.is_impure()]
        return None, tuple(value for value in held if isinstance(value, str))
    alias: str | None = None
    written: list[str] = []
    for position, parameter in enumerate(schema.arguments):
        if parameter.alias_info is None:
            continue
        given = (
            node.args[position] if position < len(node.args) else node.kwargs.get(parameter.name)
        )
        for leaf in flatten(given):
            # Its value even where it stands for a number: a constant may be written to.
            value = builder.values.get(leaf) if isinstance(leaf, fx.Node) else None
            if not isinstance(value, str):
                continue
            alias = alias or value
            if parameter.alias_info.is_write:
                written.append(value)
    return alias, tuple(written)
