"""Programs of real modules, forward and backward, are called what people of the field call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from analyzers.chain_programs import chains_beside
from analyzers.naming import describe
from analyzers.row_plans import canonical_program, plan_of
from analyzers.row_programs import find_row_programs
from tests.builders import captured as models

C = 48
EPS = 1e-6
Step = Callable[..., torch.Tensor]


class Computes(nn.Module):
    """A function of what it is given and of weights of C columns."""

    def __init__(self, function: Step, weights: int) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(torch.rand(C)) for _ in range(weights))
        self.before = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        # Something to differentiate by: what is given has no gradient.
        return self.function(torch.sort(x * self.before)[0], *more, *self.weights)


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))


def rms_by_root(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def layer_by_squares(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The variance as the mean of squares less the square of the mean."""
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return weight * ((x - mean) * torch.rsqrt(variance + EPS))


def layer_by_hand(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return weight * (centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + EPS))


def quantised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    normed = rms(x, weight)
    return (normed / (normed.abs().amax(-1, keepdim=True) / 448)).to(torch.float8_e4m3fn)


def gelu_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    normed = functional.layer_norm(x, (C,), weight)
    return functional.gelu(normed, approximate="tanh")


def dropped(x: torch.Tensor, other: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(functional.dropout(x, 0.1) + other, (C,), weight)


ROWS, SQUARE = torch.randn(24, C), torch.randn(C, C)
TARGET, TARGETS = torch.randint(0, C, (24,)), torch.randn(C)
CASES: tuple[tuple[str, Step, int, tuple[torch.Tensor, ...], str, str], ...] = (
    ("RMS norm", rms, 1, (), "RMS norm", "RMS norm gradient"),
    ("by the root", rms_by_root, 1, (), "RMS norm", "RMS norm gradient"),
    ("torch's", lambda x, w: functional.rms_norm(x, (C,), w), 1, (), "RMS norm", "RMS norm grad"),
    ("L2", lambda x: functional.normalize(x, dim=-1), 0, (), "L2 normalisation",
     "L2 normalisation gradient"),
    ("layer norm", lambda x, w, b: functional.layer_norm(x, (C,), w, b), 2, (), "layer norm",
     "layer norm gradient"),
    ("of squares", layer_by_squares, 1, (), "layer norm", ""),
    ("centred", layer_by_hand, 1, (), "layer norm", ""),
    ("GELU", gelu_norm, 1, (), "layer norm + GELU", "GELU gradient + layer norm gradient"),
    ("dropout", dropped, 1, (ROWS,), "dropout + residual add + layer norm", "layer norm gradient"),
    ("softmax", lambda x: torch.softmax(x, -1), 0, (), "softmax", "softmax gradient"),
    ("dropped softmax", lambda x: functional.dropout(torch.softmax(x, -1), 0.1), 0, (),
     "softmax + dropout", "softmax gradient"),
    ("bias", lambda x, b: torch.softmax(x + b, -1), 0, (ROWS,), "biased softmax", "softmax grad"),
    ("log-softmax", lambda x: functional.log_softmax(x, -1), 0, (), "log-softmax", "log-softmax"),
    ("cross-entropy", functional.cross_entropy, 0, (TARGET,), "log-softmax",
     "cross-entropy gradient"),
)  # fmt: skip


def titles(module: nn.Module, *inputs: torch.Tensor, training: bool) -> dict[str, list[str]]:
    """Titles of the programs of each phase."""
    torch.compiler.reset()
    capture = models.captured_training if training else models.captured
    found: dict[str, list[str]] = {}
    for item in capture(module, *inputs).graphs:
        graph = item.lowered.graph
        programs = find_row_programs(graph)
        groups = (*programs.whole, *chains_beside(programs, []).groups)
        plans = [plan_of([canonical_program(programs.flow, g)], graph.phase, "") for g in groups]
        found[graph.phase] = [describe(plan) for plan in plans]
    return found


@pytest.mark.parametrize(
    ("name", "function", "weights", "more", "forward", "backward"), CASES, ids=[c[0] for c in CASES]
)
def test_a_program_is_called_what_it_is(
    name: str,
    function: Step,
    weights: int,
    more: tuple[Any, ...],
    forward: str,
    backward: str,
) -> None:
    found = titles(Computes(function, weights), ROWS, *more, training=True)
    named = [title.split(" with ")[0].split(" and sum")[0] for title in found["forward"]]
    assert forward in named, found
    assert any(title.startswith(backward) for title in found["backward"]), found


def test_the_logarithm_of_a_sum_alone_is_no_softmax() -> None:
    found = titles(Computes(lambda x: torch.logsumexp(x, -1), 0), ROWS, training=False)
    assert found["inference"] == ["log-sum-exp"]


def test_a_norm_that_is_rounded_says_both() -> None:
    found = titles(Computes(quantised, 1), ROWS, training=False)
    assert found["inference"] == ["RMS norm + quantisation to float8_e4m3fn"]


def test_a_group_norm_with_silu() -> None:
    """Its gradient is two programs: the sums of each channel, and what they come back into."""
    module = nn.Sequential(nn.Conv2d(8, 8, 1), nn.GroupNorm(4, 8), nn.SiLU())
    found = titles(module, torch.randn(2, 8, 6, 6), training=True)
    assert any(title.startswith("group norm + SiLU") for title in found["forward"])
    assert any(
        t.startswith("SiLU gradient + row sums of a gradient and of its product")
        for t in found["backward"]
    )


@pytest.mark.parametrize("name", ["SiLU", "GELU", "ReLU"])
def test_gates_name_their_activation(name: str) -> None:
    """The derivative of SiLU is computed backward, those of the others forward."""
    function = getattr(functional, name.lower())
    found = titles(Computes(lambda x, y: function(x) * y, 0), ROWS, ROWS, training=True)
    (forward,) = found["forward"]
    assert forward.removesuffix(" with 2 outputs") == f"pointwise chain with {name}"
    assert found["backward"] == ["SiLU gradient" if name == "SiLU" else "pointwise chain gradient"]


def _share(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    return x / total.sum(-1, keepdim=True)


def _size(x: torch.Tensor) -> torch.Tensor:
    return x.pow(2).mean(-1, keepdim=True)


def _squares(x: torch.Tensor) -> torch.Tensor:
    return x.pow(2).sum(-1, keepdim=True)


def _spread(x: torch.Tensor) -> torch.Tensor:
    return (x.var(-1, keepdim=True, correction=0) + EPS).sqrt()


def _mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1, keepdim=True)


def _less_max(x: torch.Tensor) -> torch.Tensor:
    return x - x.amax(-1, keepdim=True)


# What is nearly one of the field's computations, and none: name, function, inputs beside x.
NEARLY: tuple[tuple[str, Step, int], ...] = (
    ("a sum of powers", lambda x: torch.exp(_less_max(x)).sum(-1), 0),
    ("by the largest", lambda x: _share(*(torch.exp(x * x.amax(-1, keepdim=True)),) * 2), 0),
    ("of another's", lambda x, y: _share(*(torch.exp(x - y.amax(-1, keepdim=True)),) * 2), 1),
    ("another shared", lambda x, y: _share(y, torch.exp(_less_max(x))), 1),
    ("times a logarithm", lambda x: x * torch.exp(_less_max(x)).sum(-1, keepdim=True).log(), 0),
    ("a deviation", lambda x: x.std(-1), 0),
    ("by the deviation", lambda x: x / _spread(x), 0),
    ("times the deviation", lambda x: x * _spread(x), 0),
    ("of another mean", lambda x, y: (x - _mean(y)) / _spread(x), 1),
    ("a root of squares", lambda x: _size(x).sqrt(), 0),
    ("another over it", lambda x, y: y * torch.rsqrt(_size(x) + EPS), 1),
    ("added to", lambda x: x + _size(x).sqrt(), 0),
    ("and absolute", lambda x: x * torch.rsqrt(_size(x) + _mean(x.abs())), 0),
    ("times squares", lambda x: x * _size(x), 0),
    ("over squares", lambda x: x / _size(x), 0),
    ("rounded", lambda x: (x.abs().amax(-1, keepdim=True) + x).to(torch.int8).float() * x, 0),
    ("erf", lambda x: torch.erf(x) * x, 0),
    ("Φ", lambda x: torch.sin(x) * (1 + torch.erf(x * 0.5**0.5)), 0),
    ("tanh", lambda x: x * torch.tanh(x * 0.044715), 0),
    ("two and more", lambda x: x / (2 + torch.exp(-x)), 0),
    ("compared", lambda x: (x > 0.5) * x, 0),
    ("six", functional.hardswish, 0),
    ("threshold", lambda x: functional.threshold(x, 0.5, 0.0), 0),
)
NAMES = ("norm", "softmax", "log-sum-exp", "quantisation", "LU", "dropout", "normalisation")


@pytest.mark.parametrize(("name", "function", "more"), NEARLY, ids=[c[0] for c in NEARLY])
def test_what_is_nearly_something_has_not_its_name(name: str, function: Step, more: int) -> None:
    found = titles(Computes(function, 0), *(ROWS,) * (1 + more), training=True)
    for title in (title for phase in found.values() for title in phase):
        assert not any(word in title for word in NAMES), found


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * (_size(x) + EPS).sqrt(),
        lambda x: x * _squares(x),
        lambda x: x * (_squares(x) + EPS).sqrt(),
        lambda x: x / _squares(x),
        lambda x: x / _squares(x) ** 2,
        lambda x: x - TARGETS * (x * TARGETS).sum(-1, keepdim=True),
        lambda x: x * x.abs().amax(-1, keepdim=True).rsqrt(),
    ],
    ids=["mean½", "sum", "sum½", "sum⁻¹", "sum⁻²", "projected", "amax⁻½"],
)
def test_a_gradient_of_another_power_of_the_size_has_not_a_norms_name(function: Step) -> None:
    """Of x rᵖ they are alike, but for the powers of r: a norm's is -1. No root is a norm."""
    found = titles(Computes(lambda x, weight: function(x * weight), 1), ROWS, training=True)
    (title,) = found["backward"]
    assert title.startswith("row reduction gradient"), found


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.normalize(x - _mean(x), dim=-1),
        lambda x: (x - _mean(x)) * torch.rsqrt(_size(x) + EPS),
        lambda x: (x - _mean(x)) * _spread(x),
        lambda x: (x - _mean(x)) / (_spread(x) ** 2),
        lambda x: (x - _mean(x)) * torch.tanh(_spread(x)),
    ],
)
def test_what_is_centred_is_no_layer_norm_yet(function: Step) -> None:
    found = titles(Computes(function, 0), ROWS, training=True)
    assert " of each row" in found["forward"][0]
    assert not any("layer norm" in title for phase in found.values() for title in phase), found


