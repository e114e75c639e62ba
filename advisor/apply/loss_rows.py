"""Loss and gradient of some rows of logits in one go, the gradient in the place of the logits."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import torch


class Cut(NamedTuple):
    """What is done to a logit: `outer * tanh(inner * z)` if `capped`, else `outer * inner * z`."""

    inner: float = 1.0
    capped: bool = False
    outer: float = 1.0


AS_IT_IS = Cut()


class RowTask(NamedTuple):
    """What a pass over rows computes; without `gradients` the logits stay as they are."""

    ignore_index: int
    label_smoothing: float
    cut: Cut
    gradients: bool


def pass_over_rows(
    logits: torch.Tensor, labels: torch.Tensor, factor: torch.Tensor, task: RowTask
) -> torch.Tensor:
    """Losses [N] of logits [N, V] for labels [N], in float32 at least.

    With `task.gradients` the logits become the gradient by them of `factor` [] times the sum of the
    losses; `factor` has the type of the losses. A row whose label is `task.ignore_index` has loss
    and gradient 0.
    """
    kernel = logits.device.type == "cuda" and logits.dtype != torch.float64
    if kernel and importlib.util.find_spec("triton") is not None:
        from advisor.apply.loss_kernel import run_on_rows

        return run_on_rows(logits, labels, factor, task)
    return rows_in_torch(logits, labels, factor, task)


def rows_in_torch(
    logits: torch.Tensor, labels: torch.Tensor, factor: torch.Tensor, task: RowTask
) -> torch.Tensor:
    """The same by PyTorch's own ops, wherever there is no kernel."""
    cut, smoothing = task.cut, task.label_smoothing
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) * cut.inner
    bent = scaled.tanh() if cut.capped else scaled
    z = bent * cut.outer
    ignored = labels == task.ignore_index
    places = labels.masked_fill(ignored, 0).unsqueeze(1).long()
    whole = z.logsumexp(1)
    losses = whole - (1 - smoothing) * z.gather(1, places).squeeze(1)
    if smoothing:
        losses = losses - smoothing * z.mean(1)
    if task.gradients:
        by_z = (z - whole.unsqueeze(1)).exp()
        by_z.scatter_add_(1, places, by_z.new_full((), smoothing - 1).expand_as(places))
        by_z -= smoothing / z.shape[1]
        if cut.capped:
            by_z *= 1 - bent.square()
        by_z *= cut.inner * cut.outer * factor
        logits.copy_(by_z.masked_fill_(ignored.unsqueeze(1), 0.0))
    return losses.masked_fill(ignored, 0.0)
