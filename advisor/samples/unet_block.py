"""One residual block of a diffusion UNet (Rombach et al., arXiv:2112.10752).

Group norm, SiLU and convolution twice, the embedding of the time step added in between.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS, EMBEDDING, GROUPS = 320, 1280, 32
BATCH, SIZE = 1, 32
DTYPE = torch.bfloat16
SEED = 0


class ResidualBlock(nn.Module):
    """`x + conv(silu(norm(conv(silu(norm(x))) + project(silu(time)))))`."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(GROUPS, CHANNELS)
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.project = nn.Linear(EMBEDDING, CHANNELS)
        self.second_norm = nn.GroupNorm(GROUPS, CHANNELS)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, images: Tensor, time: Tensor) -> Tensor:
        """[batch, channels, height, width] and [batch, embedding] to the former."""
        hidden = self.first(functional.silu(self.first_norm(images)))
        hidden = hidden + self.project(functional.silu(time))[:, :, None, None]
        changed: Tensor = self.second(functional.silu(self.second_norm(hidden)))
        return images + changed


def _build() -> tuple[ResidualBlock, tuple[Tensor, Tensor]]:
    torch.manual_seed(SEED)
    block = ResidualBlock().to(DTYPE)
    images = torch.randn(BATCH, CHANNELS, SIZE, SIZE, dtype=DTYPE)
    return block, (images, torch.randn(BATCH, EMBEDDING, dtype=DTYPE))


def inference() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The block in evaluation mode, its input [1, 320, 32, 32] and time embeddings [1, 1280]."""
    block, inputs = _build()
    return block.eval(), inputs


def train() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]]:
    """The block, AdamW, and a mean-square loss against a fixed target."""
    block, inputs = _build()
    target = torch.randn_like(inputs[0])

    def loss(model: nn.Module) -> Tensor:
        return functional.mse_loss(model(*inputs), target)

    return block.train(), torch.optim.AdamW(block.parameters(), lr=1e-4), loss
