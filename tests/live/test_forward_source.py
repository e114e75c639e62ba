"""What cannot be told from the source of a forward, so that no kernel takes its place."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import IllegalFusionError
from collectors.live.forward_source import read_forward

OUTSIDE = torch.ones(4)
CHANGING = """from torch import nn

class M(nn.Module):
    def forward(self, x):
        return x
"""


class ReadsATensorOutside(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * OUTSIDE


class CallsAModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.act(x)
        return y


class Counts(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * 2


class HoldsAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = [2.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scales[0]


class AnyArguments(nn.Module):
    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return x * 2


class HandsItselfOn(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(list(nn.Module.parameters(self)))


class OneLine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor: return x * 2  # fmt: skip


def _closed() -> nn.Module:
    factor = 2.0

    class Closed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * factor

    return Closed()


def _put_on() -> nn.Module:
    module = nn.Identity()
    module.forward = lambda x: x * 2  # type: ignore[method-assign,assignment]
    return module


EPS, LARGE = 1e-6, math.inf


class ReadsNumbersOutside(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Its last line
        # looks like a comment"""
        # This one is.
        return x * EPS


class HidesANumber(nn.Module):
    def _half(self, x: torch.Tensor) -> torch.Tensor:
        return x * EPS

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        EPS = 3.0  # noqa: N806
        return self._half(x) * EPS


class NoNumber(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * LARGE


class Derived(float):
    """A number that no file holds, as NumPy's float64."""


def _with(name: str, value: Any) -> nn.Module:
    module = HidesANumber() if name == "_half" else _Scaled()
    setattr(module, name, value)
    return module


class _Scaled(nn.Module):
    scale: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x * self.scale
        return y


def test_numbers_of_the_file_are_handed_on_and_no_docstring_is_changed() -> None:
    """They may be others one day, when the kernel still holds those that it was made of."""
    found = read_forward(ReadsNumbersOutside(), 1)
    assert [(c.holder, c.name, c.value) for c in found.constants] == [("argument", "EPS", 1e-6)]
    assert found.body.lines[found.body.at - found.body.first].endswith("# This one is.")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (HidesANumber(), "a name of its own for EPS"),
        (NoNumber(), "reads LARGE, inf"),
        (_with("scale", Derived(2.0)), "self.scale, a Derived"),
        (_with("scale", -math.inf), "self.scale, -inf"),
        (_with("_half", abs), "self._half was put on the module"),
        (ReadsATensorOutside(), "OUTSIDE, which is not looked into"),
        (CallsAModule(), "self.act, a module of its own"),
        (Counts(), "writes self.calls"),
        (HoldsAList(), "self.scales, a list"),
        (AnyArguments(), "any number of arguments"),
        (HandsItselfOn(), "hands its module on"),
        (OneLine(), "on one line"),
        (_closed(), "variables of a function around it"),
        (_put_on(), "put on the module"),
        (nn.LayerNorm(4), "PyTorch's own"),
    ],
)
def test_what_cannot_be_told_from_the_source_is_a_reason(module: nn.Module, reason: str) -> None:
    with pytest.raises(IllegalFusionError, match=reason):
        read_forward(module, 1)


def test_source_that_changed_since_it_was_imported_is_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text(CHANGING)
    spec = importlib.util.spec_from_file_location("changing", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    file.write_text("class M(\n")
    with pytest.raises(IllegalFusionError, match="no Python any more"):
        read_forward(made.M(), 1)
