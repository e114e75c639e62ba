"""Loops that a program wrote out: which are recurrences over an axis, of which form, and which not.

Each case is a function of tensors [batch, steps, width] that captures unroll.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from advisor.model.graph import Graph
from collectors.live.fx_graph import Lowered
from tests.analyzers.planted.captured import Inputs, tensors
from tests.builders.captured import captured

Tensor = torch.Tensor
STEPS = 12
ONE = tensors((2, STEPS, 16))
TWO = tensors(*[(2, STEPS, 16)] * 2)
THREE = tensors(*[(2, STEPS, 16)] * 3)


@dataclass(frozen=True)
class Loop:
    """`what` is what the loop computes, None if it is no recurrence over an axis.

    `steps` and `ops` a step as they are told: a first step of zeros is folded away. `action` is a
    part of the advice.
    """

    name: str
    function: Callable[..., Any]
    inputs: Inputs
    what: str | None = None
    ops: int = 0
    action: str = ""
    steps: int = STEPS

    def __str__(self) -> str:
        return self.name


@cache
def lowered_of(loop: Loop) -> Lowered:
    """The loop's graph with the way back to FX, captured once."""
    torch.manual_seed(0)
    return captured(loop.function, *loop.inputs()).graphs[0].lowered


def graph_of(loop: Loop) -> Graph:
    """The loop's graph."""
    return lowered_of(loop).graph


def decayed(a: Tensor, b: Tensor) -> Tensor:
    state, states = torch.zeros_like(a[:, 0]), []
    for t in range(a.shape[1]):
        state = a[:, t] * state + b[:, t]
        states.append(state)
    return torch.stack(states, 1)


def unbound(a: Tensor, b: Tensor) -> Tensor:
    state, states = torch.zeros_like(a[:, 0]), []
    for x, y in zip(a.unbind(1), b.unbind(1), strict=True):
        state = x * state + y
        states.append(state)
    return torch.stack(states, 1)


def backwards(a: Tensor, b: Tensor) -> Tensor:
    state, states = torch.zeros_like(a[:, 0]), []
    for t in reversed(range(a.shape[1])):
        state = a[:, t] * state + b[:, t]
        states.append(state)
    return torch.stack(states, 1)


def selective(rates: Tensor, driven: Tensor, weights: Tensor) -> Tensor:
    """The scan of Mamba as transformers writes it: states [batch, width, states]."""
    state, outputs = torch.zeros_like(rates[:, :, 0]), []
    for t in range(rates.shape[2]):
        state = rates[:, :, t] * state + driven[:, :, t]
        outputs.append((state.half() @ weights[:, t, :, None])[:, :, 0])
    return torch.stack(outputs, -1)


def selective_inputs() -> tuple[Tensor, ...]:
    rates, driven, weights = tensors((1, 32, STEPS, 8), (1, 32, STEPS, 8), (1, STEPS, 8))()
    return rates, driven, weights.half()


def averaged(x: Tensor) -> Tensor:
    """An exponential moving average."""
    state, states = x[:, 0], []
    for t in range(1, x.shape[1]):
        state = 0.9 * state + 0.1 * x[:, t]
        states.append(state)
    return torch.stack(states, 1)


def rotating(a: Tensor, b: Tensor) -> Tensor:
    """Two states that read each other: the parts of a complex number."""
    real, imaginary, states = torch.zeros_like(a[:, 0]), torch.zeros_like(a[:, 0]), []
    for t in range(a.shape[1]):
        real, imaginary = (
            0.9 * real - a[:, t] * imaginary + b[:, t],
            0.9 * imaginary + a[:, t] * real,
        )
        states.append(real)
    return torch.stack(states, 1)


def gated(x: Tensor, y: Tensor) -> Tensor:
    """A gated recurrent unit whose products are all outside the loop."""
    state, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        gate = torch.sigmoid(x[:, t])
        state = gate * state + (1 - gate) * torch.tanh(y[:, t] + state)
        states.append(state)
    return torch.stack(states, 1)


