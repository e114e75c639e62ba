"""Are the steps of our kernels the optimizer's own? Both are done on copies, float64 decides.

State is part of it: moments, momentum and counts after three steps of ours, which begin where the
optimizer's own first step ended.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from advisor.apply.model.multi_tensor import use_multi_tensor

STEPS = 3
# Elements that are copied of a group, and of one parameter of it.
MOST_ELEMENTS, MOST_OF_ONE = 1 << 20, 1 << 18
FLOOR_ULPS, EAGER_FACTOR = 4.0, 2.0
_SEED = 1234
# How the optimizer itself would compute: of no matter to what it computes.
_MANNERS = ("params", "fused", "foreach", "capturable", "differentiable")


def update_disagreement(optimizer: torch.optim.Optimizer) -> str | None:
    """Where our steps are further from float64 than the optimizer's own; None if nowhere."""
    accepted = inspect.signature(type(optimizer)).parameters
    for number, group in enumerate(optimizer.param_groups):
        values = _sample(group["params"])
        options = {k: v for k, v in group.items() if k in accepted and k not in _MANNERS}
        options["lr"] = float(options["lr"])
        kind: Any = type(optimizer)
        exact = _trained(kind, options, values, wide=True, ours=False)
        own = _trained(kind, options, values, wide=False, ours=False)
        mine = _trained(kind, options, values, wide=False, ours=True)
        for name, truth in exact.items():
            error, its = _error(mine.get(name), truth), _error(own[name], truth)
            if not error <= max(FLOOR_ULPS, EAGER_FACTOR * its):
                return (
                    f"group {number}, {name}: {error:.1f} ulps from float64 after {STEPS} steps, "
                    f"the optimizer's own {its:.1f}"
                )
    return None


def _sample(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of some parameters, of the large ones a part: every dtype there is."""
    found: list[torch.Tensor] = []
    for parameter in sorted(parameters, key=lambda p: (str(p.dtype), p.numel())):
        seen = {tensor.dtype for tensor in found}
        if sum(t.numel() for t in found) > MOST_ELEMENTS and parameter.dtype in seen:
            continue
        found.append(parameter.detach().flatten()[:MOST_OF_ONE].clone())
    return found


def _trained(
    kind: Any, options: dict[str, Any], values: list[torch.Tensor], *, wide: bool, ours: bool
) -> dict[str, torch.Tensor]:
    """Parameters and state by name after the first step, which is the optimizer's, and `STEPS`."""
    kept = [torch.nn.Parameter(v.double() if wide else v.clone()) for v in values]
    if "foreach" in inspect.signature(kind).parameters:
        options = options | {"foreach": False}
    optimizer = kind(kept, **options)
    if ours:
        use_multi_tensor(optimizer)
    device = values[0].device
    generator = torch.Generator(device=device).manual_seed(_SEED)
    for _ in range(1 + STEPS):
        for parameter, value in zip(kept, values, strict=True):
            noise = torch.randn(value.shape, device=device, generator=generator).to(value.dtype)
            parameter.grad = noise.double() if wide else noise
        optimizer.step()
    found = {f"parameter {n}": parameter.detach() for n, parameter in enumerate(kept)}
    for n, parameter in enumerate(kept):
        held = optimizer.state[parameter].items()
        found |= {f"{name} of parameter {n}": value for name, value in held if value is not None}
    return found


def _error(value: torch.Tensor | None, truth: torch.Tensor) -> float:
    """The largest error in last places of the largest value; infinite where there is nothing."""
    if value is None:
        return float("inf")
    if not truth.numel():
        return 0.0
    truth = truth.to(value.device)
    unit = truth.abs().max().double().clamp(min=1e-30) * torch.finfo(value.dtype).eps
    return float(((value.double() - truth).abs() / unit).max())
