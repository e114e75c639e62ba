"""Optimizers that ask for the loss themselves: their step calls a closure, as often as it likes."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch.profiler import record_function

from advisor.model.range_names import CLOSURE_RANGE


def takes_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step cannot be done without a closure, as LBFGS's cannot."""
    parameters = inspect.signature(type(optimizer).step).parameters
    closure = parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def one_step(
    optimizer: torch.optim.Optimizer, gradients: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Do a step and return the loss; `gradients` computes it anew, with all gradients.

    Where the optimizer calls that itself, the loss is the first of its calls.
    """
    if takes_closure(optimizer):

        def evaluated() -> torch.Tensor:
            with record_function(CLOSURE_RANGE):
                return gradients()

        found: torch.Tensor = optimizer.step(evaluated)  # type: ignore[arg-type,assignment]
        return found
    loss = gradients()
    optimizer.step()
    return loss
