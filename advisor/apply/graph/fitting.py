"""Gives calls of `scaled_dot_product_attention` arguments that a fused kernel takes.

A call that none takes runs as products and a softmax, which PyTorch does silently. What it refuses
is often no more than the memory order of a mask: a bias looked up in a table and permuted has its
heads last in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import torch
from torch import fx

from advisor.apply.graph.emit import Emitter, relax_layout
from advisor.apply.graph.products import Size, tensor
from advisor.apply.graph.records import Rewritten, Route, SdpaBackend
from advisor.apply.graph.sdpa import (
    AttentionCall,
    admitted,
    on_gpu,
    read_attention,
    why_math,
)
from advisor.apply.graph.spelling import differs, same_size
from advisor.errors import IllegalFusionError
from collectors.live.fx_builder import location_of

_ROUTE: Route = "scaled_dot_product_attention"
# A mask tensor does not say whether it follows from indices, which is what a block mask is made of.
OWN_CALL = (
    "the program calls scaled_dot_product_attention itself, and only attention in separate ops is "
    "rewritten to FlexAttention; call flex_attention there with the mask as a mask_mod"
)


def fit_own_calls(
    calls: Iterable[AttentionCall],
) -> list[tuple[Rewritten, fx.Node | None]]:
    """Rewrite the user's calls that fall to "math"; a record of each, and the call in its place.

    Calls that a fused kernel takes, and those off CUDA, stay and give none.
    """
    found: list[tuple[Rewritten, fx.Node | None]] = []
    for call in calls:
        reason = why_math(call) if on_gpu(call.query) else None
        if reason is None:
            continue
        what = f"{_ROUTE} of {in_words(call)} falls to math: {reason}"
        location = location_of(call.node)
        try:
            node, changes = fit(call)
        except IllegalFusionError as error:
            refused = Rewritten(what=what, location=location, route=_ROUTE, refused=error.what)
            found.append((refused, None))
            continue
        done = Rewritten(
            what=what, location=location, route=_ROUTE, backends=kernels_of(node), changes=changes,
            not_flex=OWN_CALL,
        )  # fmt: skip
        found.append((done, node))
    return found


def masked_calls(
    calls: Iterable[AttentionCall], changed: Collection[fx.Node | None]
) -> list[Rewritten]:
    """Of the user's calls with a mask that stay as they are, why FlexAttention has no part."""
    return [
        Rewritten(
            what=f"{_ROUTE} of {in_words(call)}", location=location_of(call.node), refused=OWN_CALL
        )
        for call in calls
        if call.mask is not None
        and call.node not in changed
        and not (on_gpu(call.query) and why_math(call))
    ]


def kernels_of(node: fx.Node) -> tuple[SdpaBackend, ...]:
    """The kernels admitted for a node that calls the library function."""
    call = read_attention(node)
    return () if call is None else admitted(call)


def fit(call: AttentionCall) -> tuple[fx.Node, tuple[str, ...]]:
    """Exchange the arguments of a call; the node that calls now, and what was changed, in words.

    Raises `IllegalFusionError` and changes nothing where no fused kernel would take the call then.
    """
    graph = call.node.graph
    before = set(graph.nodes)
    emit = Emitter(graph, call.node)
    try:
        better, changes = _fitted(emit, call)
        reason = why_math(better)
        if reason is not None:
            raise IllegalFusionError(reason)
    except IllegalFusionError:
        for node in reversed([n for n in graph.nodes if n not in before]):
            graph.erase_node(node)
        raise
    return _exchanged(emit, call, better), changes


def _fitted(emit: Emitter, call: AttentionCall) -> tuple[AttentionCall, tuple[str, ...]]:
    changes: list[str] = []
    if tensor(call.query).dim() == 3 and _axes(call) == {3}:
        call = _with_batch(emit, call)
        changes.append("batch and heads became two axes")
    spread = _spread(emit, call)
    if spread != call:
        changes.append("query, key and value are expanded to one batch and number of heads")
    call = spread
    for name in ("query", "key", "value", "mask"):
        node = getattr(call, name)
        if node is None:
            continue
        rows = mask_by_rows(emit, node) if name == "mask" else by_rows(emit, node)
        if rows is not node:
            call = replace(call, **{name: rows})
            changes.append(f"its {name} is copied row by row")
    if call.mask is not None:
        changes.append("a query that sees no key gives what the fused kernel gives for it")
    return call, tuple(changes)


