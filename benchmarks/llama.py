"""Hugging Face's Llama as it comes.

RMSNorm in pieces, rotary by halves, SwiGLU, attention written out or SDPA.

Factories for `fusion-advisor profile benchmarks/llama.py:prefill` (needs transformers).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, TOKENS, VOCABULARY = 4, 1024, 32_000


def _model(layers: int, attention: str) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def _tokens() -> torch.Tensor:
    return torch.randint(0, 30_000, (BATCH, TOKENS))


def prefill() -> tuple[nn.Module, dict[str, object]]:
    """Four layers, attention written out, 4 x 1024 tokens, bf16."""
    return _model(4, "eager").eval(), {"input_ids": _tokens(), "use_cache": False}


def train() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], torch.Tensor]]:
    """Two layers, SDPA, AdamW, 4 x 1024 tokens, bf16."""
    model, tokens = _model(2, "sdpa").train(), _tokens()

    def loss(network: nn.Module) -> torch.Tensor:
        result: torch.Tensor = network(input_ids=tokens, labels=tokens, use_cache=False).loss
        return result

    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), loss
