"""How far two runs of a step are apart, result by result, and which of them are rounding alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

# Beyond this share of its norm, a result is another one, not eager's rounded. Where few of many are
# and the rest is not, they are rounding themselves: what is 0 but for it, as the gradient of a bias
# that a softmax or a norm takes out again. Of them only the size can be held against anything.
COMPARABLE = 0.1
# Results that are rounding alone may be so many times as large as those they are compared with.
NOISE = 8.0


class Agreement(NamedTuple):
    """Difference of our results from those of `reference`, and its own; epsilon of their dtype.

    `note` says why the figures prove nothing, if so.
    """

    reference: str
    error: float
    baseline: float
    epsilon: float
    note: str = ""


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
    return held("the compiler", ours, plain, again())


def held(
    reference: str,
    ours: Sequence[torch.Tensor],
    theirs: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
) -> Agreement:
    """Our results against those of the reference, beside `others` that should be the same."""
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
    error = max((mine[number] for number in kept), default=0.0)
    baseline = max((gap for number, gap in enumerate(own) if number not in noise), default=0.0)
    return Agreement(reference, error, baseline, epsilon)


def epsilon_of(values: Sequence[torch.Tensor]) -> float:
    """The machine epsilon of the coarsest type among them."""
    return max((torch.finfo(t.dtype).eps for t in values if t.is_floating_point()), default=0.0)


def difference(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """The largest of `differences`."""
    return max(differences(ours, theirs), default=0.0)
