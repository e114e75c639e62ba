"""Whether a step trains like eager's: losses of several steps beside those of a float32 run.

Three fresh copies of the workload start from the same weights and random numbers. The run in
float32 is the reference; eager's own distance from it says how much rounding moves these losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from advisor.errors import AdvisorError
from advisor.pipeline.peers import Alone, Peers, all_say, together
from collectors.live.workload import Step, Workload, tensors

STEPS = 20
SEED = 1
# Ours may be as far from float32 as eager is, twice over, and a step of rounding on top.
TOLERATED = 2.0
# Two runs of eager that differ by more draw random numbers; by less, the order of their sums.
RANDOM = 5e-3


@dataclass(frozen=True)
class LossCurves:
    """Losses of `STEPS` steps: eager's, ours, and those of a float32 run."""

    eager: tuple[float, ...]
    ours: tuple[float, ...]
    reference: tuple[float, ...]

    @property
    def divergence(self) -> float:
        """Largest distance of our losses from the reference, relative to its largest loss."""
        return _distance(self.ours, self.reference)

    @property
    def eager_divergence(self) -> float:
        """The same of eager's."""
        return _distance(self.eager, self.reference)

    def agree(self, resolution: float) -> bool:
        """Whether ours stay as near to float32 as eager's do, or within `resolution` of it."""
        allowed = max(TOLERATED * self.eager_divergence, resolution)
        return math.isfinite(self.divergence) and self.divergence <= allowed


def loss_curves(
    reload: Callable[[], Workload],
    ours: Callable[[], tuple[Workload, Callable[..., Any]]],
    peers: Peers | None = None,
) -> LossCurves | str:
    """The curves of a training step, or why they say nothing.

    `reload` makes the workload anew from one seed, `ours` does so with what is to be judged: a copy
    and how its part is run. Several ranks train together: each run is made by all or by none.
    """
    ranks = peers if peers is not None else Alone()
    first = together(ranks, "losses of eager", lambda: _losses(reload(), None, SEED))
    if not all_say(ranks, "there is a loss", first is not None) or first is None:
        return "the step returns no loss"
    again = together(ranks, "losses again", lambda: _losses(reload(), None, SEED + 1))
    alike = again is not None and _distance(again, first) <= RANDOM
    if not all_say(ranks, "losses are alike", alike):
        return "the loss depends on random numbers, which the compiler draws otherwise"
    reference = _reference(reload())
    if not all_say(ranks, "float32 runs", reference is not None) or reference is None:
        return "the step does not run in float32"
    found = together(ranks, "losses of ours", lambda: _losses(*ours(), SEED))
    return LossCurves(first, found or (), reference)


def _reference(twin: Workload) -> tuple[float, ...] | None:
    if not isinstance(twin.part, nn.Module):
        return None
    # In place: the optimizer holds these very parameters.
    twin.part.float()
    try:
        return _losses(twin, None, SEED)
    except AdvisorError:
        return None


def _losses(twin: Workload, part: Callable[..., Any] | None, seed: int) -> tuple[float, ...] | None:
    step: Step = twin.step_of(None if part is None else lambda _: part)
    cards = [twin.device] if twin.device.type == "cuda" else []
    with torch.random.fork_rng(cards):
        torch.manual_seed(seed)
        found = []
        for _ in range(STEPS):
            values = tensors(step())
            if len(values) != 1 or values[0].numel() != 1:
                return None
            found.append(float(values[0].detach()))
    return tuple(found)


def _distance(values: Sequence[float], reference: Sequence[float]) -> float:
    if len(values) != len(reference):
        return math.inf
    scale = max((abs(value) for value in reference), default=0.0) or 1.0
    gaps = [abs(a - b) / scale for a, b in zip(values, reference, strict=True)]
    return math.inf if any(map(math.isnan, gaps)) else max(gaps, default=0.0)
