"""One decoder block as model code is commonly written: in pieces, nothing fused by hand.

RMSNorm in float32 pieces, rotary embedding by halves, grouped-query attention with an explicit
causal mask, SwiGLU, two residuals. Two sequences of 512 tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN, HEADS, KEY_VALUE_HEADS, FEED_FORWARD = 1024, 16, 4, 2816
HEAD_SIZE = HIDDEN // HEADS
BATCH, TOKENS = 2, 512
DTYPE = torch.bfloat16
SEED = 0


class RMSNorm(nn.Module):
    """`weight * x / sqrt(mean(x^2) + epsilon)`, the mean taken in float32."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] in any float dtype to the same."""
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.epsilon)
        return self.weight * hidden.to(dtype)


def rotary_table(tokens: int, size: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines [tokens, size] (Su et al., arXiv:2104.09864, eq. 34)."""
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.arange(tokens, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, tokens, size]: halves are real and imaginary parts."""
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return heads * cosines + turned * sines


class Attention(nn.Module):
    """Causal grouped-query attention, written out: scale, mask, softmax in float32."""

    cosines: Tensor
    sines: Tensor
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        key_value_width = KEY_VALUE_HEADS * HEAD_SIZE
        self.query = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.key = nn.Linear(HIDDEN, key_value_width, bias=False)
        self.value = nn.Linear(HIDDEN, key_value_width, bias=False)
        self.output = nn.Linear(HIDDEN, HIDDEN, bias=False)
        cosines, sines = rotary_table(TOKENS, HEAD_SIZE)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        mask = torch.full((TOKENS, TOKENS), float("-inf")).triu(diagonal=1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        query = rotate(split_heads(self.query(hidden), HEADS), self.cosines, self.sines)
        key = rotate(split_heads(self.key(hidden), KEY_VALUE_HEADS), self.cosines, self.sines)
        value = split_heads(self.value(hidden), KEY_VALUE_HEADS)
        group = HEADS // KEY_VALUE_HEADS
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        scores = query @ key.transpose(-2, -1) * HEAD_SIZE**-0.5 + self.mask
        weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        mixed: Tensor = self.output((weights @ value).transpose(1, 2).reshape(hidden.shape))
        return mixed


def split_heads(hidden: Tensor, heads: int) -> Tensor:
    """[batch, tokens, heads · size] to [batch, heads, tokens, size]."""
    batch, tokens, width = hidden.shape
    return hidden.view(batch, tokens, heads, width // heads).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (Shazeer, arXiv:2002.05202)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, FEED_FORWARD, bias=False)
        self.up = nn.Linear(HIDDEN, FEED_FORWARD, bias=False)
        self.down = nn.Linear(FEED_FORWARD, HIDDEN, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        gated: Tensor = self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return gated


class TransformerBlock(nn.Module):
    """Pre-norm decoder block: attention and feed-forward, each with its residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(HIDDEN)
        self.attention = Attention()
        self.feed_forward_norm = RMSNorm(HIDDEN)
        self.feed_forward = FeedForward()

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, tokens, hidden] to the same."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        fed: Tensor = self.feed_forward(self.feed_forward_norm(hidden))
        return hidden + fed


def _build() -> tuple[TransformerBlock, Tensor]:
    torch.manual_seed(SEED)
    block = TransformerBlock().to(DTYPE)
    return block, torch.randn(BATCH, TOKENS, HIDDEN, dtype=DTYPE)


def inference() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The block in evaluation mode and its inputs: one tensor [2, 512, 1024]."""
    block, hidden = _build()
    return block.eval(), (hidden,)


def train() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]]:
    """The block, AdamW, and a mean-square loss against a fixed target."""
    block, hidden = _build()
    target = torch.randn_like(hidden)

    def loss(model: nn.Module) -> Tensor:
        return functional.mse_loss(model(hidden), target)

    return block.train(), torch.optim.AdamW(block.parameters(), lr=1e-4), loss
