"""Losses over a vocabulary as model code writes them, and look-alikes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor
BATCH, LENGTH, FEATURES, CLASSES = 2, 9, 16, 53


@dataclass(frozen=True)
class LossCase:
    """A loss of hidden [2, 9, 16], weight [53, 16], bias [53] and labels [2, 9]."""

    function: Callable[..., Any]
    expected: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.function.__name__


def loss_inputs(dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (BATCH, LENGTH, FEATURES), (CLASSES, FEATURES), (CLASSES,)
    # Representable in every dtype, so that all compute on the same numbers.
    made = [torch.randn(s, generator=generator).to(torch.bfloat16).to(dtype) for s in shapes]
    labels = torch.randint(0, CLASSES, (BATCH, LENGTH), generator=generator)
    labels[0, :3] = -100
    labels[1, 5] = -100
    return [*(x.requires_grad_() for x in made), labels]


def widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def plain(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(h, w).view(-1, CLASSES), y.view(-1))


def shifted_and_upcast(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """Llama of older transformers: the logits are cut, the labels moved."""
    logits = widened(functional.linear(h, w))
    logits = logits[..., :-1, :].contiguous().view(-1, CLASSES)
    return functional.cross_entropy(logits, y[..., 1:].contiguous().view(-1))


def labels_padded(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """Newer transformers: labels move, the sum is divided by a number of the caller."""
    logits = widened(functional.linear(h, w))
    labels = functional.pad(y, (0, 1), value=-100)[..., 1:].contiguous().view(-1)
    loss = functional.cross_entropy(
        logits.view(-1, CLASSES), labels, ignore_index=-100, reduction="sum"
    )
    return loss / 12


def nano_gpt(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = h @ w.t()
    return functional.cross_entropy(
        logits.view(-1, logits.size(-1)), y.masked_fill(y < 0, -1).view(-1), ignore_index=-1
    )


def smoothed_with_bias(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = functional.linear(h, w, b).flatten(0, 1)
    return functional.cross_entropy(logits, y.flatten(), label_smoothing=0.1)


def module_of_loss(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    return torch.nn.CrossEntropyLoss(reduction="sum")(
        functional.linear(h, w, b).reshape(-1, CLASSES), y.reshape(-1)
    )


def classes_in_the_middle(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(h, w).transpose(1, 2), y)


def permuted_classes(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(h, w, b).permute(0, 2, 1), y)


def log_likelihood(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logarithms = functional.log_softmax(functional.linear(h, w), dim=-1, dtype=widened(h).dtype)
    return functional.nll_loss(logarithms.view(-1, CLASSES), y.view(-1))


def log_likelihood_of_rows(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = widened(functional.linear(h, w, b)).view(-1, CLASSES)
    return functional.nll_loss(torch.log_softmax(logits, 1), y.view(-1), reduction="sum")


def soft_capped(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """Gemma 2."""
    logits = functional.linear(h, w)
    logits = torch.tanh(widened(logits) / 3.0) * 3.0
    return functional.cross_entropy(logits.view(-1, CLASSES), y.view(-1))


def scaled(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """Cohere multiplies, Granite divides."""
    logits = 0.5 * widened(functional.linear(h, w)) / 4.0
    return functional.cross_entropy(logits.view(-1, CLASSES), y.view(-1))


def weight_kept_transposed(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    kernel = w.t().contiguous()
    return functional.cross_entropy(torch.matmul(h, kernel).view(-1, CLASSES), y.view(-1))


def einsum_projection(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = torch.einsum("bsd,vd->bsv", h, w)
    return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def first_rows_only(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = functional.linear(h, w)[:, 2:7]
    return functional.cross_entropy(logits.reshape(-1, CLASSES), y[:, 2:7].reshape(-1))


def two_losses(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """Two heads with one weight, as in multi-token prediction."""
    first = functional.cross_entropy(functional.linear(h, w).view(-1, CLASSES), y.view(-1))
    second = functional.linear(torch.tanh(h), w)[:, :-1].reshape(-1, CLASSES)
    return first + 0.5 * functional.cross_entropy(second, y[:, 1:].reshape(-1))


CHUNKED = (
    LossCase(plain, {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}),
    LossCase(shifted_and_upcast),
    LossCase(labels_padded, {"reduction": "sum"}),
    LossCase(nano_gpt, {"ignore_index": -1}),
    LossCase(smoothed_with_bias, {"label_smoothing": 0.1}),
    LossCase(module_of_loss, {"reduction": "sum"}),
    LossCase(classes_in_the_middle),
    LossCase(permuted_classes),
    LossCase(log_likelihood),
    LossCase(log_likelihood_of_rows, {"reduction": "sum"}),
    LossCase(soft_capped, {"cut": (1 / 3, True, 3.0)}),
    LossCase(scaled, {"cut": (0.125, False, 1.0)}),
    LossCase(weight_kept_transposed),
    LossCase(einsum_projection),
    LossCase(first_rows_only),
)


def logits_returned(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    logits = functional.linear(h, w)
    return functional.cross_entropy(logits.view(-1, CLASSES), y.view(-1)), logits


def accuracy_counted(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    logits = functional.linear(h, w).view(-1, CLASSES)
    hits = (logits.argmax(-1) == y.view(-1)).sum()
    return functional.cross_entropy(logits, y.view(-1)), hits


def regularised(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """The z-loss of PaLM needs the logarithm of each row's sum."""
    logits = functional.linear(h, w).view(-1, CLASSES)
    return functional.cross_entropy(logits, y.view(-1)) + logits.logsumexp(-1).square().mean()


