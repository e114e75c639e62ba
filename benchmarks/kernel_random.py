"""Random row programs as rows of `kernels.py`: the same ones for everybody, by their seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from kernel_patterns import Pattern
from torch.nn import functional as nnf

COUNT = 20
SHAPES = ((16384, 4096), (8192, 8192), (65536, 1024))
# Results stay of the order of one, so that chains neither overflow nor vanish.
UNARY: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    nnf.silu,
    nnf.gelu,
    torch.tanh,
    torch.sigmoid,
    torch.relu,
    lambda x: torch.exp(-x.abs()),
    lambda x: torch.sqrt(x.abs() + 0.5),
    lambda x: x * 0.75 + 0.25,
)
BINARY: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    lambda x, y: torch.where(y > 0.0, x, 0.5 * x),
)
ACROSS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x - x.mean(-1, keepdim=True),
    lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6),
    lambda x: torch.softmax(x, -1) * x.shape[-1],
    lambda x: x / (x.abs().amax(-1, keepdim=True) + 1e-6),
)


def random_patterns() -> dict[str, Pattern]:
    """Row programs of 5 to 14 steps with one to three reductions, by name."""
    found = {}
    for seed in range(COUNT):
        drawn = random.Random(seed)
        vectors, matrices = drawn.randint(0, 2), drawn.randint(0, 1)
        steps = [_step(drawn, vectors + matrices) for _ in range(drawn.randint(4, 11))]
        places = sorted(drawn.sample(range(len(steps) + 1), drawn.randint(1, 3)), reverse=True)
        for place in places:
            steps.insert(place, _Step(drawn.choice(ACROSS)))
        shape = SHAPES[seed % len(SHAPES)]
        others = (*["x"] * matrices, *["w"] * vectors)
        found[f"random_{seed:02}"] = Pattern(_program(steps), others, (shape,))
    return found


class _Step:
    """One op on the value so far, and perhaps another input or what came two steps before."""

    def __init__(self, function: Callable[..., torch.Tensor], other: int | None = None) -> None:
        self.function, self.other = function, other


def _step(drawn: random.Random, inputs: int) -> _Step:
    if drawn.random() < 0.6:
        return _Step(drawn.choice(UNARY))
    return _Step(drawn.choice(BINARY), drawn.randint(0, inputs))


def _program(steps: list[_Step]) -> Callable[..., torch.Tensor]:
    def function(*inputs: torch.Tensor) -> torch.Tensor:
        wide = [tensor.float() for tensor in inputs]
        value: Any = wide[0]
        for step in steps:
            given = () if step.other is None else (wide[step.other],)
            value = step.function(value, *given)
        result: torch.Tensor = value.to(inputs[0].dtype)
        return result

    return function
