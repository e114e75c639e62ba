"""Losses beside an exacter run, of what only a GPU's libraries do otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advisor.pipeline.training import LossCurves, loss_curves
from collectors.live.workload import Workload

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")


class Recurrent(nn.Module):
    """cuDNN drops between the layers, and computes no gradient of layers that evaluate."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(64, 64, num_layers=2, dropout=0.5, batch_first=True)
        self.norm, self.drop = nn.BatchNorm1d(64), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last: torch.Tensor = self.inner(x)[0][:, -1]
        normed: torch.Tensor = self.norm(self.drop(last))
        return normed


def make() -> Workload:
    """Training of [16, 12, 64] float32."""
    torch.manual_seed(0)
    with CUDA:
        module, data = Recurrent(), torch.randn(16, 12, 64)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)

    def loss(part: Callable[..., torch.Tensor]) -> torch.Tensor:
        return (part(data) - 1.0).square().mean()

    return Workload("w", "training", CUDA, module, optimizer=optimizer, loss=loss)


def test_recurrent_layers_are_judged_without_dropout() -> None:
    def unchanged() -> tuple[Workload, Callable[..., Any]]:
        twin = make()
        return twin, twin.part

    found = loss_curves(make, unchanged)
    assert isinstance(found, LossCurves)
    assert found.dropout_off
    assert found.exact_type == "float64"
    assert found.eager_divergence < 1e-3
    assert found.agree(torch.finfo(torch.float32).eps)
