"""One Mamba block (Gu and Dao, arXiv:2312.00752), its selective scan a Python loop over tokens.

That is how the model runs where its own kernels are not installed. Two sequences of 32 tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN, INNER, STATES, RANK, WINDOW = 512, 1024, 16, 32, 4
BATCH, TOKENS = 2, 32
DTYPE = torch.bfloat16
SEED = 0


class RMSNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + epsilon)`, the mean taken in float32."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] in any float dtype to the same."""
        wide = hidden.to(torch.float32)
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * (wide * scale).to(hidden.dtype)


class Mixer(nn.Module):
    """Depthwise causal convolution, then a state space whose step and maps depend on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.convolve = nn.Conv1d(INNER, INNER, WINDOW, padding=WINDOW - 1, groups=INNER)
        self.select = nn.Linear(INNER, RANK + 2 * STATES, bias=False)
        self.step = nn.Linear(RANK, INNER)
        rates = torch.arange(1, STATES + 1, dtype=torch.float32).repeat(INNER, 1)
        self.log_rates = nn.Parameter(rates.log())
        self.skip = nn.Parameter(torch.ones(INNER))
        self.leave = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        values, gate = self.enter(hidden).chunk(2, dim=-1)
        values = self.convolve(values.transpose(1, 2))[..., : hidden.shape[1]].transpose(1, 2)
        values = functional.silu(values)
        low_rank, reads, writes = self.select(values).split([RANK, STATES, STATES], dim=-1)
        steps = functional.softplus(self.step(low_rank))
        scanned = selective_scan(values, steps, -self.log_rates.float().exp(), reads, writes)
        scanned = scanned.to(values.dtype) + values * self.skip
        mixed: Tensor = self.leave(scanned * functional.silu(gate))
        return mixed


def selective_scan(
    values: Tensor, steps: Tensor, rates: Tensor, reads: Tensor, writes: Tensor
) -> Tensor:
    """The recurrence `h = exp(step * rate) * h + step * read * x`, read out as `h · write`.

    `values` and `steps` are [batch, tokens, inner], `rates` [inner, states], `reads` and `writes`
    [batch, tokens, states]; the result is [batch, tokens, inner] in float32.
    """
    steps, values = steps.float(), values.float()
    decay = torch.exp(steps[..., None] * rates)
    driven = (steps * values)[..., None] * reads.float()[:, :, None, :]
    state = torch.zeros_like(driven[:, 0])
    outputs = []
    for token in range(values.shape[1]):
        state = decay[:, token] * state + driven[:, token]
        outputs.append((state * writes[:, token, None, :].float()).sum(-1))
    return torch.stack(outputs, dim=1)


class MambaBlock(nn.Module):
    """Norm, mixer, residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixer = RMSNorm(HIDDEN), Mixer()

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        mixed: Tensor = self.mixer(self.norm(hidden))
        return hidden + mixed


def _build() -> tuple[MambaBlock, Tensor]:
    torch.manual_seed(SEED)
    block = MambaBlock().to(DTYPE)
    return block, torch.randn(BATCH, TOKENS, HIDDEN, dtype=DTYPE)


def inference() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The block in evaluation mode and its input [2, 32, 512]."""
    block, hidden = _build()
    return block.eval(), (hidden,)


def train() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]]:
    """The block, AdamW, and a mean-square loss against a fixed target."""
    block, hidden = _build()
    target = torch.randn_like(hidden)

    def loss(model: nn.Module) -> Tensor:
        return functional.mse_loss(model(hidden), target)

    return block.train(), torch.optim.AdamW(block.parameters(), lr=1e-4), loss
