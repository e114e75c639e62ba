"""A foreach or fused optimizer in place of one that updates parameter by parameter."""

from __future__ import annotations

import inspect

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def fuse_optimizer(optimizer: torch.optim.Optimizer) -> str | None:
    """Make every group of the optimizer use its fused kernels; the reason if it cannot.

    The state that it has already is moved to where the fused kernels expect it. The update is the
    same; its rounding is that of one pass in float32.
    """
    refused = _refused(optimizer)
    if refused is not None:
        return refused
    align_state(optimizer)
    device_counts(optimizer)
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, False
    return None


def device_counts(optimizer: torch.optim.Optimizer) -> None:
    """Move the counts of steps to where the parameters are, for kernels to read them."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            step = state.get("step")
            if isinstance(step, torch.Tensor) and step.device != parameter.device:
                state["step"] = step.to(parameter.device)


def align_state(optimizer: torch.optim.Optimizer) -> None:
    """Lay out in memory what the optimizer holds of a parameter as the parameter is.

    Fused kernels walk both in the order of memory: of different layouts they mix up elements.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                if (
                    isinstance(value, torch.Tensor)
                    and value.shape == parameter.shape
                    and value.stride() != parameter.stride()
                ):
                    like = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
                    state[name] = like.detach().copy_(value)


def _refused(optimizer: torch.optim.Optimizer) -> str | None:
    name = type(optimizer).__name__
    if type(optimizer).__module__.partition(".")[0] != "torch":
        return f"{name} is not an optimizer of PyTorch"
    if "fused" not in inspect.signature(type(optimizer)).parameters:
        return f"{name} has no fused form"
    if all(group.get("fused") for group in optimizer.param_groups):
        return f"{name} is fused already"
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            return f"{name} is differentiable: its fused form is not"
        for parameter in group["params"]:
            if parameter.dtype not in FLOATS or parameter.is_sparse:
                return f"a parameter is {parameter.dtype} or sparse"
            if parameter.device.type not in ("cuda", "cpu"):
                return f"a parameter is on {parameter.device.type}"
    return None
