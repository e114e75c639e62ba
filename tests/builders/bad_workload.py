"""A workload of five programs, one kernel each, which a test makes bad in five ways."""

from __future__ import annotations

import torch
from torch import nn

from tests.builders.bad_kernels import plant_from_environment

plant_from_environment()
WIDTH = 64


class Programs(nn.Module):
    """Five row programs with matrix products between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third, fourth = self.layers
        x = first(torch.softmax(x * 0.5 + 1.0, -1))
        x = second(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))
        x = third((x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1.0))
        x = fourth(x / (1.0 + x.abs().amax(-1, keepdim=True)))
        return torch.log(1.0 + torch.exp(x - x.amax(-1, keepdim=True)).sum(-1, keepdim=True) + x**2)


def small() -> object:
    """For the interpreter."""
    return Programs(WIDTH).eval(), (torch.randn(24, WIDTH),)


def large() -> object:
    """For a GPU: each program is worth a kernel."""
    return Programs(4096).eval(), (torch.randn(8192, 4096),)
