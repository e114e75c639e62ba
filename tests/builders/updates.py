"""Optimizer steps in Triton's interpreter, beside the optimizer's own in float64: run as a script.

Prints one line of JSON: by case, the largest error of parameters and of state in units of the last
place, ours and those of the optimizer's own step; and by what of it changed, whether autograd
noticed a step of ours; and by what changed between steps at the same addresses, the largest
difference from the optimizer's own steps. Arithmetic is that of a GPU: kernels get their scalars in
float32 (the interpreter would compute with Python's float64), and PyTorch's fused Adam has betas of
float32.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from advisor.apply.model.multi_tensor import own_step, use_multi_tensor


class Lion(torch.optim.Optimizer):
    """Lion (X. Chen et al., arXiv:2302.06675) as packages have it: PyTorch has none of its own."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        caution: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        options = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "caution": caution}
        super().__init__(params, {**options, "maximize": maximize, "foreach": foreach})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            (beta1, beta2), rate = group["betas"], float(group["lr"])
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                g, m = -p.grad if group["maximize"] else p.grad, state["exp_avg"]
                p.mul_(1.0 - rate * group["weight_decay"])
                p.add_((m * beta1).add_(g, alpha=1.0 - beta1).sign_(), alpha=-rate)
                m.mul_(beta2).add_(g, alpha=1.0 - beta2)


Lion.__module__ = "timm.optim.lion"

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
    "adam, betas of 0 and near 1": (
        torch.optim.Adam,
        {"lr": 1e-2, "betas": (0.0, 0.99999), "eps": 1e-6},
        torch.float32,
    ),
    "adam, after 974 steps": (torch.optim.Adam, {"lr": 1e-2, "done": 974.0}, torch.float32),
    "adamw, rate in memory": (
        torch.optim.AdamW,
        {"lr": 0.03125, "rate_in_memory": True},
        torch.float32,
    ),
    "sgd, rate in memory": (
        torch.optim.SGD,
        {"lr": 0.125, "momentum": 0.9, "rate_in_memory": True},
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
    "lion": (Lion, {"lr": 0.01, "weight_decay": 0.1}, torch.float32),
    "lion bfloat16, maximised": (Lion, {"lr": 0.125, "maximize": True}, torch.bfloat16),
    "lion, rate in memory": (
        Lion,
        {"lr": 0.03125, "betas": (0.0, 0.9), "rate_in_memory": True},
        torch.float32,
    ),
}


def scalars_of_a_gpu() -> None:
    """Kernels in the interpreter get numbers as on a GPU: a Python float becomes a float32."""
    given: Any = interpreter._implicit_cvt

    def converted(argument: Any) -> Any:
        if type(argument) is not float:
            return given(argument)
        held = interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32)
        return tl.tensor(held, tl.float32)

    interpreter._implicit_cvt = converted


def fused_of_a_gpu(
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    firsts: list[torch.Tensor],
    seconds: list[torch.Tensor],
    largest: list[torch.Tensor],
    steps: list[torch.Tensor],
    *,
    decoupled: bool,
    **options: Any,
) -> None:
    """What `torch._fused_adam_` does on a GPU from torch 2.11 on (fused_adam_utils.cuh).

    Betas are rounded to float32 before 1 - beta and the corrections are taken from them.
    """
    beta1, beta2 = (float(np.float32(options[name])) for name in ("beta1", "beta2"))
    rate, decay = float(options["lr"]), options["weight_decay"]
    for number, p in enumerate(parameters):
        g = -gradients[number] if options["maximize"] else gradients[number]
        if decoupled:
            p.mul_(1.0 - rate * decay)
        else:
            g = g + decay * p
        m = firsts[number].mul_(beta1).add_(g, alpha=1.0 - beta1)
        most = seconds[number].mul_(beta2).addcmul_(g, g, value=1.0 - beta2)
        if options["amsgrad"]:
            most = torch.maximum(largest[number], most, out=largest[number])
        bias1, bias2 = (1.0 - beta ** float(steps[number]) for beta in (beta1, beta2))
        p.sub_(rate / bias1 * m / (most.sqrt() / bias2**0.5 + options["eps"]))


