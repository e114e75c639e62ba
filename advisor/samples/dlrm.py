"""A recommendation model (DLRM, Naumov et al., arXiv:1906.00091), float32.

Dense features through a small network, one embedding a categorical feature, all pairwise dot
products, and a network over those.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

DENSE, CATEGORIES, ROWS, WIDTH = 13, 26, 10_000, 64
PAIRS = (CATEGORIES + 1) * CATEGORIES // 2
BATCH = 1024
SEED = 0


def network(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them and behind the last."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """The probability of a click for each row of features."""

    first: Tensor
    second: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, WIDTH) for _ in range(CATEGORIES))
        self.bottom = network(DENSE, 512, 256, WIDTH)
        self.top = nn.Sequential(*network(WIDTH + PAIRS, 512, 256), nn.Linear(256, 1))
        first, second = torch.tril_indices(CATEGORIES + 1, CATEGORIES + 1, offset=-1)
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """[batch, 13] floats and [batch, 26] indices to [batch, 1]."""
        base = self.bottom(dense)
        looked_up = [table(categories[:, number]) for number, table in enumerate(self.tables)]
        features = torch.stack([base, *looked_up], dim=1)
        products = features @ features.transpose(1, 2)
        pairs = products[:, self.first, self.second]
        return torch.sigmoid(self.top(torch.cat([base, pairs], dim=1)))


def _build() -> tuple[DLRM, tuple[Tensor, Tensor]]:
    torch.manual_seed(SEED)
    model = DLRM()
    return model, (torch.randn(BATCH, DENSE), torch.randint(0, ROWS, (BATCH, CATEGORIES)))


def inference() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model in evaluation mode, dense features [1024, 13] and categories [1024, 26]."""
    model, inputs = _build()
    return model.eval(), inputs


def train() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]]:
    """The model, AdamW, and binary cross-entropy against fixed clicks."""
    model, inputs = _build()
    clicks = torch.rand(BATCH, 1).round()

    def loss(module: nn.Module) -> Tensor:
        return functional.binary_cross_entropy(module(*inputs), clicks)

    return model.train(), torch.optim.AdamW(model.parameters(), lr=1e-4), loss
