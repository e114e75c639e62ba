"""Optimizer steps in Triton's interpreter, beside the optimizer's own in float64: run as a script.

Prints one line of JSON: by case, the largest error of parameters and of state in units of the last
place, ours and those of the optimizer's own step.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from advisor.apply.model.multi_tensor import own_step, use_multi_tensor

SHAPES = ((7,), (33, 65), (40, 64), (0,), ())
STEPS = 4
CASES: dict[str, tuple[Any, dict[str, Any], torch.dtype]] = {
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}, torch.float32),
    "adamw bfloat16": (torch.optim.AdamW, {"lr": 1e-2}, torch.bfloat16),
    "adam, amsgrad, maximised": (
        torch.optim.Adam,
        {"lr": 1e-2, "weight_decay": 0.1, "amsgrad": True, "maximize": True},
        torch.float32,
    ),
    "sgd": (torch.optim.SGD, {"lr": 0.1}, torch.float32),
    "sgd, momentum": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        torch.float32,
    ),
    "sgd, nesterov": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        torch.float32,
    ),
}


def trained(
    kind: Any, options: dict[str, Any], dtype: torch.dtype, *, wide: bool, ours: bool
) -> list[torch.Tensor]:
    """Parameters and float state after some steps; the last step has a parameter less."""
    generator = torch.Generator().manual_seed(0)
    stored = torch.float64 if wide else dtype
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    parameters = [torch.nn.Parameter(value.to(stored)) for value in values]
    optimizer = kind(parameters, foreach=False, **options)
    if ours:
        assert use_multi_tensor(optimizer) is None
    for step in range(STEPS):
        for number, parameter in enumerate(parameters):
            gradient = torch.randn(parameter.shape, generator=generator).to(dtype).to(stored)
            skipped = step == STEPS - 1 and number == 1
            parameter.grad = None if skipped else gradient
        optimizer.step()
        if ours and step == 1:  # taken out and put in again: the state is the optimizer's own
            own_step(optimizer)
            assert use_multi_tensor(optimizer) is None
    state = [value for p in parameters for value in optimizer.state[p].values()]
    return [*(p.detach() for p in parameters), *(v for v in state if v is not None)]


def worst(found: list[torch.Tensor], exact: list[torch.Tensor], dtype: torch.dtype) -> float:
    """The largest error, in last places of the largest value of its tensor."""
    errors = [0.0]
    for mine, truth in zip(found, exact, strict=True):
        if truth.numel():
            scale = truth.abs().max().clamp(min=1e-30) * torch.finfo(dtype).eps
            errors.append(float(((mine.double() - truth).abs() / scale).max()))
    return max(errors)


def main() -> None:
    """Every case, ours and the optimizer's own."""
    result = {}
    for name, (kind, options, dtype) in CASES.items():
        exact = trained(kind, options, dtype, wide=True, ours=False)
        own = trained(kind, options, dtype, wide=False, ours=False)
        mine = trained(kind, options, dtype, wide=False, ours=True)
        result[name] = worst(mine, exact, dtype), worst(own, exact, dtype)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
