"""Cross-entropy of a projection onto a vocabulary, a few rows of logits at a time.

With z = h Wᵀ + b, cut by c·tanh(a z) or scaled by a number, and p = softmax(z) a row's loss is

    (1 - s) (logsumexp(z) - z[label]) + s (logsumexp(z) - mean(z)),    dz = p - (1 - s) onehot - s/V

so that loss and gradient follow from one look at a row, and with dh = dz W, dW = Σ dzᵀ h and
db = Σ dz its logits are needed no more: [rows, V] never exists whole. Source: Liger-Kernel's fused
linear cross-entropy (P.-L. Hsu et al., 2024). What a mean divides by is part of dz, as it is in
eager's, so that both round alike; but not in float16, where small numbers would be lost before a
gradient scaler's factor reaches them: there it multiplies the gradients in the backward pass.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch

from advisor.apply.loss_rows import AS_IT_IS, Cut, RowTask, pass_over_rows
from advisor.model.loss_chunks import rows_of_chunk

Reduction = Literal["mean", "sum"]


def chunked_cross_entropy(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    *,
    compute: torch.dtype,
    result: torch.dtype,
    reduction: Reduction = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    cut: Cut = AS_IT_IS,
    chunk: int = 0,
) -> torch.Tensor:
    """Cross-entropy of `cut(rows @ weight.T + bias)` [N, V] with `labels` [N], a scalar.

    rows [N, D], weight [V, D], bias [V]; the products are in `compute`, softmax and sums in float32
    at least, the loss in `result`. `chunk` rows of logits exist at once, 0: chosen from rows and
    memory. A mean is over labels that are not `ignore_index`, NaN if there is none.
    """
    operands = [None if x is None else x.to(compute) for x in (rows, weight, bias)]
    graded = torch.is_grad_enabled()
    wanted = [graded and x is not None and x.requires_grad for x in operands]
    one = torch.ones((), dtype=_wide(compute), device=rows.device)
    counted = (labels != ignore_index).sum()
    mean = one / counted.clamp(min=1) if reduction == "mean" else one
    early, late = (one, mean) if compute == torch.float16 else (mean, one)
    numbers = list(map(float, cut))
    total, *_ = _chunked(
        *operands, labels, early, ignore_index, label_smoothing, numbers, wanted, chunk
    )
    loss: torch.Tensor = total * late
    if reduction == "mean":
        # Of no label at all the mean is NaN, its gradient 0, as eager has it.
        loss = loss + torch.where(counted == 0, torch.nan, 0.0)
    return loss.to(result)


@torch.library.custom_op("fusion_advisor::chunked_cross_entropy", mutates_args=())
def _chunked(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    factor: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    cut: list[float],
    wanted: list[bool],
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`factor` [] times the sum over rows, and its gradients by rows, weight and bias.

    Gradients that are not `wanted` are [0].
    """
    total = rows.new_zeros((), dtype=_wide(rows.dtype))
    gradients = _gradients(rows, weight, wanted, total.dtype)
    cut_by = Cut(cut[0], bool(cut[1]), cut[2])
    task = RowTask(ignore_index, label_smoothing, cut_by, any(wanted))
    step = chunk or rows_of_chunk(rows.shape[0], weight.shape[0], rows.element_size())
    _add_pieces(total, gradients, (rows, weight, bias, labels, factor), task, wanted, step)
    # The logits of the last piece are gone: the sum in the type of the weight may take their place.
    by_rows, by_weight, by_bias = gradients
    return total * factor, by_rows, by_weight.to(held_dtype(weight.dtype)), by_bias


def _add_pieces(
    total: torch.Tensor,
    gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor],
    task: RowTask,
    wanted: list[bool],
    step: int,
) -> None:
    """Add the losses to `total`, and put the gradients in their places, `step` rows at a time.

    `given` are rows, weight, bias, labels and factor.
    """
    by_rows, by_weight, by_bias = gradients
    rows, weight, bias, labels, factor = given
    buffer = rows.new_empty(min(step, rows.shape[0]), weight.shape[0])
    with torch.autocast(rows.device.type, enabled=False):
        for start in range(0, rows.shape[0], step):
            here = slice(start, start + step)
            part = rows[here]
            logits = buffer[: part.shape[0]]
            _project(part, weight, bias, logits)
            total += pass_over_rows(logits, labels[here], factor, task).sum()
            if wanted[0]:
                torch.mm(logits, weight, out=by_rows[here])
            if wanted[1]:
                _add_product(by_weight, logits, part)
            if wanted[2]:
                by_bias += logits.sum(0, dtype=total.dtype)


@_chunked.register_fake
def _fake(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    factor: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    cut: list[float],
    wanted: list[bool],
    chunk: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    total = rows.new_empty((), dtype=_wide(rows.dtype))
    by_rows, by_weight, by_bias = _gradients(rows, weight, wanted, total.dtype)
    return total, by_rows, by_weight.to(held_dtype(weight.dtype)), by_bias


def _gradients(
    rows: torch.Tensor, weight: torch.Tensor, wanted: list[bool], wide: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where gradients by rows, weight and bias are put; sums over rows start at zero."""
    return (
        rows.new_empty(rows.shape if wanted[0] else (0,)),
        weight.new_zeros(weight.shape if wanted[1] else (0,), dtype=wide),
        weight.new_zeros((weight.shape[0] if wanted[2] else 0,), dtype=wide),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:])
    ctx.dtypes = [None if item is None else item.dtype for item in inputs[:3]]
    ctx.wanted = inputs[8]


def _scaled(ctx: Any, of_total: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    # The factor in its own type: a scalar would be rounded to that of the gradient.
    found = [
        (gradient.to(of_total.dtype) * of_total).to(dtype) if wanted else None
        for gradient, dtype, wanted in zip(ctx.saved_tensors, ctx.dtypes, ctx.wanted, strict=True)
    ]
    return (*found, *(None,) * 7)


_chunked.register_autograd(_scaled, setup_context=_keep)


def held_dtype(weight: torch.dtype) -> torch.dtype:
    """What a gradient by the weight is kept in: float16 has no room for a sum over rows."""
    return torch.float32 if weight == torch.float16 else weight


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _project(
    part: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """`out` becomes part @ weight.T + bias."""
    if bias is None:
        torch.mm(part, weight.t(), out=out)
    else:
        torch.addmm(bias, part, weight.t(), out=out)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """`total` [V, D] grows by left.T @ right, added up in its own, wider type."""
    if left.dtype == total.dtype:
        total.addmm_(left.t(), right)
    elif left.device.type != "cuda" or torch.version.hip is not None:
        total.addmm_(left.t().to(total.dtype), right.to(total.dtype))
    elif _adds_to_wider(left.device, left.dtype):
        _add_to_wider(total, left.t(), right)
    else:
        total += torch.mm(left.t(), right, out_dtype=total.dtype)


def _add_to_wider(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    torch.ops.aten.addmm.dtype_out(total, left, right, total.dtype, out=total)


@functools.cache
def _adds_to_wider(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this PyTorch adds a product of `dtype` to float32 in place: not all that have the op.

    Tried once, in the first step that is run, which no CUDA graph captures.
    """
    small = torch.ones(16, 16, dtype=dtype, device=device)
    total = torch.ones(16, 16, dtype=torch.float32, device=device)
    try:
        _add_to_wider(total, small, small)
    except RuntimeError:
        return False
    return bool((total == 17.0).all())
