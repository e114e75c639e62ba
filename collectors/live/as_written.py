"""Keep the compiler's passes from writing what the user did not: eager runs what is written.

Inductor's joint-graph passes replace attention by library calls, which they match around its two
batched products. While they run, a function of ours behind each product stands in the way; it is
gone before the graph is read. They also pull the scaling out of a softmax: `x * c - amax(x * c)`
becomes `(x - amax(x)) * c` beside tests of what is finite, a dozen nodes and more that are no op of
the user's and would be priced as kernels of their own. These two patterns match nothing meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.fx_passes import joint_graph
from torch._inductor.pattern_matcher import GraphPatternEntry, Match

from collectors.live.repeats import note_repeats

_SCALED_SOFTMAX = ("mul_softmax_pattern", "div_softmax_pattern")
_PRODUCTS = (torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default)


def _product(value: Any) -> Any:
    """The value: no pass of the compiler knows this function."""
    return value


class _Guarded(CustomGraphPass):
    """Puts the function behind every batched product, once equal ops are counted."""

    def __call__(self, graph: fx.Graph) -> None:
        note_repeats(graph)
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


@contextlib.contextmanager
def scales_as_written() -> Iterator[None]:
    """Compile with scaled softmaxes left as they are written.

    For compiled workloads, and for what plans are swapped into, as well: a plan is found where both
    see one form. The scaling is an instruction in the same kernel, which moves the same bytes.
    """
    held = {
        id(entry): (entry, entry.extra_check)
        for patterns in joint_graph.pass_patterns
        for entries in patterns.patterns.values()
        for entry in entries
        if isinstance(entry, GraphPatternEntry) and entry.handler.__name__ in _SCALED_SOFTMAX
    }
    for entry, _ in held.values():
        entry.extra_check = _no_match
    try:
        yield
    finally:
        for entry, check in held.values():
            entry.extra_check = check


def _no_match(_: Match) -> bool:
    return False
