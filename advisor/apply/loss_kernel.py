"""The pass over rows of logits as one Triton kernel: two reads of a row and one write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from advisor.apply.loss_rows import RowTask

# The widest piece of a row that its program holds at once.
MOST_COLUMNS = 4_096
WARPS = 8


def run_on_rows(
    logits: torch.Tensor, labels: torch.Tensor, factor: torch.Tensor, task: RowTask
) -> torch.Tensor:
    """Losses [N] in float32 of logits [N, V], whose rows are contiguous, for labels [N].

    A label that names no class gives NaN, where eager stops with an assertion.
    """
    rows, classes = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows == 0:
        return losses
    block = min(triton.next_power_of_2(classes), MOST_COLUMNS)
    with torch.cuda.device_of(logits):
        loss_rows[(rows,)](
            logits,
            labels,
            factor,
            losses,
            logits.stride(0),
            labels.stride(0),
            classes,
            task.ignore_index,
            task.label_smoothing,
            task.cut.inner,
            task.cut.outer,
            capped=task.cut.capped,
            gradients=task.gradients,
            block=block,
            num_warps=WARPS if block == MOST_COLUMNS else 4,
        )
    return losses


@triton.jit  # type: ignore[untyped-decorator]
def _bent(raw, inner, outer, capped: tl.constexpr):  # type: ignore[no-untyped-def]
    """The logit that softmax sees."""
    scaled = raw * inner
    if capped:
        # tanh by an exponential that cannot overflow: e^-2x as 2^(-2x / ln 2).
        power = tl.exp2(-2.8853900817779268 * tl.abs(scaled))
        size = (1.0 - power) / (1.0 + power)
        scaled = tl.where(scaled < 0, -size, size)
    return outer * scaled


@triton.jit  # type: ignore[untyped-decorator]
def _slope(z, inner, outer, capped: tl.constexpr):  # type: ignore[no-untyped-def]
    """The derivative of a logit that softmax sees by the raw one."""
    slope = inner * outer
    if capped:
        tanh = z / outer
        slope = slope * (1.0 - tanh * tanh)
    return slope


@triton.jit  # type: ignore[untyped-decorator]
def loss_rows(  # type: ignore[no-untyped-def]
    logits,
    labels,
    factor,
    losses,
    row_stride,
    label_stride,
    classes,
    ignore_index,
    smoothing,
    inner,
    outer,
    capped: tl.constexpr,
    gradients: tl.constexpr,
    block: tl.constexpr,
):
    """loss = logsumexp(z) - (1 - s) z[label] - s mean(z), dz = softmax(z) - (1 - s) onehot - s/V

    dz is multiplied with `factor` and stored in the place of the logits.
    """
    row = tl.program_id(0).to(tl.int64)
    start_of_row = logits + row * row_stride
    label = tl.load(labels + row * label_stride)
    counts = label != ignore_index
    known = (label >= 0) & (label < classes)
    # Read before the row is written to: the reductions below wait for all warps.
    raw_target = tl.load(start_of_row + label, mask=known & counts, other=0.0).to(tl.float32)
    target = _bent(raw_target, inner, outer, capped)
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    added = tl.full((), 0.0, tl.float32)
    for start in range(0, classes, block):
        columns = start + tl.arange(0, block)
        inside = columns < classes
        raw = tl.load(start_of_row + columns, mask=inside, other=0.0).to(tl.float32)
        z = _bent(raw, inner, outer, capped)
        added += tl.sum(tl.where(inside, z, 0.0), 0)
        z = tl.where(inside, z, float("-inf"))
        higher = tl.maximum(largest, tl.max(z, 0))
        # e^x as 2^(x / ln 2), which a GPU has an instruction for.
        total = total * tl.exp2(1.4426950408889634 * (largest - higher))
        total += tl.sum(tl.exp2(1.4426950408889634 * (z - higher)), 0)
        largest = higher
    whole = largest + tl.log(total)
    loss = whole - (1.0 - smoothing) * target
    if smoothing > 0.0:
        loss -= smoothing * added / classes
    loss = tl.where(known, loss, float("nan"))
    tl.store(losses + row, tl.where(counts, loss, 0.0))
    if gradients:
        times = tl.load(factor)
        for start in range(0, classes, block):
            columns = start + tl.arange(0, block)
            inside = columns < classes
            raw = tl.load(start_of_row + columns, mask=inside, other=0.0).to(tl.float32)
            z = _bent(raw, inner, outer, capped)
            hit = tl.where(columns == label, 1.0 - smoothing, 0.0)
            by_z = (
                (tl.exp2(1.4426950408889634 * (z - whole)) - hit - smoothing / classes)
                * _slope(z, inner, outer, capped)
                * times
            )
            by_z = tl.where(counts, by_z, 0.0)
            tl.store(start_of_row + columns, by_z, mask=inside)
