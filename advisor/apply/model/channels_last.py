"""Convolution weights and image inputs in channels-last memory format: the same values."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from advisor.apply.model.optimizer import align_state

CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)


def to_channels_last(
    module: nn.Module, inputs: Any, optimizer: torch.optim.Optimizer | None = None
) -> tuple[Any, str | None]:
    """Put 2-D convolution weights into channels-last; (inputs likewise, why nothing changed).

    Weights change in place, and with them what the optimizer holds of them; inputs are dense 4-D
    floating-point tensors anywhere in the structure.
    """
    weights = [m.weight for m in module.modules() if isinstance(m, CONVOLUTIONS)]
    if not weights:
        return inputs, "the module has no 2-D convolution"
    if any(isinstance(weight, nn.UninitializedParameter) for weight in weights):
        return inputs, "a convolution has no weights before it has run"
    converted = images_channels_last(inputs)
    open_ = [w for w in weights if _image(w) is not w]
    same = zip(pytree.tree_leaves(inputs), pytree.tree_leaves(converted), strict=True)
    if not open_ and all(old is new for old, new in same):
        return inputs, "its convolutions run channels-last already"
    with torch.no_grad():
        for weight in open_:
            weight.data = _image(weight.data)
            if weight.grad is not None:
                weight.grad = _image(weight.grad)
    if optimizer is not None:
        align_state(optimizer)
    return converted, None


def images_channels_last(inputs: Any) -> Any:
    """The structure with its dense 4-D floating-point tensors in channels-last."""
    return pytree.tree_map_only(torch.Tensor, _image, inputs)


def _image(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in channels-last; itself if it is, or is no image."""
    if tensor.dim() != 4 or not tensor.is_floating_point() or tensor.layout != torch.strided:
        return tensor
    return tensor.contiguous(memory_format=torch.channels_last)