def long_short(x: Tensor) -> Tensor:
    """An LSTM cell without its products; gates are cut out of one tensor."""
    hidden, cell, states = torch.zeros_like(x[:, 0, :4]), torch.zeros_like(x[:, 0, :4]), []
    for t in range(x.shape[1]):
        enter, forget, new, leave = x[:, t].chunk(4, -1)
        cell = torch.sigmoid(forget + hidden) * cell + torch.sigmoid(enter) * torch.tanh(new)
        hidden = torch.sigmoid(leave) * torch.tanh(cell)
        states.append(hidden)
    return torch.stack(states, 1)


def delta_rule(keys: Tensor, values: Tensor) -> Tensor:
    """A sum over the state is in the loop."""
    state, states = keys.new_zeros(2, 16, 16), []
    for t in range(keys.shape[1]):
        key = keys[:, t, :, None]
        seen = (state * key).sum(1, keepdim=True)
        state = state + key * (values[:, t, None, :] - seen)
        states.append(state.sum(1))
    return torch.stack(states, 1)


def running(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        state, states = x[:, 0], []
        for t in range(1, x.shape[1]):
            state = combine(state, x[:, t])
            states.append(state)
        return torch.stack(states, 1)

    return function


def summed(x: Tensor) -> Tensor:
    total = x[:, 0]
    for t in range(1, x.shape[1]):
        total = total + x[:, t]
    return total


def longest(x: Tensor, y: Tensor) -> Tensor:
    """The best path so far: a maximum of sums."""
    state, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = torch.maximum(state + x[:, t], y[:, t])
        states.append(state)
    return torch.stack(states, 1)


def projected(x: Tensor, weight: Tensor) -> Tensor:
    """Products with the inputs and of the results inside the loop, none that carries the state."""
    state, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = 0.5 * state + torch.tanh(x[:, t] @ weight)
        states.append(torch.relu(state @ weight))
    return torch.stack(states, 1)


def network(x: Tensor, weight: Tensor) -> Tensor:
    state, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = torch.tanh(x[:, t] + state @ weight)
        states.append(state)
    return torch.stack(states, 1)


def experts(x: Tensor, weights: Tensor) -> Tensor:
    """Outputs of experts, weighted and summed."""
    total = torch.zeros_like(x[0])
    for expert in range(weights.shape[0]):
        total = total + x[expert, :, :1] * (x[0] @ weights[expert])
    return total


class Cell(nn.Module):
    """PyTorch's own cell in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden, memory, states = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            hidden, memory = self.cell(x[:, t], (hidden, memory))
            states.append(hidden)
        return torch.stack(states, 1)


LOOPS: tuple[Loop, ...] = (
    Loop("a decayed sum", decayed, TWO, "scan", 2, "associative_scan"),
    Loop("parts taken apart at once", unbound, TWO, "scan", 2, "associative_scan"),
    Loop("from the last part to the first", backwards, TWO, "scan", 2, "associative_scan"),
    Loop("a selective scan read out by products", selective, selective_inputs, "scan", 4,
         "mamba_ssm"),
    Loop("a moving average", averaged, ONE, "scan", 3, "associative_scan", STEPS - 1),
    Loop("two states that read each other", rotating, TWO, "scan", 7, "associative_scan"),
    Loop("a gate that the state goes through", gated, TWO, "recurrence", 7, "not linear"),
    Loop("two states one after the other", long_short, ONE, "recurrence", 10, "not linear"),
    Loop("a sum over the state", delta_rule, TWO, "recurrence", 6, "not linear", STEPS - 1),
    Loop("a running sum", running(torch.add), ONE, "cumsum", 1, "torch.cumsum", STEPS - 1),
    Loop("a running product", running(torch.mul), ONE, "cumprod", 1, "torch.cumprod", STEPS - 1),
    Loop("a running maximum", running(torch.maximum), ONE, "cummax", 1, "torch.cummax", STEPS - 1),
    Loop("a sum of which nobody reads a part", summed, ONE, "sum over an axis", 1, "torch.sum",
         STEPS - 1),
    Loop("a maximum of sums", longest, TWO, "scan", 2, "associative_scan"),
    Loop("products beside the state", projected, tensors((2, STEPS, 16), (16, 16)), "scan", 3,
         "products in it become one", STEPS - 1),
    Loop("a sum over experts", experts, tensors((10, 2, 16), (10, 16, 16)), "sum over an axis", 2,
         "torch.sum", 9),
    Loop("a product of the state", network, tensors((2, STEPS, 16), (16, 16)),
         "recurrent network", 3, "cuDNN"),
    Loop("PyTorch's LSTM cell", Cell(), ONE, "recurrent network", 2, "cuDNN"),
)  # fmt: skip


def two_steps_back(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    state, before, states = torch.zeros_like(a[:, 0]), torch.zeros_like(a[:, 0]), []
    for t in range(a.shape[1]):
        state, before = a[:, t] * state + b[:, t] * before + c[:, t], state
        states.append(state)
    return torch.stack(states, 1)


def unlike_steps(a: Tensor, b: Tensor) -> Tensor:
    state, states = torch.zeros_like(a[:, 0]), []
    for t in range(a.shape[1]):
        state = a[:, t] * state + b[:, t] if t in (0, 1, 4, 5, 9) else b[:, t] - state.tanh()
        states.append(state)
    return torch.stack(states, 1)


def unlike_numbers(a: Tensor) -> Tensor:
    """Steps that differ in a number: what one kernel would need as a table."""
    state, states = torch.zeros_like(a[:, 0]), []
    for t in range(a.shape[1]):
        state = (0.5 + 0.01 * t * t) * state + a[:, t]
        states.append(state)
    return torch.stack(states, 1)


def few_steps(a: Tensor, b: Tensor) -> Tensor:
    return decayed(a[:, :7], b[:, :7])


def no_parts(x: Tensor) -> Tensor:
    """Newton's steps: a chain, but over nothing."""
    y = torch.full_like(x, 0.1)
    for _ in range(STEPS):
        y = y * (2 - x * y)
    return y


def without_a_state(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([a[:, t] * b[:, t] + 1 for t in range(a.shape[1])], 1)


def shifted(x: Tensor, w: Tensor) -> Tensor:
    """A convolution as a sum of shifts: parts overlap."""
    total = torch.zeros_like(x[:, :4])
    for k in range(STEPS - 3):
        total = total + x[:, k : k + 4] * w[:, :4]
    return total


def layers(x: Tensor, weights: Tensor) -> Tensor:
    for layer in range(weights.shape[0]):
        x = x + torch.tanh(x @ weights[layer])
    return x


def folded(x: Tensor, weight: Tensor) -> Tensor:
    """The compiler makes one op of product and sum: the state is only its addend."""
    state, states = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        state = 0.5 * state + x[:, t] @ weight
        states.append(state)
    return torch.stack(states, 1)


def through_an_unknown_op(a: Tensor, b: Tensor) -> Tensor:
    state, states = torch.zeros_like(a[:, 0]), []
    for t in range(a.shape[1]):
        state = torch.erfc(a[:, t] * state + b[:, t])
        states.append(state)
    return torch.stack(states, 1)


def written_between(a: Tensor, b: Tensor) -> Tensor:
    """Every step changes the tensor that the next one reads a part of."""
    a = a.clone()
    state, states = torch.zeros_like(a[:, 0]), []
    for t in range(a.shape[1]):
        state = a[:, t] * state + b[:, t]
        a.add_(state[:, None])
        states.append(state)
    return torch.stack(states, 1)


NONE: tuple[Loop, ...] = (
    Loop("two steps back", two_steps_back, THREE),
    Loop("steps that are not alike", unlike_steps, TWO),
    Loop("steps with numbers of their own", unlike_numbers, ONE),
    Loop("seven steps", few_steps, TWO),
    Loop("a chain over nothing", no_parts, ONE),
    Loop("steps that do not read each other", without_a_state, TWO),
    Loop("a convolution as shifts", shifted, TWO),
    Loop("layers with weights of their own", layers, tensors((2, STEPS, 16), (10, 16, 16))),
    Loop("a sum of products", folded, tensors((2, STEPS, 16), (16, 16))),
    Loop("an op that nobody knows", through_an_unknown_op, TWO),
    Loop("a write between the steps", written_between, TWO),
    Loop("cumsum itself", lambda x: x.cumsum(1) * 2, ONE),
    Loop("a softmax of parts", lambda x: torch.cat([p.softmax(-1) for p in x.split(1, 1)], 1), ONE),
)
