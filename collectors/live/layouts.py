"""The strides in which a compiled forward hands its results to the backward pass.

Inductor lays out what convolutions read and write channels-last, what is saved for the backward
pass included, tells AOTAutograd so, and the backward graph is compiled for these strides. Here they
are found without lowering anything, by Inductor's own rules for when and for which nodes, as for a
GPU. They depend on the whole graph: to swap a kernel in changes which results want to be
channels-last. So a graph that plans are swapped into is held to the strides it has without them,
else a plan of the backward graph would have its sites only beside certain plans of the forward.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch._inductor.compile_fx import fake_tensor_prop, record_original_output_strides
from torch._inductor.graph import GraphLowering
from torch._prims_common import (
    is_non_overlapping_and_dense_or_false,
    make_channels_last_strides_for,
)

aten = torch.ops.aten
# What a result is read by in the very strides it has in the graph.
AS_STRIDED = (
    aten.as_strided.default,
    aten.as_strided_.default,
    aten.as_strided_scatter.default,
    aten.resize.default,
    aten.resize_as.default,
)
# Where Inductor keeps on a graph's output which results its caller sees, and the strides of all.
VISIBLE, STRIDES = "user_visible_output_idxs", "original_output_strides"
# The strides of a value where nothing is compiled, on its node where they are others.
EAGER = "fusion_advisor_eager_strides"
Strides = tuple[int, ...]


def hold_layouts(graph: fx.Graph) -> None:
    """Have the results of a forward graph keep the strides it has now, whatever is done to it.

    To Inductor they are then results that its caller sees. Those of unknown sizes are left to it.
    """
    (output,) = graph.find_nodes(op="output")
    if STRIDES not in output.meta:  # the body of an op, which returns to its own graph
        return
    wanted = _saved_strides(graph, output)
    known = {place for place, strides in enumerate(wanted) if strides is not None}
    output.meta[STRIDES] = [
        own if strides is None else strides
        for own, strides in zip(output.meta[STRIDES], wanted, strict=True)
    ]
    output.meta[VISIBLE] = sorted({*output.meta.get(VISIBLE, ())} | known)


def settle_layouts(graph: fx.Graph) -> None:
    """Copy results that kernels wrote in other strides than are held: no compiler lays these out.

    The convolutions that read them take the copy, which they would have had made for themselves.
    """
    (output,) = graph.find_nodes(op="output")
    if STRIDES not in output.meta:
        return
    held = {*output.meta.get(VISIBLE, ())}
    for place, node in enumerate(_results(output)):
        strides = output.meta[STRIDES][place] if place in held else None
        if node is None or strides is None or not _is_written_by_kernel(node):
            continue
        if _lies_otherwise(node.meta["val"], strides):
            _copy_out(graph, output, node, strides)


def note_layouts(gm: fx.GraphModule) -> None:
    """Note the strides of all results before any pass, as Inductor does."""
    record_original_output_strides(gm)


def tell_layouts(graph: fx.Graph) -> None:
    """Tell AOTAutograd the strides that `hold_layouts` found, as a compiler tells what it chose."""
    context = TracingContext.try_get()
    if context is None or context.output_strides is None:
        return
    (output,) = graph.find_nodes(op="output")
    held = {*output.meta.get(VISIBLE, ())}
    context.output_strides[:] = [
        strides if place in held and _is_static(strides) else None
        for place, strides in enumerate(output.meta[STRIDES])
    ]


def take_layouts(gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Give the values of a graph the strides that follow from those of its inputs.

    Those that they had, which are eager's, stay on record in the nodes' `meta[EAGER]`.
    """
    given = zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True)
    if not any(_differs(node.meta.get("val"), value) for node, value in given):
        return
    before = {node: node.meta.get("val") for node in gm.graph.nodes}
    with torch.no_grad():
        fake_tensor_prop(gm, inputs)
    for node, value in before.items():
        if _differs(value, node.meta.get("val")):
            node.meta[EAGER] = tuple(value.stride())


def _is_written_by_kernel(node: fx.Node) -> bool:
    if node.target is not operator.getitem:
        return False
    made = node.args[0]
    return isinstance(made, fx.Node) and made.target is triton_kernel_wrapper_functional


def _lies_otherwise(value: Tensor, strides: Strides) -> bool:
    """Whether a tensor has other strides along an axis that is walked."""
    if not _is_static((*value.shape, *value.stride(), *strides)):
        return False
    axes = zip(value.shape, value.stride(), strides, strict=True)
    return any(size > 1 and own != wanted for size, own, wanted in axes)


def _copy_out(graph: fx.Graph, output: fx.Node, node: fx.Node, strides: Strides) -> None:
    readers = [user for user in node.users if user.target is aten.convolution.default]
    with graph.inserting_after(node):
        copy = graph.call_function(aten.clone.default, (node,))
    value = node.meta["val"]
    copy.meta = {**node.meta, "val": value.new_empty_strided(value.shape, strides)}
    for reader in (*readers, output):
        reader.replace_input_with(node, copy)


def _saved_strides(graph: fx.Graph, output: fx.Node) -> list[Strides | None]:
    """The strides of what is saved; None of what the caller sees, is no tensor or not static."""
    results = _results(output)
    seen = {results[place] for place in output.meta.get(VISIBLE, ())}
    prefers = _preferring_channels_last(graph.owning_module)
    return [
        None if node is None or node in seen else _strides_of(node, node in prefers)
        for node in results
    ]


def _results(output: fx.Node) -> list[fx.Node | None]:
    returned: Any = output.args[0]
    return [node if isinstance(node, fx.Node) else None for node in returned]


def _preferring_channels_last(gm: Any) -> set[fx.Node]:
    """The nodes around convolutions, where Inductor thinks that it pays on a GPU."""
    with _without_mkldnn():
        if not GraphLowering.decide_layout_opt(gm, is_inference=False):
            return set()
    lowering: Any = SimpleNamespace(module=gm)
    return set(GraphLowering.find_nodes_prefer_channels_last(lowering))


def _strides_of(node: fx.Node, prefers: bool) -> Strides | None:
    """As `GraphLowering.run_node` lays out a result that its caller does not see."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not _is_static((*value.shape, *value.stride())):
        return None
    read_as_is = any(user.target in AS_STRIDED for user in node.users)
    dense = is_non_overlapping_and_dense_or_false(value)
    if prefers and dense and value.ndim == 4 and not read_as_is:
        return tuple(make_channels_last_strides_for(value.shape))
    return tuple(value.stride())


@contextlib.contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Where mkldnn is there, all convolutions of a CPU are taken to want channels-last."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _is_static(numbers: Sequence[Any] | None) -> bool:
    return numbers is not None and all(isinstance(number, int) for number in numbers)


def _differs(known: Any, given: Any) -> bool:
    if not isinstance(known, Tensor) or not isinstance(given, Tensor):
        return False
    strides = known.stride(), given.stride()
    return all(map(_is_static, strides)) and strides[0] != strides[1]