def by_rows(emit: Emitter, node: fx.Node) -> fx.Node:
    """The tensor with the elements of its last axis next to each other in memory."""
    return _copied(emit, node) if differs(tensor(node).stride(-1), 1) else node


def mask_by_rows(emit: Emitter, mask: fx.Node) -> fx.Node:
    """The same of a mask; what was the same for all of a batch, or all heads, is not repeated."""
    fake = tensor(mask)
    if not differs(fake.stride(-1), 1):
        return mask
    for axis in range(fake.dim() - 2):
        if same_size(fake.stride(axis), 0) and not same_size(fake.shape[axis], 1):
            mask = emit.method("narrow", mask, axis, 0, 1)
    return _copied(emit, mask)


def _copied(emit: Emitter, node: fx.Node) -> fx.Node:
    return emit.call(torch.clone, node, memory_format=torch.contiguous_format)


def _axes(call: AttentionCall) -> set[int]:
    mask = call.fake_mask()
    extra = () if mask is None or mask.dim() == 2 else (mask.dim(),)
    return {*(item.dim() for item in call.tensors()), *extra}


def _with_batch(emit: Emitter, call: AttentionCall) -> AttentionCall:
    """[heads, length, dim] as [1, heads, length, dim]."""
    names = ["query", "key", "value"]
    if call.mask is not None and tensor(call.mask).dim() == 3:
        names.append("mask")
    return replace(
        call, **{name: emit.method("unsqueeze", getattr(call, name), 0) for name in names}
    )


def _spread(emit: Emitter, call: AttentionCall) -> AttentionCall:
    """With one batch, and one number of heads where no kernel takes fewer."""
    if any(item.dim() != 4 for item in call.tensors()):
        return call
    if call.grouped is True and why_math(call) is not None:
        call = _with_all_heads(emit, call, tensor(call.query).shape[1])
    batch, heads = (_widest([item.shape[axis] for item in call.tensors()]) for axis in (0, 1))
    for name in ("query", "key", "value"):
        node = getattr(call, name)
        own = tensor(node).shape
        if call.grouped is True or not (differs(own[0], batch) or differs(own[1], heads)):
            continue
        if not all(isinstance(size, int) for size in (*own, batch, heads)):
            raise IllegalFusionError("its sizes are only known at run time")
        if own[0] not in (1, batch) or own[1] not in (1, heads):
            raise IllegalFusionError("its batches or heads do not broadcast")
        call = replace(call, **{name: emit.method("expand", node, batch, heads, -1, -1)})
    return call


def _widest(sizes: Sequence[Size]) -> Size:
    """The size that the others broadcast to."""
    return next((size for size in sizes if differs(size, 1)), sizes[0])


def _with_all_heads(emit: Emitter, call: AttentionCall, heads: Size) -> AttentionCall:
    """Heads of key and value repeated, as the library function repeats them itself."""
    for name in ("key", "value"):
        node = getattr(call, name)
        own = tensor(node).shape[1]
        if not isinstance(own, int) or not isinstance(heads, int):
            raise IllegalFusionError("its sizes are only known at run time")
        if own != heads:
            repeated = emit.method("repeat_interleave", node, heads // own, 1)
            call = replace(call, **{name: repeated})
    return replace(call, grouped=False)


def _exchanged(emit: Emitter, call: AttentionCall, better: AttentionCall) -> fx.Node:
    """A call with the better arguments in the place of the first one."""
    keywords = {
        "attn_mask": better.mask,
        "dropout_p": better.dropout,
        "is_causal": better.causal,
        "scale": better.scale,
        "enable_gqa": better.grouped,
    }
    operands = (better.query, better.key, better.value)
    value = tensor(call.node)
    flat = tensor(better.query).dim() != value.dim()
    target = call.node.target
    assert callable(target)
    node = emit.opaque(target, operands, keywords, value[None] if flat else value)
    result = emit.method("squeeze", node, 0) if flat else node
    call.node.replace_all_uses_with(result)
    call.node.graph.erase_node(call.node)
    relax_layout(emit, result)
    return node


def in_words(call: AttentionCall) -> str:
    """The sizes of a call."""
    query, key, _ = call.tensors()
    heads = query.shape[-3] if query.dim() > 2 else 1
    masked = " with a mask" if call.mask is not None else ""
    sizes = (heads, query.shape[-1], query.shape[-2], key.shape[-2])
    of, dim, queries, keys = (_count(size) for size in sizes)
    return f"{of} heads of {dim}, {queries} queries by {keys} keys{masked}"


def _count(size: Size) -> str:
    return str(size) if isinstance(size, int) else "any number of"
