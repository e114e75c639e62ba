"""Fifteen models that everyone knows, as factories for `fusion-advisor profile`.

`fusion-advisor profile benchmarks/zoo_models.py:llama_prefill`, and so on. Random weights; sizes
are chosen so that one step takes milliseconds on a data-centre GPU. Language models need
transformers, vision models timm or torchvision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, BATCH, TOKENS = 30_000, 4, 1024
IMAGES, CLASSES = (3, 224, 224), 1000
Inference = tuple[nn.Module, Any]
Training = tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]]


def _tokens(count: int = TOKENS) -> Tensor:
    return torch.randint(0, VOCABULARY, (BATCH, TOKENS))[:, :count]


def _infer(model: nn.Module, inputs: Any, dtype: torch.dtype = torch.bfloat16) -> Inference:
    return model.to(dtype).eval(), inputs


def _train(model: nn.Module, loss: Callable[[nn.Module], Tensor], **options: Any) -> Training:
    return model.train(), torch.optim.AdamW(model.parameters(), lr=1e-4, **options), loss


def _llama(layers: int, attention: str) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def _language_loss(tokens: Tensor) -> Callable[[nn.Module], Tensor]:
    def loss(model: nn.Module) -> Tensor:
        result: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        return result

    return loss


def llama_prefill() -> Inference:
    """Four layers of Llama over 4 x 1024 tokens, attention written out."""
    return _infer(_llama(4, "eager"), {"input_ids": _tokens(), "use_cache": False})


def llama_decode() -> Inference:
    """The same with library attention, one token a sequence: bound by launches."""
    return _infer(_llama(4, "sdpa"), {"input_ids": _tokens(1), "use_cache": False})


def llama_train() -> Training:
    """Two layers of Llama, library attention."""
    return _train(_llama(2, "sdpa"), _language_loss(_tokens()))


def gpt2_train() -> Training:
    """Four layers of GPT-2, attention written out, dropout, an optimizer of single kernels."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, resid_pdrop=0.1, attn_implementation="eager")
    model = GPT2LMHeadModel(config).to(torch.bfloat16)
    return _train(model, _language_loss(_tokens(512)), foreach=False)


def bert() -> Inference:
    """Four layers of BERT over 4 x 512 tokens, attention written out, float16."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=4, attn_implementation="eager"))
    return _infer(model, {"input_ids": _tokens(512)}, torch.float16)


def t5() -> Inference:
    """Three encoder and three decoder layers of T5 with a gated feed-forward."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=512,
        d_ff=2048,
        num_layers=3,
        num_decoder_layers=3,
        num_heads=8,
        feed_forward_proj="gated-gelu",
    )
    tokens = _tokens(256)
    inputs = {"input_ids": tokens, "decoder_input_ids": tokens, "use_cache": False}
    return _infer(T5ForConditionalGeneration(config), inputs)


def mamba() -> Inference:
    """Two layers of Mamba over 64 tokens, the scan in Python where its kernels are absent."""
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(hidden_size=768, num_hidden_layers=2, vocab_size=8000))
    return _infer(model, {"input_ids": _tokens()[:1, :64] % 8000})


def _vision(model: nn.Module, batch: int, dtype: torch.dtype, *, last: bool = False) -> Inference:
    layout = torch.channels_last if last else torch.contiguous_format
    images = torch.randn(batch, *IMAGES, dtype=dtype).to(memory_format=layout)
    laid_out: nn.Module = model.to(memory_format=layout)  # type: ignore[call-overload]
    return _infer(laid_out, (images,), dtype)


def _timm(name: str) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(name)
    return model


def resnet50() -> Inference:
    """ResNet-50 on 64 images, float16, channels last."""
    import torchvision

    return _vision(torchvision.models.resnet50(), 64, torch.float16, last=True)


def resnet18_train() -> Training:
    """ResNet-18 on 64 images, float32, channels last."""
    import torchvision

    model, (images,) = _vision(torchvision.models.resnet18(), 64, torch.float32, last=True)
    classes = torch.randint(0, CLASSES, (64,))
    return _train(model, lambda network: functional.cross_entropy(network(images), classes))


def convnext() -> Inference:
    """ConvNeXt-T on 64 images."""
    return _vision(_timm("convnext_tiny"), 64, torch.bfloat16)


def efficientnet() -> Inference:
    """EfficientNet-B0 on 128 images, float16, channels last."""
    return _vision(_timm("efficientnet_b0"), 128, torch.float16, last=True)


def vit() -> Inference:
    """ViT-S/16 on 128 images."""
    return _vision(_timm("vit_small_patch16_224"), 128, torch.bfloat16)


class _Chain(nn.Module):
    """Modules one after the other, each given the same second input."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, images: Tensor, time: Tensor) -> Tensor:
        """[batch, channels, height, width] and [batch, embedding] to the former."""
        for part in self.parts:
            images = part(images, time)
        return images


def unet() -> Inference:
    """Four residual blocks of a diffusion UNet on 8 x 320 x 64 x 64, float16."""
    from advisor.samples.unet_block import CHANNELS, EMBEDDING, ResidualBlock

    model = _Chain(*(ResidualBlock() for _ in range(4)))
    images = torch.randn(8, CHANNELS, 64, 64, dtype=torch.float16)
    return _infer(model, (images, torch.randn(8, EMBEDDING, dtype=torch.float16)), torch.float16)


class _DLRM(nn.Module):
    """Embeddings of 26 categories, a network for dense features, dot products of all pairs."""

    def __init__(self, rows: int = 100_000, width: int = 128, categories: int = 26) -> None:
        super().__init__()
        from advisor.samples.dlrm import network

        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(categories))
        self.bottom = network(13, 512, 256, width)
        pairs = categories * (categories + 1) // 2
        self.top = nn.Sequential(*network(width + pairs, 1024, 1024, 512), nn.Linear(512, 1))

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        """[batch, 13] floats and [batch, 26] indices to [batch, 1]."""
        base = self.bottom(dense)
        found = [table(categories[:, number]) for number, table in enumerate(self.tables)]
        features = torch.stack([base, *found], dim=1)
        products = features @ features.transpose(1, 2)
        count = features.shape[1]
        first, second = torch.tril_indices(count, count, -1, device=dense.device)
        pairs = products[:, first, second]
        return torch.sigmoid(self.top(torch.cat([base, pairs], dim=1)))


def _clicks() -> tuple[Tensor, Tensor]:
    return torch.randn(4096, 13), torch.randint(0, 100_000, (4096, 26))


def dlrm() -> Inference:
    """A recommendation model on 4096 rows."""
    return _infer(_DLRM(), _clicks(), torch.float32)


def dlrm_train() -> Training:
    """The same, trained."""
    dense, categories = _clicks()
    clicked = torch.rand(4096, 1)

    def loss(model: nn.Module) -> Tensor:
        return functional.binary_cross_entropy(model(dense, categories), clicked)

    return _train(_DLRM(), loss, foreach=True)


ZOO: tuple[Callable[[], Any], ...] = (
    llama_prefill,
    llama_decode,
    llama_train,
    gpt2_train,
    bert,
    resnet50,
    resnet18_train,
    convnext,
    efficientnet,
    vit,
    unet,
    mamba,
    dlrm,
    dlrm_train,
    t5,
)
