"""How far two runs of a step are apart, result by result, and which of them are rounding alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

# Beyond this share of its norm, a result is another one, not eager's rounded. Where few of many are
# and the rest is not, they are rounding themselves: what is 0 but for it, as the gradient of a bias
# that a softmax or a norm takes out again. Of them only the size can be held against anything.
COMPARABLE = 0.1


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