def each_row(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = functional.linear(h, w).view(-1, CLASSES)
    return functional.cross_entropy(logits, y.view(-1), reduction="none").sum()


def weighted_classes(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = functional.linear(h, w).view(-1, CLASSES)
    return functional.cross_entropy(logits, y.view(-1), weight=b.detach().exp())


def soft_labels(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = functional.linear(h, w).view(-1, CLASSES)
    return functional.cross_entropy(logits, torch.softmax(logits.detach(), -1))


def normalised_logits(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = torch.relu(functional.linear(h, w)).view(-1, CLASSES)
    return functional.cross_entropy(logits, y.view(-1))


def capped_twice(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = functional.linear(h, w).tanh().mul(2.0).tanh().view(-1, CLASSES)
    return functional.cross_entropy(logits, y.view(-1))


def weight_overwritten(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    w = w * 1.0
    logits = functional.linear(h, w).view(-1, CLASSES)
    w.mul_(0.0)
    return functional.cross_entropy(logits, y.view(-1)) + w.sum()


def logits_overwritten(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    logits = functional.linear(h, w).view(-1, CLASSES)
    logits[:, 0] = -100.0
    return functional.cross_entropy(logits, y.view(-1))


def logits_without_gradient(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        logits = functional.linear(h, w)
    return functional.cross_entropy(logits.view(-1, CLASSES), y.view(-1)) * b.sum()


def given_logits(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(h.view(-1, FEATURES), y.view(-1) % FEATURES)


def other_loss(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(functional.linear(h, w), b.expand(BATCH, LENGTH, -1))


WHOLE: tuple[tuple[LossCase, str | None], ...] = (
    (LossCase(logits_returned), "leave the graph beside the loss: return the loss alone"),
    (LossCase(accuracy_counted), "the logits are also read by Tensor.argmax"),
    (LossCase(regularised), "the logits are also read by Tensor.logsumexp"),
    (LossCase(each_row), "each row has a gradient of its own"),
    (LossCase(weighted_classes), "weights its classes"),
    (LossCase(soft_labels), "probabilities, not classes"),
    (LossCase(normalised_logits), "relu between the projection and the loss"),
    (LossCase(capped_twice), "bent by tanh twice"),
    (LossCase(weight_overwritten), "Tensor.mul_ writes in place"),
    (LossCase(logits_overwritten), "setitem"),
    (LossCase(logits_without_gradient), "_set_grad_enabled changes the mode"),
    (LossCase(given_logits), "no projection in the same graph"),
    (LossCase(other_loss), None),
)