def trained(
    kind: Any, options: dict[str, Any], dtype: torch.dtype, *, wide: bool, ours: bool
) -> list[torch.Tensor]:
    """Parameters and float state after some steps; the last step has a parameter less."""
    generator = torch.Generator().manual_seed(0)
    stored = torch.float64 if wide else dtype
    values = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    values[2].zero_()  # of it nothing but updates is seen, as of a bias
    parameters = [torch.nn.Parameter(value.to(stored)) for value in values]
    options = dict(options)
    if options.pop("rate_in_memory", False) and ours:
        options["lr"] = torch.tensor(options["lr"])
    done = options.pop("done", None)
    optimizer = kind(parameters, foreach=False, **options)
    if ours:
        assert use_multi_tensor(optimizer) is None
    for step in range(STEPS):
        for number, parameter in enumerate(parameters):
            gradient = torch.randn(parameter.shape, generator=generator).to(dtype).to(stored)
            skipped = step == STEPS - 1 and number == 1
            parameter.grad = None if skipped else gradient
        optimizer.step()
        if step == 0 and done is not None:
            for state in optimizer.state.values():
                state["step"].fill_(done)
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


def noticed() -> dict[str, bool]:
    """Whether counts of versions rise with what a step of ours writes, and autograd heeds them."""
    weight = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = torch.optim.Adam([weight], lr=0.1, amsgrad=True)
    assert use_multi_tensor(optimizer) is None
    weight.grad = torch.ones(3, 4)
    optimizer.step()
    state = optimizer.state[weight]
    before = {name: value._version for name, value in state.items()}
    loss = (weight * weight).sum()
    optimizer.step()
    found = {name: value._version > before[name] for name, value in state.items()}
    try:
        loss.backward()
    except RuntimeError as error:
        return found | {"weight": "modified by an inplace operation" in str(error)}
    return found | {"weight": False}


def other_strides(optimizer: torch.optim.Optimizer, held: torch.Tensor) -> None:
    """A gradient lies transposed where one lay."""
    optimizer.param_groups[0]["params"][0].grad = held.t()


def other_sign(optimizer: torch.optim.Optimizer, held: torch.Tensor) -> None:
    """Memory holds minus the gradient, as an imaginary part of conjugates."""
    optimizer.param_groups[0]["params"][0].grad = torch._neg_view(held)


def other_layout(optimizer: torch.optim.Optimizer, held: torch.Tensor) -> None:
    """A parameter and its gradient are transposed, its moments are not."""
    parameter = optimizer.param_groups[0]["params"][0]
    parameter.grad, parameter.data = None, parameter.data.t()
    parameter.grad = held.t()


def other_group(optimizer: torch.optim.Optimizer, held: torch.Tensor) -> None:
    """A parameter gets a rate of its own."""
    *kept, last = optimizer.param_groups[0]["params"]
    optimizer.param_groups[0]["params"] = kept
    optimizer.add_param_group({"params": [last], "lr": 0.3})


def other_moments(optimizer: torch.optim.Optimizer, held: torch.Tensor) -> None:
    """One moment is wider than the other."""
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    state["exp_avg_sq"] = state["exp_avg_sq"].double()


CHANGES = (other_strides, other_sign, other_layout, other_group, other_moments)


def changed(change: Any, *, ours: bool) -> list[torch.Tensor]:
    """Parameters after steps with gradients at the same addresses, one thing changed in between."""
    generator = torch.Generator().manual_seed(0)
    held = torch.randn(8, 8, generator=generator)
    parameters = [torch.nn.Parameter(torch.ones(8, 8)), torch.nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.Adam(parameters, lr=0.01, foreach=False)
    if ours:
        assert use_multi_tensor(optimizer) is None
    parameters[0].grad, parameters[1].grad = held, torch.ones(3)
    for step in range(5):
        if step == 3:
            change(optimizer, held)
        optimizer.step()
    return [parameter.detach() for parameter in parameters]


def gaps() -> dict[str, float]:
    """By change, the largest difference of parameters from the optimizer's own steps."""
    found = {}
    for change in CHANGES:
        pairs = zip(changed(change, ours=True), changed(change, ours=False), strict=True)
        found[change.__name__] = max(float((a - b).abs().max()) for a, b in pairs)
    return found


def main() -> None:
    """Every case, ours and the optimizer's own."""
    scalars_of_a_gpu()
    torch._fused_adam_ = partial(fused_of_a_gpu, decoupled=False)
    torch._fused_adamw_ = partial(fused_of_a_gpu, decoupled=True)
    errors = {}
    for name, (kind, options, dtype) in CASES.items():
        exact = trained(kind, options, dtype, wide=True, ours=False)
        own = trained(kind, options, dtype, wide=False, ours=False)
        mine = trained(kind, options, dtype, wide=False, ours=True)
        errors[name] = worst(mine, exact, dtype), worst(own, exact, dtype)
    sys.stdout.write(json.dumps({"errors": errors, "noticed": noticed(), "gaps": gaps()}) + "\n")


if __name__ == "__main__":
    import tests.builders.quick_interpreter  # noqa: F401

    main()