def test_a_norm_that_is_computed_again_is_no_gradient() -> None:
    """What the product behind it gives is needed again, before anything is differentiated."""

    def inner(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms(rms(x, weight) @ SQUARE, weight) @ SQUARE

    def again(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(inner, x @ SQUARE, weight, use_reentrant=False)
        return result

    found = titles(Computes(again, 1), ROWS, training=True)
    assert "RMS norm in the backward pass with 2 outputs" in found["backward"], found
    assert sum(title.startswith("RMS norm gradient") for title in found["backward"]) == 2


def test_a_table_that_is_read_behind_a_norm_is_none_before_it() -> None:
    table, words = torch.randn(50, C), torch.arange(24) % 7
    for before, name in ((True, "embedding + RMS norm"), (False, "RMS norm")):

        def function(x: torch.Tensor, *, before: bool = before) -> torch.Tensor:
            looked_up = functional.embedding(words, table)
            size = looked_up if before else x
            normed = size * torch.rsqrt(_size(size) + EPS)
            return normed if before else normed + looked_up

        found = titles(Computes(function, 0), ROWS, training=False)
        assert found["inference"] == [name], found


def test_a_slope_before_a_softmax_is_no_mask() -> None:
    found = titles(Computes(lambda x: torch.softmax(functional.leaky_relu(x), -1), 0), ROWS,
                   training=False)  # fmt: skip
    assert found["inference"] == ["softmax"]


def test_a_variance_beside_a_norm_is_no_batch_norm() -> None:
    module = Computes(lambda x: (functional.rms_norm(x, (C,)), x.var(0)), 0)  # type: ignore[arg-type,return-value]
    found = titles(module, ROWS, training=False)
    assert found["inference"] == ["RMS norm and var over the rows with 2 outputs"]


def test_rows_multiplied_again_and_again_are_named_at_once() -> None:
    """2^60 ways lead from the result to the mean."""

    def powers(x: torch.Tensor) -> torch.Tensor:
        size = _size(x)
        for _ in range(60):
            size = size * size
        return x * size

    assert titles(Computes(powers, 0), ROWS, training=True)["forward"]
