"""The zoo as a good engineer would set it up by hand, at the same precision.

Library attention, a fused optimizer, channels-last weights and images, batch norms folded: flags
and calls that PyTorch and the model libraries offer. `zoo.py` runs each of these in every mode of
`torch.compile` and takes the fastest. Models that leave nothing to set are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from zoo_models import (
    _DLRM,
    Inference,
    Training,
    _clicks,
    _infer,
    _language_loss,
    _llama,
    _timm,
    _tokens,
    _train,
    _vision,
)
from zoo_models import unet as _unet


def llama_prefill() -> Inference:
    """Library attention."""
    return _infer(_llama(4, "sdpa"), {"input_ids": _tokens(), "use_cache": False})


def llama_train() -> Training:
    """A fused optimizer."""
    return _train(_llama(2, "sdpa"), _language_loss(_tokens()), fused=True)


def gpt2_train() -> Training:
    """Library attention and a fused optimizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, resid_pdrop=0.1, attn_implementation="sdpa")
    model = GPT2LMHeadModel(config).to(torch.bfloat16)
    return _train(model, _language_loss(_tokens(512)), fused=True)


def bert() -> Inference:
    """Library attention."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=4, attn_implementation="sdpa"))
    return _infer(model, {"input_ids": _tokens(512)}, torch.float16)


def resnet50() -> Inference:
    """Batch norms folded."""
    import torchvision
    from torch.fx.experimental.optimization import fuse

    model: nn.Module = fuse(torchvision.models.resnet50().eval())
    return _vision(model, 64, torch.float16, last=True)


def resnet18_train() -> Training:
    """A fused optimizer."""
    import torchvision

    model, (images,) = _vision(torchvision.models.resnet18(), 64, torch.float32, last=True)
    classes = torch.randint(0, 1000, (64,))
    return _train(
        model, lambda network: functional.cross_entropy(network(images), classes), fused=True
    )


def convnext() -> Inference:
    """Channels last."""
    return _vision(_timm("convnext_tiny"), 64, torch.bfloat16, last=True)


def unet() -> Inference:
    """Channels last."""
    model, (images, time) = _unet()
    last = torch.channels_last
    laid_out: Any = model.to(memory_format=last)  # type: ignore[call-overload]
    return laid_out, (images.to(memory_format=last), time)


def dlrm_train() -> Training:
    """A fused optimizer."""
    dense, categories = _clicks()
    clicked = torch.rand(4096, 1)

    def loss(model: nn.Module) -> torch.Tensor:
        return functional.binary_cross_entropy(model(dense, categories), clicked)

    return _train(_DLRM(), loss, fused=True)


TUNED: tuple[Callable[[], Any], ...] = (
    llama_prefill,
    llama_train,
    gpt2_train,
    bert,
    resnet50,
    resnet18_train,
    convnext,
    unet,
    dlrm_train,
)
