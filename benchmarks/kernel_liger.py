"""Liger's kernels for the rows of `kernels.py` that it has any for, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[], object]
EPSILON = 1e-6
BACKWARD = "_backward"


def calls(name: str, inputs: Sequence[torch.Tensor]) -> dict[str, Call]:
    """Liger's way to do a row, on copies: its backward passes write over what they were given."""
    function = _functions().get(name.removesuffix(BACKWARD))
    if function is None:
        return {}
    held = [tensor.detach().clone() for tensor in inputs]
    if not name.endswith(BACKWARD):
        return {"Liger": lambda: function(*held)}
    wanted = [tensor.requires_grad_() for tensor in held if tensor.is_floating_point()]
    found = function(*held)
    values = [found] if isinstance(found, torch.Tensor) else list(found)
    upstream = [torch.randn_like(value) for value in values]
    return {"Liger": lambda: torch.autograd.grad(values, wanted, upstream, retain_graph=True)}


def _functions() -> dict[str, Callable[..., Any]]:
    """By pattern; empty where Liger is not installed."""
    try:
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.softmax import LigerSoftmaxFunction
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    except ImportError:
        return {}

    def rms_norm(x: torch.Tensor, w: torch.Tensor) -> Any:
        return LigerRMSNormFunction.apply(x, w, EPSILON, 0.0, "llama", False)

    def add_rms_norm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        return LigerFusedAddRMSNormFunction.apply(x, r, w, EPSILON, 0.0, "llama", False)

    return {
        "softmax": LigerSoftmaxFunction.apply,
        "layernorm": lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, EPSILON),
        "rmsnorm": rms_norm,
        "hf_rmsnorm": rms_norm,
        "add_rmsnorm": add_rms_norm,
        "silu_mul": LigerSiLUMulFunction.apply,
        # One call computes the gradient with the loss: beside a forward alone, without it.
        "cross_entropy_fwd": lambda x, labels: LigerCrossEntropyFunction.apply(x, labels, None)[0],
    }
