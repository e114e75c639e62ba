"""Writes the call of `scaled_dot_product_attention` for a site."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from advisor.apply.graph.arguments import Inputs, cast, laid_out
from advisor.apply.graph.constants import Constants
from advisor.apply.graph.emit import Emitter, arranged, regrouped
from advisor.apply.graph.fitting import by_rows, mask_by_rows
from advisor.apply.graph.masks import Mask, low_of, made_of_booleans
from advisor.apply.graph.products import Operand, Size, tensor
from advisor.apply.graph.sdpa import HALF, on_gpu
from advisor.apply.graph.site import Site, Step
from advisor.apply.graph.spelling import same_size
from advisor.errors import IllegalFusionError


def write_library_call(
    emit: Emitter, site: Site, inputs: Inputs, mask: Mask, constants: Constants
) -> fx.Node:
    """The call, [batch, heads, queries, dim of values].

    Raises `IllegalFusionError` before it writes anything that has an effect.
    """
    scale = _scale(inputs)
    grouped = inputs.grouped is not None and takes_groups(inputs, mask)
    query = laid_out(emit, inputs.query, lead_of(site.scores.node), inputs)
    query = times_factors(emit, query, inputs)
    query, pairs = mask_tensor(emit, query, inputs, mask, constants)
    if pairs is not None and on_gpu(inputs.query.node):
        pairs = mask_by_rows(emit, pairs)
    key, value = inputs.grouped if grouped and inputs.grouped else (inputs.key, inputs.value)
    key_node = laid_out(emit, key, lead_of(site.scores.node), inputs, grouped=grouped)
    value_node = laid_out(emit, value, lead_of(site.result.left.node), inputs, grouped=grouped)
    operands = [query, key_node, value_node]
    if on_gpu(inputs.query.node):
        operands = [by_rows(emit, node) for node in operands]
    arguments = {
        "attn_mask": pairs,
        "dropout_p": site.dropout,
        "is_causal": mask.kind == "causal",
        "scale": scale,
        "enable_gqa": grouped,
    }
    sizes = (*inputs.shapes.lead, inputs.shapes.queries, inputs.shapes.value_dim)
    return emit.opaque(
        functional.scaled_dot_product_attention,
        operands,
        arguments,
        emit.empty(sizes, query, requires_grad=tensor(site.result.node).requires_grad),
    )


def lead_of(node: fx.Node) -> tuple[Size, ...]:
    """The sizes in front of the last two."""
    return tuple(tensor(node).shape[:-2])


def _scale(inputs: Inputs) -> float:
    if inputs.caps:
        raise IllegalFusionError("scaled_dot_product_attention caps no scores")
    scale = inputs.scale * math.prod(s.number for s in inputs.steps if s.kind == "scale")
    if not 0 < scale < math.inf:
        raise IllegalFusionError(f"the scale {scale:g} is not positive")
    return scale


def takes_groups(inputs: Inputs, mask: Mask) -> bool:
    """Whether fewer heads of keys are better handed over than repeated.

    On CUDA the flash kernel alone takes them in all versions, and it takes no mask; else the scores
    would be written out again.
    """
    if not on_gpu(inputs.query.node):
        return True
    shapes = inputs.shapes
    square = mask.kind != "causal" or same_size(shapes.queries, shapes.keys)
    narrow = isinstance(shapes.dim, int) and shapes.dim == shapes.value_dim and shapes.dim <= 256
    return inputs.dtype in HALF and mask.kind in ("none", "causal") and square and narrow


def times_factors(emit: Emitter, query: fx.Node, inputs: Inputs) -> fx.Node:
    """The query times tensors that multiply all scores of a query alike."""
    dtype = tensor(query).dtype
    for step in inputs.steps:
        if step.kind == "factor":
            query = emit.call(_by(step), query, term_of(emit, step, inputs))
    return cast(emit, query, dtype)


def _by(step: Step) -> Callable[..., Any]:
    """How the tensor of a step acts on scores."""
    return torch.div if step.inverted else torch.mul


def term_of(emit: Emitter, step: Step, inputs: Inputs) -> fx.Node:
    """The tensor of a step as [batch or 1, heads or 1, queries or 1, keys or 1]."""
    assert step.term is not None
    rank = len(step.lead) + 2
    own = tensor(step.term).dim()
    if own > rank:
        raise IllegalFusionError("a tensor of the mask has more axes than the scores")
    axes = (*(None,) * (rank - own), *range(own))
    node = arranged(emit, Operand(step.term, axes, step.node))
    return regrouped(emit, node, step.lead, inputs.shapes.lead)


def mask_tensor(
    emit: Emitter, query: fx.Node, inputs: Inputs, mask: Mask, constants: Constants
) -> tuple[fx.Node, fx.Node | None]:
    """The query, and what fused attention takes as its mask: booleans, numbers to add, or None."""
    if mask.kind in ("none", "causal"):
        return query, None
    if mask.kind == "boolean":
        return query, _allowed_pairs(emit, inputs)
    total: fx.Node | None = None
    for step in inputs.steps:
        total = _repeated(emit, step, total, inputs, constants)
    assert total is not None
    return _for_blind_queries(emit, query, total) if mask.may_be_blind else (query, total)


def _for_blind_queries(emit: Emitter, query: fx.Node, total: fx.Node) -> tuple[fx.Node, fx.Node]:
    """Give queries that see no key the mean of the values, as adding a huge number to scores does.

    Fused kernels overflow there, or lose log(keys) beside that number and return gradients that
    are too large. So such a query becomes zero, and its row of the mask is moved up to zero.
    """
    dtype = tensor(query).dtype
    most = emit.method("amax", emit.method("detach", total), -1, keepdim=True)
    blind = emit.call(torch.le, most, low_of(dtype))
    base = emit.method("clamp", most, min=torch.finfo(dtype).min)
    shift = emit.call(torch.mul, base, blind)
    total = emit.call(torch.sub, total, shift)
    return emit.method("masked_fill", query, blind, 0.0), total


def _allowed_pairs(emit: Emitter, inputs: Inputs) -> fx.Node:
    """True where no step masks."""
    found: fx.Node | None = None
    for step in inputs.steps:
        if step.kind != "fill":
            continue
        term = term_of(emit, step, inputs)
        allowed = term if step.inverted else emit.call(torch.logical_not, term)
        found = allowed if found is None else emit.call(torch.logical_and, found, allowed)
    assert found is not None
    return found


def _repeated(
    emit: Emitter, step: Step, total: fx.Node | None, inputs: Inputs, constants: Constants
) -> fx.Node | None:
    """What a step makes of scores that were `total`, or 0 if that is None."""
    if step.kind == "scale":
        return None if total is None else emit.call(torch.mul, total, step.number)
    term = term_of(emit, step, inputs)
    if step.kind == "factor":
        factor = cast(emit, term, inputs.dtype)
        return None if total is None else emit.call(_by(step), total, factor)
    if step.kind == "fill":
        low = -torch.inf if step.number == -torch.inf else torch.finfo(inputs.dtype).min
        return _filled(emit, step, term, low, total, inputs)
    term = _in_dtype(emit, step, term, inputs.dtype, constants)
    if step.number != 1:
        term = emit.call(torch.mul, term, step.number)
    return term if total is None else emit.call(torch.add, total, term)


def _filled(
    emit: Emitter, step: Step, where: fx.Node, low: float, total: fx.Node | None, inputs: Inputs
) -> fx.Node:
    device = tensor(inputs.query.node).device
    options = {"dtype": inputs.dtype, "device": device}
    rest = emit.call(torch.full, (), 0.0, **options) if total is None else total
    lowest = emit.call(torch.full, (), low, **options)
    sides = (rest, lowest) if step.inverted else (lowest, rest)
    return emit.call(torch.where, where, *sides)


def _in_dtype(
    emit: Emitter, step: Step, term: fx.Node, dtype: torch.dtype, constants: Constants
) -> fx.Node:
    """A term in the dtype of the attention, without loss.

    A narrower dtype loses nothing of a mask; a bias it would round.
    """
    own = tensor(term).dtype
    if own == dtype:
        return term
    if not own.is_floating_point:
        raise IllegalFusionError("what is added to the scores is no floating-point number")
    if torch.promote_types(own, dtype) == dtype:
        return cast(emit, term, dtype)
    assert step.term is not None
    if not made_of_booleans(step.term, constants):
        raise IllegalFusionError(
            f"mixed dtypes: the bias is {str(own)[6:]}, the attention {str(dtype)[6:]}, which"
            f" would round it; cast it to {str(dtype)[6:]} if that is meant"
        )
    return cast(emit, emit.method("clamp", term, min=torch.finfo(dtype).min), dtype)
