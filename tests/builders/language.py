"""Small language models as training scripts have them: losses outside, or beside the logits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from collectors.live.loss_calls import LossOfParts
from collectors.live.workload import Workload

CPU = torch.device("cpu")
# Logits are by far the largest tensor, and several pieces.
ROWS, LENGTH, CLASSES, FEATURES = 4, 512, 96, 16
LOGITS_BYTES = ROWS * LENGTH * CLASSES * 4
Loss = Callable[[Any], torch.Tensor]
SCALER = torch.amp.GradScaler("cpu", init_scale=1024.0)


class Language(nn.Module):
    """Logits, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, FEATURES)
        self.body = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.tanh(self.body(self.tokens(tokens))))
        return logits


@dataclass
class Output:
    """What model libraries return."""

    loss: torch.Tensor | None
    logits: torch.Tensor


class Causal(Language):
    """The loss beside the logits, as the causal models of Hugging Face return it."""

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = super().forward(tokens)
        if labels is None:
            return Output(None, logits)
        shifted = functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = functional.cross_entropy(wide.view(-1, CLASSES), shifted.view(-1))
        return Output(loss, logits)


class Pair(Language):
    """Logits and loss as a tuple, as nanoGPT returns them."""

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = super().forward(tokens)
        if labels is None:
            return logits, None
        return logits, functional.cross_entropy(logits.view(-1, CLASSES), labels.view(-1))


def tokens(seed: int = 1) -> torch.Tensor:
    return torch.randint(0, CLASSES, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))


TOKENS, LABELS = tokens(), tokens(2)
BATCHES = DataLoader(TensorDataset(TOKENS, LABELS), batch_size=ROWS)


def outside(model: Any) -> torch.Tensor:
    """As a training script writes it."""
    return functional.cross_entropy(model(TOKENS).view(-1, CLASSES), LABELS.view(-1))


def beside(model: Any) -> torch.Tensor:
    loss: torch.Tensor = model(TOKENS, labels=LABELS).loss
    return loss


def of_pair(model: Any) -> torch.Tensor:
    _, loss = model(TOKENS, LABELS)
    result: torch.Tensor = loss
    return result


def classes_second(model: Any) -> torch.Tensor:
    loss: torch.Tensor = nn.CrossEntropyLoss(ignore_index=3)(model(TOKENS).mT, LABELS)
    return loss


def of_labels(model: Any, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(TOKENS).view(-1, CLASSES), labels.view(-1))


def cast_automatically(model: Any) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return outside(model)


def scaled(model: Any) -> torch.Tensor:
    loss: torch.Tensor = SCALER.scale(outside(model))
    return loss


def checked(model: Any) -> torch.Tensor:
    loss = outside(model)
    if not math.isfinite(float(loss.detach())):
        raise ValueError("the loss is not finite")
    return loss


def of_batches() -> Loss:
    batches = itertools.cycle(BATCHES)

    def loss(model: Any) -> torch.Tensor:
        given, labels = next(batches)
        return functional.cross_entropy(model(given).view(-1, CLASSES), labels.view(-1))

    return loss


def training(
    loss: Loss, make: Callable[[], nn.Module] = Language, dtype: torch.dtype = torch.float32
) -> Workload:
    """A training step on the CPU, from the same weights each time."""
    torch.manual_seed(0)
    model = make().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Workload(
        "language", "training", CPU, model, optimizer=optimizer, loss=LossOfParts(loss)
    )  # fmt: skip
