"""A foreach or fused optimizer in place of one that updates parameter by parameter."""

from __future__ import annotations

import inspect
from typing import Any

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def fuse_optimizer(optimizer: torch.optim.Optimizer) -> str | None:
    """Make every group of the optimizer use its fused kernels; the reason if it cannot.

    The state that it has already is moved to where the fused kernels expect it. The update is the
    same; its rounding is that of one pass in float32. From torch 2.11 on that goes for its betas
    too on a GPU (pytorch#172505): 1 - 0.999 is then 1.3e-5 off, which the second moment shows.
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


def own_counts(optimizer: torch.optim.Optimizer) -> None:
    """Move the counts of steps back to where the optimizer's own step reads them.

    Fused and capturable ones read them on the device; others would wait for it at every one.
    """
    for group in optimizer.param_groups:
        on_device = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            step = state.get("step")
            home = parameter.device if on_device else torch.device("cpu")
            if isinstance(step, torch.Tensor) and step.device != home:
                state["step"] = step.to(home)


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


def _with_momentum(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> int:
    """How many parameters of a group have a momentum buffer."""
    states = (optimizer.state.get(parameter, {}) for parameter in group["params"])
    return sum(state.get("momentum_buffer") is not None for state in states)


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
        if group.get("momentum") and 0 < _with_momentum(optimizer, group) < len(group["params"]):
            return "a parameter has no momentum yet: fused SGD fails when it gets its first one"
        for parameter in group["params"]:
            if parameter.dtype not in FLOATS or parameter.is_sparse:
                return f"a parameter is {parameter.dtype} or sparse"
            if parameter.device.type not in ("cuda", "cpu"):
                return f"a parameter is on {parameter.device.type}"
    return None
