"""One bottleneck block of ResNet-50 (He et al., arXiv:1512.03385), channels last.

Convolution, batch norm and ReLU in threes, then the residual. Four images of 56 x 56.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CHANNELS, NARROW = 256, 64
BATCH, SIZE = 4, 56
DTYPE = torch.bfloat16
SEED = 0


class Bottleneck(nn.Module):
    """`relu(x + norm(expand(relu(norm(middle(relu(norm(reduce(x)))))))))`."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(CHANNELS, NARROW, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(NARROW)
        self.middle = nn.Conv2d(NARROW, NARROW, 3, padding=1, bias=False)
        self.middle_norm = nn.BatchNorm2d(NARROW)
        self.expand = nn.Conv2d(NARROW, CHANNELS, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(CHANNELS)

    def forward(self, images: Tensor) -> Tensor:
        """[batch, channels, height, width] to the same."""
        hidden = functional.relu(self.reduce_norm(self.reduce(images)))
        hidden = functional.relu(self.middle_norm(self.middle(hidden)))
        hidden = self.expand_norm(self.expand(hidden))
        return functional.relu(hidden + images)


def _build() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(SEED)
    block: nn.Module = Bottleneck().to(DTYPE)
    block = block.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(BATCH, CHANNELS, SIZE, SIZE, dtype=DTYPE)
    return block, images.to(memory_format=torch.channels_last)


def inference() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The block in evaluation mode and its input [4, 256, 56, 56]."""
    block, images = _build()
    return block.eval(), (images,)


def train() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]]:
    """The block, SGD with momentum, and a mean-square loss against a fixed target."""
    block, images = _build()
    target = torch.randn(images.shape)

    def loss(model: nn.Module) -> Tensor:
        return functional.mse_loss(model(images).float(), target)

    return block.train(), torch.optim.SGD(block.parameters(), lr=0.1, momentum=0.9), loss
