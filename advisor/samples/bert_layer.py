"""One BERT encoder layer (Devlin et al., arXiv:1810.04805) with its attention written out.

Post-norm, GELU, biases everywhere, dropout while training. Four sequences of 128 tokens, padded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN, HEADS, FEED_FORWARD = 768, 12, 3072
HEAD_SIZE = HIDDEN // HEADS
BATCH, TOKENS = 4, 128
DROPOUT = 0.1
DTYPE = torch.bfloat16
SEED = 0


class SelfAttention(nn.Module):
    """Attention of every token to every token that is no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """[batch, tokens, hidden] and an additive mask [batch, 1, 1, tokens] to the former."""
        query, key, value = (
            split_heads(layer(hidden)) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1) / HEAD_SIZE**0.5 + mask
        weights = self.dropout(functional.softmax(scores, dim=-1))
        mixed: Tensor = (weights @ value).transpose(1, 2).reshape(hidden.shape)
        return mixed


def split_heads(hidden: Tensor) -> Tensor:
    """[batch, tokens, hidden] to [batch, heads, tokens, head size]."""
    return hidden.view(*hidden.shape[:2], HEADS, HEAD_SIZE).transpose(1, 2)


class BertLayer(nn.Module):
    """Attention and feed-forward, each with dropout, residual and a norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()
        self.output = nn.Linear(HIDDEN, HIDDEN)
        self.attention_norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.up, self.down = nn.Linear(HIDDEN, FEED_FORWARD), nn.Linear(FEED_FORWARD, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """[batch, tokens, hidden] and the mask to the former."""
        mixed = self.dropout(self.output(self.attention(hidden, mask)))
        hidden = self.attention_norm(mixed + hidden)
        fed = self.dropout(self.down(functional.gelu(self.up(hidden))))
        result: Tensor = self.norm(fed + hidden)
        return result


def _build() -> tuple[BertLayer, tuple[Tensor, Tensor]]:
    torch.manual_seed(SEED)
    layer = BertLayer().to(DTYPE)
    lengths = torch.arange(TOKENS - BATCH, TOKENS)[:, None]
    padding = torch.arange(TOKENS)[None, :] >= lengths
    mask = torch.zeros(BATCH, 1, 1, TOKENS, dtype=DTYPE)
    mask = mask.masked_fill(padding[:, None, None, :], torch.finfo(DTYPE).min)
    return layer, (torch.randn(BATCH, TOKENS, HIDDEN, dtype=DTYPE), mask)


def inference() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The layer in evaluation mode, its input [4, 128, 768] and the mask of the padding."""
    layer, inputs = _build()
    return layer.eval(), inputs


def train() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]]:
    """The layer, AdamW, and a mean-square loss against a fixed target."""
    layer, inputs = _build()
    target = torch.randn_like(inputs[0])

    def loss(model: nn.Module) -> Tensor:
        return functional.mse_loss(model(*inputs), target)

    return layer.train(), torch.optim.AdamW(layer.parameters(), lr=1e-4), loss
