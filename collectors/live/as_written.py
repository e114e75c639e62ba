"""Keep the compiler from replacing attention by library calls: eager runs what is written.

Inductor's joint-graph passes match attention around its two batched products. While they run, a
function of ours behind each product stands in the way; it is gone before the graph is read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass

_PRODUCTS = (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default)


def _product(value: Any) -> Any:
    """The value: no pass of the compiler knows this function."""
    return value


class _Guarded(CustomGraphPass):
    """Puts the function behind every batched product."""

    def __call__(self, graph: fx.Graph) -> None:
        for target in _PRODUCTS:
            for node in graph.find_nodes(op="call_function", target=target):
                users = list(node.users)
                with graph.inserting_after(node):
                    guard = graph.call_function(_product, (node,))
                guard.meta = dict(node.meta)
                for user in users:
                    user.replace_input_with(node, guard)

    def uuid(self) -> str:
        """What the compile caches see of this pass."""
        return "fusion-advisor-as-written"


class _Bare(CustomGraphPass):
    """Takes it away again."""

    def __call__(self, graph: fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=_product):
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)

    def uuid(self) -> str:
        """What the compile caches see of this pass."""
        return "fusion-advisor-as-written"


def as_written() -> dict[str, Any]:
    """Inductor's settings under which a graph keeps its attention as the user wrote it."""
    return {"joint_custom_pre_pass": _Guarded(), "joint_custom_post_pass": _Bare()}
