"""Where cuDNN's attention may return wrong gradients, and calls that leave it out.

On Hopper and Blackwell PyTorch prefers cuDNN from 2.11 on; it is fast, and has faults that show in
gradients only, without an error:

- Its plan for the backward pass is kept by sizes and strides of query, key, value and mask, but not
  of the gradient that comes in (`aten/src/ATen/native/cudnn/MHA.cpp`, `MHACacheKeyWrapper`). Of two
  calls alike, one read as it is and one transposed first, the second gets wrong gradients.
- With a mask and a number of keys of 64 beyond a multiple of 128, the gradient of the query may be
  NaN (github.com/pytorch/pytorch/issues/196678).
- A mask of another dtype than the query is misread (github.com/pytorch/pytorch/pull/191612).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from advisor.apply.graph.products import tensor
from advisor.apply.graph.sdpa import AttentionCall, admitted, may_share_sizes
from advisor.apply.graph.spelling import Call, read, same_shape, value_of

LEFT_OUT = "cuDNN is left out: "
_KEPT = "it keeps a plan for gradients of one layout and uses it for others, with wrong results"
_MOST_STEPS = 8
_LINEAR = frozenset(("linear", "addmm", "matmul", "mm"))


def attention_without_cudnn(*args: Any, **kwargs: Any) -> torch.Tensor:
    """`scaled_dot_product_attention` by any kernel but cuDNN's, forward and backward.

    A graph that calls this is traced through it: what is compiled holds the kernel chosen here, and
    the gradient of a kernel is its own.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        return functional.scaled_dot_product_attention(*args, **kwargs)
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def leave_out_cudnn(ours: Sequence[AttentionCall], theirs: Sequence[AttentionCall]) -> list[str]:
    """Why cuDNN is left out of each of our calls, "" where it stays; their graphs are changed.

    `theirs` are the other calls of the same step, which stay what they are.
    """
    others = [call for call in theirs if _trains_on_cudnn(call) and not gradient_is_by_rows(call)]
    reasons = [_why_not(call, others) if _trains_on_cudnn(call) else "" for call in ours]
    for call, reason in zip(ours, reasons, strict=True):
        if reason:
            call.node.target = attention_without_cudnn
    return reasons


def _trains_on_cudnn(call: AttentionCall) -> bool:
    """Whether cuDNN may be chosen for a call whose gradient is needed; there is none under HIP."""
    trains = tensor(call.node).requires_grad
    return trains and torch.version.hip is None and "cudnn" in admitted(call)


def _why_not(call: AttentionCall, others: Sequence[AttentionCall]) -> str:
    """Why the gradients of a call by cuDNN may be wrong, or "" where they are right."""
    keys = tensor(call.key).shape[-2]
    if call.mask is not None and (not isinstance(keys, int) or keys % 128 == 64):
        many = keys if isinstance(keys, int) else "a number only known at run time of"
        return f"with a mask and {many} keys its gradient of the query may be NaN (pytorch #196678)"
    if not gradient_is_by_rows(call):
        return f"{_KEPT}; this result is read in another layout than models' usual one"
    if any(may_share_sizes(call, other) for other in others):
        return f"{_KEPT}; another call of these sizes is read in another layout"
    return ""


def gradient_is_by_rows(call: AttentionCall) -> bool:
    """Whether the incoming gradient is surely dense as [batch, length, heads, dim].

    It is where the result is transposed, its heads are merged, and a matrix product alone reads it,
    as in nearly every model: the gradient is a fresh product then, whatever follows.
    """
    node, order, value = call.node, "heads first", tensor(call.node)
    for _ in range(_MOST_STEPS):
        if len(node.users) != 1:
            return False
        reader = next(iter(node.users))
        step = read(reader)
        if order == "merged" and _multiplies(reader, step, node):
            return True
        after = value_of(reader)
        if step is None or step.in_place or after is None:
            return False
        if order == "heads first" and _swaps_heads(step, value.dim()):
            order = "heads third"
        elif order != "heads first" and step.name == "view" and _merges(value, after):
            order = "merged"
        elif not (step.name == "copy" and step["memory_format"] in (None, torch.contiguous_format)):
            return False
        node = reader
    return False


def _swaps_heads(step: Call, rank: int) -> bool:
    if rank != 4:
        return False
    if step.name == "transpose":
        return {step["dim0"] % rank, step["dim1"] % rank} == {1, 2}
    return step.name == "permute" and [axis % rank for axis in step["dims"]] == [0, 2, 1, 3]


def _merges(heads_first: torch.Tensor, merged: torch.Tensor) -> bool:
    """Whether a shape is [batch, length, heads * dim] or [batch * length, heads * dim]."""
    batch, heads, length, dim = heads_first.shape
    wide = heads * dim
    shape = tuple(merged.shape)
    return same_shape(shape, (batch, length, wide)) or same_shape(shape, (batch * length, wide))


def _multiplies(reader: fx.Node, step: Call | None, node: fx.Node) -> bool:
    """Whether a node is a product with a matrix on the right, and `node` its left operand."""
    if step is not None and step.name == "matmul":
        other = value_of(step["other"])
        return step["input"] is node and other is not None and other.dim() == 2
    name = getattr(reader.target, "__name__", "").partition(".")[0]
    if reader.op != "call_function" or name not in _LINEAR:
        return False
    place = 1 if name == "addmm" else 0
    return len(reader.args) > place and reader.args[place] is node
