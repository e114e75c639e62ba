"""Writes the call of FlexAttention for a site: what happens to single scores becomes its program.

A Dynamo graph holds FlexAttention as a higher-order op whose programs are submodules. The op is
written here as Dynamo writes it, with block masks computed now from masks that are constant.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.source import ConstantSource
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_op
from torch._inductor import inductor_prims
from torch._prims_common import make_contiguous_strides_for
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.nn.attention.flex_attention import (
    BlockMask,
    _apply_kernel_options,
    _create_empty_block_mask,
    create_block_mask,
)
from torch.utils._python_dispatch import _disable_current_modes

from advisor.apply.graph.arguments import Inputs, Shapes, laid_out
from advisor.apply.graph.constants import Constants
from advisor.apply.graph.emit import Emitter
from advisor.apply.graph.library import lead_of, mask_tensor, times_factors
from advisor.apply.graph.masks import Mask
from advisor.apply.graph.products import tensor
from advisor.apply.graph.site import Site
from advisor.apply.graph.spelling import value_of
from advisor.errors import IllegalFusionError

# (queries, keys, width of the band, device, identity of other visible pairs) to the entries of a
# block mask, buffers by their names.
BlockCache = dict[tuple[Any, ...], list[Any]]
_AXES = ("batch", "head", "query_index", "key_index")


def write_flex_call(
    emit: Emitter,
    gm: fx.GraphModule,
    site: Site,
    inputs: Inputs,
    mask: Mask,
    constants: Constants,
    cache: BlockCache,
) -> fx.Node:
    """The call, [batch, heads, queries, dim of values]; `check_flex` has passed.

    Sites of the same mask and sizes share the buffers of their blocks through `cache`. Key and
    value go in with their fewer heads: the kernel reads them once for all queries.
    """
    grouped = inputs.grouped is not None
    key, value = inputs.grouped or (inputs.key, inputs.value)
    query_node = laid_out(emit, inputs.query, lead_of(site.scores.node), inputs)
    query_node = times_factors(emit, query_node, inputs)
    key_node = laid_out(emit, key, lead_of(site.scores.node), inputs, grouped=grouped)
    value_node = laid_out(emit, value, lead_of(site.result.left.node), inputs, grouped=grouped)
    pairs = None
    if mask.window is None:
        query_node, pairs = mask_tensor(emit, query_node, inputs, mask, constants)
    program, buffers = _score_program(emit, inputs, pairs, in_memory=mask.visible is None)
    blocks = _block_mask(emit, gm, inputs, mask, cache)
    options = _apply_kernel_options(
        tensor(query_node), tensor(key_node), tensor(value_node), False, None
    )
    score_mod = emit.attribute(_added(gm, "fused_attention_scores", program))
    sizes = (*inputs.shapes.lead, inputs.shapes.queries, inputs.shapes.value_dim)
    result = emit.empty(sizes, query_node)
    call = emit.opaque(
        flex_attention_op,
        (query_node, key_node, value_node, score_mod, blocks, inputs.scale, dict(options)),
        {"score_mod_other_buffers": tuple(buffers), "mask_mod_other_buffers": ()},
        None,
    )
    return emit.opaque(operator.getitem, (call, 0), {}, result)


def check_flex(
    site: Site, inputs: Inputs, mask: Mask, devices: Collection[str], *, nested: bool
) -> None:
    """Raise `IllegalFusionError` where FlexAttention cannot take the site.

    `nested`: the graph is the body of another graph's op, which holds no buffers.
    """
    shapes = inputs.shapes
    device = tensor(inputs.query.node).device.type
    if nested:
        raise IllegalFusionError(
            "FlexAttention's block masks find no place in a checkpointed part; leave attention out "
            "of the checkpoint"
        )
    if site.dropout:
        raise IllegalFusionError(
            f"FlexAttention has no dropout, here {site.dropout:g}; train without it for its sake"
        )
    sizes = (*shapes.lead, shapes.queries, shapes.keys, shapes.dim, shapes.value_dim)
    if not all(isinstance(size, int) for size in sizes):
        raise IllegalFusionError(
            "its sizes are only known at run time, and FlexAttention's block masks are made now"
        )
    if min(sizes[4:]) < 16:
        raise IllegalFusionError(f"FlexAttention takes heads of at least 16, here {min(sizes[4:])}")
    for step in inputs.steps:
        value = value_of(step.term)
        if mask.window is None and value is not None and value.requires_grad:
            raise IllegalFusionError(
                "its bias is trained, and FlexAttention adds the gradient of a bias up atomically, "
                "in another order every time; detach() it if it is to stay as it is"
            )
    # Last, for without a GPU this says nothing of the site.
    if device not in devices:
        raise IllegalFusionError(
            f"FlexAttention is tried on a GPU only; on {device} it computes no gradients"
        )


def _score_program(
    emit: Emitter, inputs: Inputs, pairs: fx.Node | None, *, in_memory: bool
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """What happens to one score at its indices as a graph, and the tensors that it reads.

    `in_memory`: the pairs are computed at run time, and written to memory before the call.
    """
    graph = fx.Graph()
    score, *indices = [graph.placeholder(name) for name in ("score", *_AXES)]
    held, axes = (None, []) if pairs is None else _squeezed(emit, pairs)
    if held is not None and in_memory:
        held = _in_memory(emit, held)
    tensors = [] if held is None else [held]
    places = [graph.placeholder("pairs") for _ in tensors]
    for step in (*inputs.caps, *inputs.steps):
        if step.kind == "scale":
            score = graph.call_function(operator.mul, (score, step.number))
        elif step.kind == "tanh":
            score = graph.call_function(torch.tanh, (score,))
    for node, place in zip(tensors, places, strict=True):
        term = _read(graph, place, axes, indices)
        if tensor(node).dtype == torch.bool:
            score = graph.call_function(torch.where, (term, score, -torch.inf))
        else:
            score = graph.call_function(operator.add, (score, term))
    graph.output(score)
    return fx.GraphModule(nn.Module(), graph), tensors


def _squeezed(emit: Emitter, node: fx.Node) -> tuple[fx.Node, list[int]]:
    """A tensor of four axes without those of one, and which axes it has."""
    sizes = (*(1,) * (4 - tensor(node).dim()), *tensor(node).shape)
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    return emit.method("reshape", node, tuple(sizes[axis] for axis in axes)), axes


def _in_memory(emit: Emitter, node: fx.Node) -> fx.Node:
    """The tensor, which Inductor must compute into a buffer of fixed layout.

    Else it computes the tensor anew in the kernel's program, element by element, from whatever
    buffers that needs; one whose layout is still open, as a row maximum is, fails its assertion
    "convert FlexibleLayout to FixedLayout first" (torch 2.9 to 2.13). This op of Inductor's own
    returns its argument as it is.
    """
    strides = make_contiguous_strides_for(tuple(tensor(node).shape))
    return emit.call(inductor_prims.force_stride_order, node, strides)


def _read(
    graph: fx.Graph, buffer: fx.Node, axes: Sequence[int], indices: Sequence[fx.Node]
) -> fx.Node:
    if not axes:
        return buffer
    return graph.call_function(operator.getitem, (buffer, tuple(indices[axis] for axis in axes)))


def _block_mask(
    emit: Emitter, gm: fx.GraphModule, inputs: Inputs, mask: Mask, cache: BlockCache
) -> tuple[Any, ...]:
    """The block mask as the op takes it, its tensors as buffers of the module."""
    device = tensor(inputs.query.node).device
    graph = fx.Graph()
    indices = [graph.placeholder(name) for name in _AXES]
    width = mask.window
    if width is None:
        allowed = graph.call_method("new_ones", (indices[0], ()), {"dtype": torch.bool})
    else:
        allowed = _band(graph, indices, width)
    graph.output(allowed)
    program = fx.GraphModule(nn.Module(), graph)
    key = (inputs.shapes.queries, inputs.shapes.keys, width, device, id(mask.visible))
    if key not in cache:
        with _disable_current_modes(), disable_proxy_modes_tracing(), torch.no_grad():
            blocks = _computed_blocks(inputs.shapes, mask)
            cache[key] = [
                _buffer(gm, item.to(device)) if isinstance(item, torch.Tensor) else item
                for item in blocks.as_tuple()[:-1]
            ]
    entries = [emit.attribute(e) if isinstance(e, str) else e for e in cache[key]]
    return (*entries, emit.attribute(_added(gm, "fused_attention_mask", program)))


def _computed_blocks(shapes: Shapes, mask: Mask) -> BlockMask:
    """Which blocks of pairs count, computed now; what single pairs get is up to the programs."""
    width, visible = mask.window, mask.visible
    if width is None and (visible is None or bool(visible.all())):
        # One block that covers everything, as FlexAttention itself makes it without a mask.
        sizes = shapes.queries, shapes.keys
        plain = [torch.empty((1, 1, size, 1), device="cpu") for size in sizes]
        return _create_empty_block_mask(*plain)

    def mask_mod(batch: Any, head: Any, query_index: Any, key_index: Any) -> Any:
        if width is not None:
            distance = query_index - key_index
            return (distance >= 0) & (distance < width)
        assert visible is not None
        first, second = (batch if batches else 0), (head if heads else 0)
        return visible[first, second, query_index, key_index]

    lead = (1, 1) if visible is None else visible.shape[:2]
    batches, heads = (size if size > 1 else None for size in lead)
    lengths = int(shapes.queries), int(shapes.keys)
    with torch.device("cpu"):
        return create_block_mask(mask_mod, batches, heads, *lengths, device="cpu")


def _band(graph: fx.Graph, indices: Sequence[fx.Node], width: int) -> fx.Node:
    """`0 <= query - key < width`."""
    distance = graph.call_function(operator.sub, (indices[2], indices[3]))
    seen = graph.call_function(operator.ge, (distance, 0))
    near = graph.call_function(operator.lt, (distance, width))
    return graph.call_function(operator.and_, (seen, near))


def _added(gm: fx.GraphModule, name: str, program: fx.GraphModule) -> str:
    name = _free_name(gm, name)
    gm.add_submodule(name, program)
    return name


def _buffer(gm: fx.GraphModule, value: torch.Tensor) -> str:
    name = _free_name(gm, "fused_attention_blocks")
    gm.register_buffer(name, value)
    sources = getattr(gm, "_param_name_to_source", None)
    if sources is not None:
        # A buffer that Dynamo did not find in the user's program; AOTAutograd asks whence it is.
        sources[name] = ConstantSource(name)
    return name


def _free_name(gm: fx.GraphModule, name: str) -> str:
    number = 0
    while hasattr(gm, f"{name}_{number}"):
        number += 1
    return f"{name}_{number}"
