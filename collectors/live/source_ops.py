"""Which op of the user's program an FX node is part of: eager runs a kernel for each.

AOTAutograd writes where nodes come from: the node of Dynamo's graph, or of the body of a part of it
(what is checkpointed, a function with a gradient of its own), and which pass it belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from msgspec.structs import replace
from torch import fx

from advisor.model.graph import GRADIENT, Node, SourceOp

# Under this name a node keeps the equal ops that a pass merged into it.
REPEATS = "fusion_advisor_repeats"
# Nodes that only the backward pass computes, and what it may have of the forward pass; those of the
# gradient that a function brings itself are neither.
_PASS, _BACKWARD, _FORWARD = "partitioner_tag", "is_backward", "is_forward"
_IN_BACKWARD = "fusion_advisor_backward"
# The decision of an activation checkpoint to compute a node again.
_POLICY, _AGAIN = "recompute", "_RECOMPUTE"
# RMSNorm of the library is one kernel on a GPU, in releases that know its gradient as one op.
_RMS_NORMS = (torch.nn.RMSNorm, torch.nn.functional.rms_norm, torch.rms_norm)
_FUSED_RMS_NORM = "aten._fused_rms_norm.default"
_CASTS = ("aten._to_copy", "prims.convert_element_type")
# How far to look for the source op behind nodes that a compiler pass made.
_MOST_HOPS = 32
# Between a name and the FX graph that has it.
_OF = "@"


def label_of(source: fx.Node) -> str:
    """The source op's kind."""
    target = source.op if source.op in ("placeholder", "get_attr") else str(source.target)
    return _library_call(source) or str(named(source).meta.get("original_aten") or target)


def source_op(source: fx.Node) -> SourceOp | None:
    """The op of the user's program that a node is part of; None where eager may run none for it.

    Autocast keeps the casts of parameters: eager then runs one for several uses.
    """
    label = str(source.meta.get("original_aten") or "")
    if not label or is_recomputed(source):
        return None
    if label.startswith(_CASTS) and source.all_input_nodes[0].op == "placeholder":
        return None
    origin = origin_of(named(source))
    return None if origin is None else SourceOp(origin=origin, label=label_of(source))


def _library_call(source: fx.Node) -> str | None:
    """The op that a GPU runs for a library call which falls into pieces on the CPU only."""
    value, calls = source.meta.get("val"), source.meta.get("source_fn_stack") or [("", None)]
    on_cpu = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    fused = hasattr(torch.ops.aten, "_fused_rms_norm_backward")
    return _FUSED_RMS_NORM if on_cpu and fused and calls[-1][1] in _RMS_NORMS else None


def named(source: fx.Node) -> fx.Node:
    """The node whose source op this one serves: for a node the compiler made, its consumer.

    The backward graph computes parts of the forward pass again, to spare memory. Eager does not: it
    reads what the forward pass saved. Such a node belongs to the gradient that needs it.

    A pass that rewrites a pattern leaves nodes without a place in the program; the first user
    of theirs that has one belongs to the op that the pattern was.
    """
    original = str(source.meta.get("original_aten") or "")
    again = is_recomputed(source)
    if original and not original.startswith("prims.prepare") and not again:
        return source
    pending, seen = list(source.users), 0
    while pending and seen < _MOST_HOPS:
        node = pending.pop(0)
        seen += 1
        placed = node.meta.get("stack_trace") or node.meta.get("from_node")
        if again:
            placed = node.meta.get(_PASS) == _BACKWARD
        if placed and node.meta.get("original_aten") is not None:
            return node
        pending += list(node.users)
    return source


def is_recomputed(source: fx.Node) -> bool:
    """Whether a node of the backward graph is a copy of one of the forward graph, eager's is not.

    Eager too computes again what is checkpointed, and the gradient that a function brings itself
    is no copy of anything.
    """
    copied = _is_in_backward(source) and source.meta.get(_PASS) == _FORWARD
    return copied and not str(source.meta.get(_POLICY)).endswith(_AGAIN)


def mark_backward(graph: fx.Graph) -> None:
    """Write on the nodes of a backward graph that they are: not every release does."""
    for node in graph.nodes:
        node.meta[_IN_BACKWARD] = True


def _is_in_backward(source: fx.Node) -> bool:
    return source.op == "call_function" and bool(source.meta.get(_IN_BACKWARD))


def origin_of(source: fx.Node) -> str | None:
    """The node of the graph Dynamo captured that this one was decomposed from, `name@graph`.

    Gradients are in no such graph. A `..._backward` op runs once for each op of the forward pass,
    whose sequence number it carries; any other gradient node is an op by itself.
    """
    chain = source.meta.get("from_node") or []
    if not chain:
        if source.meta.get(_PASS) != _BACKWARD or source.op != "call_function":
            return None
        number = source.meta.get("seq_nr")
        whole = "_backward" in str(source.meta.get("original_aten")) and number is not None
        return f"{GRADIENT}{number if whole else source.name}"
    earliest = chain[0]
    while getattr(earliest, "from_node", None):
        earliest = earliest.from_node[0]
    runs = GRADIENT if _is_in_backward(source) and not is_recomputed(source) else ""
    return f"{runs}{earliest.name}{_OF}{getattr(earliest, 'graph_id', 0)}"


def told_apart(nodes: Sequence[Node], whole: int | None) -> tuple[Node, ...]:
    """The nodes with origins of the graph `whole` by name alone, and bodies within it numbered.

    Names recur from body to body. `whole` is the `id` of Dynamo's graph; where it is not known, the
    graph that most nodes are of.
    """
    graphs = Counter(
        graph for node in nodes for name in _origins(node) if (graph := name.partition(_OF)[2])
    )
    if not graphs:
        return tuple(nodes)
    outer = str(whole) if str(whole) in graphs else graphs.most_common(1)[0][0]
    number = {graph: at for at, graph in enumerate((g for g in graphs if g != outer), 1)}

    def short(origin: str) -> str:
        name, _, graph = origin.partition(_OF)
        return f"{name}{_OF}{number[graph]}" if graph in number else name

    return tuple(
        replace(
            node,
            origin=None if node.origin is None else short(node.origin),
            repeats=tuple(replace(op, origin=short(op.origin)) for op in node.repeats),
        )
        for node in nodes
    )


def _origins(node: Node) -> Iterable[str]:
    return [*([node.origin] if node.origin is not None else []), *(r.origin for r in node.repeats)]
