"""Equal ops of a graph before the compiler makes one of them: eager runs each.

AOTAutograd merges equal nodes of the forward and backward graph it partitions. Before it does, the
first of equal ones is given the source ops of the others to keep.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from collectors.live.source_ops import REPEATS, source_op

# Where AOTAutograd says which pass a node belongs to.
_PASS = "partitioner_tag"


def note_repeats(graph: fx.Graph) -> None:
    """Write on the first of equal nodes the source ops of the others, forward and backward apart.

    What a backward pass computes as the forward pass did is no op of its own: it stays a part of
    the gradient that needs it.
    """
    classes: dict[Any, int] = {}
    class_of: dict[fx.Node, int] = {}
    firsts: dict[tuple[int, Any], fx.Node] = {}
    for number, node in enumerate(graph.nodes):
        key = _key(node, class_of)
        class_of[node] = number if key is None else classes.setdefault(key, number)
        if key is None:
            continue
        first = firsts.setdefault((class_of[node], node.meta.get(_PASS)), node)
        op, own = source_op(node), source_op(first)
        known = first.meta.get(REPEATS, ())
        if op is not None and op != own and op not in known:
            first.meta[REPEATS] = (*known, op)


def _key(node: fx.Node, class_of: dict[fx.Node, int]) -> Any:
    """Equal for nodes that compute the same; None for one that stays by itself."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        if target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
            return None
    elif target is not operator.getitem:
        return None
    leaves, form = pytree.tree_flatten((node.args, node.kwargs))
    told = tuple(
        ("node", class_of[leaf]) if isinstance(leaf, fx.Node) else (type(leaf), str(leaf))
        for leaf in leaves
    )
    return target, told, str(form)
