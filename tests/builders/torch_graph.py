"""Graphs and torch: a graph run node by node in float64, and functions traced into graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from advisor.model.graph import Graph, Node, TensorMeta, is_value, literal_value
from advisor.model.optable import FLOAT_DTYPES, spec_of
from collectors.live.fx_graph import Lowered, lower


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> Lowered:
    """The ATen calls of a function, not decomposed, lowered to a checked graph."""
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    lowered = lower(graph, "traced", "inference")
    lowered.graph.check()
    return lowered


def ops_of(graph: Graph) -> list[str]:
    """The ops of a graph in order, inputs left out."""
    return [node.op for node in graph.nodes if node.id not in graph.inputs]


def laid_out(values: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """`values` stored with the strides of `meta`, as a float64 or integer tensor."""
    shape, strides = [int(s) for s in meta.shape], [int(s) for s in meta.strides]
    stored = torch.empty(
        sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1, dtype=values.dtype
    )
    view = stored.as_strided(shape, strides)
    kept = [slice(0, 1) if stride == 0 else slice(None) for stride in strides]
    view[tuple(kept)] = values[tuple(kept)]
    return view


def run(graph: Graph, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every value that table ops make from the inputs; floats are float64 throughout."""
    values = dict(inputs)
    for node in graph.nodes:
        if node.op != "opaque" and all(v in values for v in node.value_args):
            result = call(node, [values[a] if is_value(a) else literal_value(a) for a in node.args])
            values[node.value()] = laid_out(
                result.expand([int(s) for s in node.outputs[0].shape]), node.outputs[0]
            )
    return values


def call(node: Node, args: list[torch.Tensor | float]) -> torch.Tensor:
    meta = node.outputs[0]
    first = args[0]
    kind = torch.float64 if meta.dtype in FLOAT_DTYPES else getattr(torch, meta.dtype)
    if spec_of(node.op).kind == "reduction":
        assert isinstance(first, torch.Tensor)
        axes = node.attributes["axes"]
        keep = len(meta.shape) == first.dim()
        if node.op == "var":
            return torch.var(first, axes, correction=node.attributes["correction"], keepdim=keep)
        return getattr(torch, node.op)(first, axes, keepdim=keep)
    if spec_of(node.op).kind == "view":
        assert isinstance(first, torch.Tensor)
        return getattr(first, node.op)([int(s) for s in meta.shape])
    if node.op == "cast":
        assert isinstance(first, torch.Tensor)
        return first.to(kind)
    whole = [
        a if isinstance(a, torch.Tensor) else torch.tensor(a, dtype=torch.float64) for a in args
    ]
    if node.op == "fma":
        return whole[0] * whole[1] + whole[2]
    name = {"div": "true_divide"}.get(node.op, node.op)
    return getattr(torch, name)(*whole).to(kind)
