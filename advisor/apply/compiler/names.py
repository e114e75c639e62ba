"""Ops of a post-grad graph by what they compute: names that another compilation gives again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

# What only renames elements of its first argument: nothing is computed, nothing can be stored.
VIEWS = frozenset(
    {
        torch.ops.aten.alias.default,
        torch.ops.aten.as_strided.default,
        torch.ops.aten.diagonal.default,
        torch.ops.aten.expand.default,
        torch.ops.aten.permute.default,
        torch.ops.aten.reshape.default,
        torch.ops.aten.select.int,
        torch.ops.aten.slice.Tensor,
        torch.ops.aten.split.Tensor,
        torch.ops.aten.split_with_sizes.default,
        torch.ops.aten.squeeze.dim,
        torch.ops.aten.squeeze.dims,
        torch.ops.aten.t.default,
        torch.ops.aten.transpose.int,
        torch.ops.aten.unsqueeze.default,
        torch.ops.aten.view.default,
        torch.ops.prims.broadcast_in_dim.default,
    }
)


def keys_of(graph: fx.Graph) -> dict[fx.Node, str]:
    """A hash for every node: its op, constants and result, and the same of all that it reads.

    Placeholders count by place and type. Nodes that compute the same have the same key.
    """
    keys: dict[fx.Node, str] = {}
    place = 0
    for node in graph.nodes:
        words = [node.op, _target(node), _result(node)]
        if node.op == "placeholder":
            words[1] = str(place)
            place += 1
        words += [_worded(node.args, keys), _worded(node.kwargs, keys)]
        keys[node] = hashlib.sha256("\0".join(words).encode()).hexdigest()[:24]
    return keys


def stored(node: fx.Node) -> fx.Node:
    """What lies in memory where a node is only a view of it."""
    while node.target in VIEWS and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _target(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else str(node.target)


def _result(node: fx.Node) -> str:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.device.type}"
    return type(value).__name__


def _worded(argument: Any, keys: Mapping[fx.Node, str]) -> str:
    """An argument in words, nodes by their keys."""
    if isinstance(argument, fx.Node):
        return keys[argument]
    if isinstance(argument, list | tuple):
        return f"({', '.join(_worded(item, keys) for item in argument)})"
    if isinstance(argument, Mapping):
        return f"({', '.join(f'{k}={_worded(v, keys)}' for k, v in argument.items())})"
    return str(argument)
