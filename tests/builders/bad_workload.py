"""Workloads of several programs, one kernel each, which a test makes bad in as many ways."""

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


class Nine(nn.Module):
    """Seven programs in a row, whose result counts for nothing, and two that are added up.

    The two are nearly one everywhere, whatever they are given. Each may be off by two per cent in
    bfloat16, which is one of the sum, but not both: that is more than results may differ by.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(9))
        with torch.no_grad():
            for layer in self.layers[7:]:
                layer.weight.uniform_(0.5 / width, 1.5 / width)

    def forward(self, x: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        a, b, c, d, e, f, g, h, i = self.layers
        y = a(torch.softmax(x * 0.5 + 1.0, -1))
        y = b(y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6))
        y = c((y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True) + 1.0))
        y = d(y / (1.0 + y.abs().amax(-1, keepdim=True)))
        y = e(torch.exp(y - y.amax(-1, keepdim=True)) * 0.25)
        y = f(torch.tanh(y) * y.sum(-1, keepdim=True))
        y = g(torch.sigmoid(y - y.mean(-1, keepdim=True)) * y)
        first = h(torch.tanh(u * u.mean(-1, keepdim=True)) + 1.0)
        second = i(torch.sigmoid(v * v.mean(-1, keepdim=True)) + 0.5)
        return first + second + 0.0 * y


def large() -> object:
    """For a GPU: each program is worth a kernel."""
    module = Nine(2048).to(torch.bfloat16).eval()
    return module, tuple(torch.randn(16384, 2048, dtype=torch.bfloat16) for _ in range(3))
