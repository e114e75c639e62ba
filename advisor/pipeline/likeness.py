"""How far two runs of a step are apart, result by result, and which of them are rounding alone."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from statistics import median
from typing import NamedTuple

import torch

from advisor.apply.judge import outputs_agree

# Beyond this share of its norm, a result is another one, not eager's rounded. Where few of many are
# and the rest is not, they are rounding themselves: what is 0 but for it, as the gradient of a bias
# that a softmax or a norm takes out again. Of them only the size can be held against anything.
COMPARABLE = 0.1
# Results that are rounding alone may be so many times as large as those they are compared with, and
# one result so many times as far off as the compiler's own: rounding otherwise is not that unlike.
NOISE = 8.0
# How near two runs of fewer elements are is luck: a loss may be the same in both to its last bit.
FEW = 32
TINY = sys.float_info.min


class Agreement(NamedTuple):
    """Difference of our results from those of `reference`, and its own; epsilon of their dtype.

    The figures are the largest of all results, or those of the one named in `result`: its own
    rounding is `floor`, and no other excuses it. `each` says that all were within what each may be
    off. `note` says why the figures prove nothing, if so.
    """

    reference: str
    error: float
    baseline: float
    epsilon: float
    note: str = ""
    result: str = ""
    floor: float | None = None
    each: bool = False

    @property
    def agrees(self) -> bool:
        """Whether our results are shown to be as good as the compiler's."""
        return not self.note and (self.each or self.is_near)

    @property
    def is_near(self) -> bool:
        """Whether the figures alone show that; where they do not, an exacter run may know more."""
        floor = self.epsilon if self.floor is None else self.floor
        return outputs_agree(self.error, self.baseline, floor)


class Results(NamedTuple):
    """What the step returns by eager, by the compiler alone, and as a variant runs it."""

    eager: list[torch.Tensor]
    plain: list[torch.Tensor]
    ours: list[torch.Tensor]

    @property
    def comparable(self) -> bool:
        """Whether the compiler's results are eager's, rounded otherwise, and no other ones."""
        return noise_of(differences(self.plain, self.eager)) is not None


def noise_of(gaps: Sequence[float]) -> set[int] | None:
    """Which of results differ from the same ones as noise does; None where half of them do."""
    found = {number for number, gap in enumerate(gaps) if not gap <= COMPARABLE}
    return found if 2 * len(found) < len(gaps) and all(map(math.isfinite, gaps)) else None


def differences(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> list[float]:
    """Norm of the difference over the norm by result; inf if structures differ.

    Infinities and NaN of theirs must be ours too; the norms are of the finite elements. Results
    that are NaN throughout agree with nothing: inf.
    """
    if len(ours) != len(theirs) or all(bool(_wide(t).isnan().all()) for t in theirs):
        return [math.inf] * max(len(theirs), 1)
    return [_distance(a, b) for a, b in zip(ours, theirs, strict=True)]


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    if not ours.is_floating_point() and not ours.is_complex():
        return 0.0 if torch.equal(ours, theirs) else float("inf")
    ours, theirs = _wide(ours), _wide(theirs)
    finite = torch.isfinite(theirs)
    alike = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if not bool((finite | alike).all()):
        return float("inf")
    exact = torch.where(finite, theirs, 0.0)
    gap = float(torch.where(finite, ours - exact, 0.0).norm())
    size = float(exact.norm())
    value = gap / size if size else gap
    return float("inf") if math.isnan(value) else value


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In a type in which everything can be computed: float64, complex numbers as pairs of it."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.double()


def agreement(
    eager: Sequence[torch.Tensor],
    plain: Sequence[torch.Tensor],
    ours: Sequence[torch.Tensor],
    again: Callable[[], Sequence[torch.Tensor]],
    comparable: bool,
) -> Agreement | None:
    """Our results against eager's, beside the compiler's own; None where there are none.

    The compiler draws other random numbers than eager: where its results are not `comparable`,
    ours, which draw as it does, are compared with them, and it with itself run `again`.
    """
    if not eager:
        return None
    if comparable:
        return held("eager", ours, eager, plain)
    return held("the compiler", ours, plain, again(), same=True)


def held(
    reference: str,
    ours: Sequence[torch.Tensor],
    theirs: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
    *,
    same: bool = False,
) -> Agreement:
    """Our results against those of the reference, beside `others` that should be the same.

    Each result is compared with what it may be off by rounding, and the one that is furthest beyond
    is told by itself; where all are within, the largest figures are told and refuse none. Where
    `others` are the `same` run again, they do not show what rounding is: that of the coarsest type
    is allowed to each.
    """
    mine, own = differences(ours, theirs), differences(others, theirs)
    epsilon = epsilon_of(theirs)
    noise = noise_of(own)
    if noise is None:
        baseline = max(own, default=0.0)
        note = (
            f"the step's own results change by {baseline:.1e} when it is run again: nothing shows "
            "that ours agree"
        )
        return Agreement(reference, max(mine, default=0.0), baseline, epsilon, note)
    size = [NOISE * max(1.0, gap) if number in noise else 0.0 for number, gap in enumerate(own)]
    kept = [number for number, gap in enumerate(mine) if not gap <= size[number]]
    floors = [epsilon] * len(own) if same else floors_of(theirs, own, noise)
    beyond = {n: mine[n] / max(_allowed(own[n]), 2.0 * floors[n], TINY) for n in kept}
    worst = max(beyond, key=lambda n: beyond[n], default=None)
    if worst is not None and beyond[worst] > 1.0:
        figures = mine[worst], own[worst], epsilon
        return Agreement(reference, *figures, result=named(theirs, worst), floor=floors[worst])
    error = max((mine[number] for number in kept), default=0.0)
    baseline = max((gap for number, gap in enumerate(own) if number not in noise), default=0.0)
    return Agreement(reference, error, baseline, epsilon, each=True)


def _allowed(gap: float) -> float:
    """How far off a result may be beside the compiler's own `gap`: not so far as to be another."""
    return min(NOISE * gap, max(2.0 * gap, COMPARABLE))


def floors_of(
    values: Sequence[torch.Tensor], gaps: Sequence[float], noise: Collection[int]
) -> list[float]:
    """What each result is off by rounding, however near two runs of it happen to be.

    The machine epsilon of its own dtype; of a result of few elements, what is usual: the median of
    the `gaps` of larger ones, where there are any. `noise` are results that are rounding alone.
    """
    pairs = enumerate(zip(values, gaps, strict=True))
    large = [gap for n, (t, gap) in pairs if n not in noise and t.numel() >= FEW]
    usual = median(large) if large else 0.0
    return [max(epsilon_of([t]), usual if t.numel() < FEW else 0.0) for t in values]


def named(values: Sequence[torch.Tensor], number: int) -> str:
    """A result by its place and its sizes."""
    return f"result {number + 1} of {len(values)}, {list(values[number].shape)}"


def epsilon_of(values: Sequence[torch.Tensor]) -> float:
    """The machine epsilon of the coarsest type among them."""
    kinds = {t.dtype for t in values if t.is_floating_point() or t.is_complex()}
    return max((torch.finfo(kind).eps for kind in kinds), default=0.0)


def difference(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """The largest of `differences`."""
    return max(differences(ours, theirs), default=0.0)
