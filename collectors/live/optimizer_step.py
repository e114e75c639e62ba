"""An optimizer's step without the model: on copies, so that nothing of the workload changes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch

from collectors.live.failures import failure

# Copies of parameters and gradients, and the optimizer's state, are held for a moment.
MAX_PARAMETER_BYTES = 1 << 30


def rehearsed_step(
    optimizer: torch.optim.Optimizer, *, as_if_cuda: bool
) -> Callable[[], object] | None:
    """A step on copies of the parameters with zero gradients, its state made; None if too large.

    `as_if_cuda`: an optimizer that was not told how to update uses the multi-tensor ops that it
    would choose on a GPU. Whatever the optimizer raises comes out as `WorkloadError`.
    """
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if sum(p.numel() * p.element_size() for p in held) > MAX_PARAMETER_BYTES:
        return None
    try:
        twin = copy.deepcopy(optimizer)
        for group in twin.param_groups:
            if as_if_cuda and group.get("foreach", True) is None and not group.get("fused"):
                group["foreach"] = True
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        twin.step()
    except Exception as error:  # an optimizer is the user's code and may raise anything
        name = type(optimizer).__name__
        raise failure(f"{name} does not step on zero gradients", error, where=name) from error
    return twin.step
