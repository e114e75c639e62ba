"""Each result is judged by its own distance from eager's, whatever others round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advisor.pipeline.exactness import NO_MODULE, beside_exact
from advisor.pipeline.likeness import FEW, Agreement, Results, agreement
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.peers import Alone
from advisor.pipeline.sets import disagreement

F32, BF16 = torch.float32, torch.bfloat16
MANY = 4 * FEW


class Kind(NamedTuple):
    """One result of a step: how far eager, the compiler and ours are from the truth, by its size.

    `size` is that of the truth, `apart` the share of their errors that the first two do not have
    in common: they call one library.
    """

    eager: float
    plain: float
    ours: float
    elements: int = MANY
    dtype: torch.dtype = F32
    size: float = 1.0
    apart: float = 0.7


class Judged:
    """A bench whose results are given, and those of a run in float64 if `has_exact`."""

    def __init__(self, kinds: Sequence[Kind], has_exact: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        made = [_made(kind, generator) for kind in kinds]
        self.truth = [truth for truth, *_ in made]
        self.found = Results(*([runs[which] for runs in made] for which in (1, 2, 3)))
        self.has_exact = has_exact

    def results(self, variant: Variant) -> Results:
        return self.found

    def agreement(self, results: Results, comparable: bool) -> Agreement | None:
        return agreement(*results, list, comparable)

    def against_exact(self, results: Results) -> Agreement | str:
        return beside_exact(results, self.truth, torch.float64) if self.has_exact else NO_MODULE


def _made(kind: Kind, generator: torch.Generator) -> list[torch.Tensor]:
    """The truth, and three runs that are off by as much in a direction of their own."""

    def drawn() -> torch.Tensor:
        values = torch.randn(kind.elements, generator=generator, dtype=torch.float64)
        return values / values.norm()

    truth = drawn() * kind.size
    shared = (1.0 - kind.apart**2) ** 0.5 * drawn()
    runs = [
        truth + kind.eager * (shared + kind.apart * drawn()),
        truth + kind.plain * (shared + kind.apart * drawn()),
        truth + kind.ours * drawn(),
    ]
    return [truth, *(run.to(kind.dtype) for run in runs)]


def judged(kinds: Sequence[Kind], has_exact: bool = True) -> tuple[str, Agreement]:
    bench = cast(Bench, Judged(kinds, has_exact))
    why, found = disagreement(Alone(), bench, Variant("ours", list, list, list))
    assert found is not None
    return why, found


FINE = Kind(1e-6, 1e-6, 1e-6)
ROUGH = Kind(0.05, 0.05, 0.05)  # the compiler rounds it by 5 %
RIGHT = {
    "as near as the compiler's": [FINE, FINE],
    "each as near as its own": [FINE, ROUGH, Kind(1e-3, 1e-3, 1e-3)],
    "reduced precision of the same size": [Kind(2e-3, 2e-3, 3e-3, dtype=BF16), FINE, FINE],
    "the compiler is eager's to the last bit, ours rounds as well": [
        Kind(0.0, 0.0, 2e-3, dtype=BF16), FINE,
    ],
    "another order of adding, as far from the truth as eager": [Kind(4e-6, 0.0, 4e-6), ROUGH],
    "a loss that both happen to have alike": [
        Kind(1e-9, 1e-9, 8e-4, 1), *[Kind(1e-3, 1e-3, 1e-3)] * 2,
    ],
    "zero but for rounding, seen in the compiler": [FINE, FINE, Kind(1e-9, 1e-9, 2e-9, size=1e-12)],
    "zero but for rounding, alike in eager and the compiler": [
        FINE, FINE, Kind(1e-9, 1e-9, 1e-9, size=1e-12, apart=0.01),
    ],
    "as good as zero, and large numbers": [FINE, FINE, Kind(1e-3, 1e-3, 4e-3, size=0.0)],
}  # fmt: skip
WRONG = {
    "9 % off where another is rounded by 5 %": [ROUGH, Kind(1e-3, 1e-3, 0.09)],
    "a little off where another is rounded by 5 %": [ROUGH, Kind(1e-6, 1e-6, 2e-5)],
    "float32, beside a coarser dtype": [
        Kind(2e-3, 2e-3, 2e-3, dtype=BF16), Kind(1e-6, 1e-6, 1e-2),
    ],
    "a loss, beside one result that rounds badly": [
        Kind(1e-6, 1e-6, 0.09, 1), ROUGH, FINE, FINE,
    ],
    "too large for what is zero but for rounding": [
        FINE, FINE, Kind(1e-9, 1e-9, 1e-3, size=1e-12),
    ],
    "every result": [Kind(1e-6, 1e-6, 1e-3)] * 3,
    "a third of its norm, where the compiler rounds it by 5 %": [Kind(0.05, 0.05, 0.35), FINE],
}  # fmt: skip


@pytest.mark.parametrize("kinds", RIGHT.values(), ids=RIGHT)
def test_what_rounds_as_the_compiler_does_passes(kinds: list[Kind]) -> None:
    why, found = judged(kinds)
    assert why == ""
    assert found.agrees


@pytest.mark.parametrize("has_exact", [True, False])
@pytest.mark.parametrize("kinds", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_excused_by_no_other_result(kinds: list[Kind], has_exact: bool) -> None:
    why, found = judged(kinds, has_exact)
    assert why.startswith("results differ from ")
    assert not found.agrees


def test_the_result_that_differs_is_named_with_its_own_figures() -> None:
    why, found = judged([ROUGH, Kind(1e-3, 1e-3, 0.09)])
    assert f"(result 2 of 2, [{MANY}])" in why
    assert found.error == pytest.approx(0.09, rel=0.01)
    assert found.baseline == pytest.approx(1e-3, rel=0.2)


def test_without_an_exacter_run_nobody_knows_and_the_reason_is_said() -> None:
    why, found = judged([Kind(4e-6, 4e-6, 1e-4), ROUGH], has_exact=False)
    assert why.startswith("results differ from eager's by 1.0")
    assert why.endswith(f"no exacter run can decide: {NO_MODULE}")
    assert found.note == why, "figures that prove nothing are not told as a difference"


# The largest of all results is off by more than twice what the compiler's largest is.
FURTHER = [Kind(2e-3, 2e-3, 9e-3), FINE, Kind(1e-3, 1e-3, 1e-3)]


def test_what_each_result_may_be_off_is_not_refused_for_the_largest_of_all() -> None:
    why, found = judged(FURTHER, has_exact=False)
    assert why == ""
    assert found.agrees
    assert not found.note
    assert found.error == pytest.approx(9e-3, rel=0.05)


def test_an_exacter_run_still_tells_the_largest_that_is_further_off_than_eager() -> None:
    why, found = judged(FURTHER)
    assert why.startswith("results differ from a float64 run's by 9.0")
    assert not found.agrees


DTYPES = st.sampled_from((F32, BF16))
ROUNDED = st.floats(1e-6, 0.03)


@st.composite
def rounded(draw: st.DrawFn) -> Kind:
    """A result that all three round alike: the truth is as far from each, give or take a half."""
    error = draw(ROUNDED)
    one, two, ours = (draw(st.floats(0.7, 1.3)) * error for _ in range(3))
    return Kind(one, two, ours, draw(st.integers(FEW, 8 * FEW)), draw(DTYPES))


@given(st.lists(rounded(), min_size=1, max_size=6), st.booleans())
def test_results_that_all_round_alike_always_pass(kinds: list[Kind], has_exact: bool) -> None:
    assert judged(kinds, has_exact)[0] == ""


@given(st.lists(rounded(), min_size=2, max_size=6), st.data())
def test_one_result_that_is_off_by_far_more_than_it_rounds_never_passes(
    kinds: list[Kind], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(kinds) - 1))
    one = kinds[place]
    off = 12.0 * max(one.eager, one.plain, float(torch.finfo(one.dtype).eps))
    kinds[place] = one._replace(ours=off)
    why, found = judged(kinds)
    assert why
    assert not found.agrees


def test_beside_the_same_run_again_what_comes_again_exactly_may_still_be_rounded() -> None:
    """A loss in float32 of a model in bfloat16 with dropout, compared with the compiler's own."""
    generator = torch.Generator().manual_seed(0)
    eager = [torch.randn(MANY, generator=generator).to(BF16), torch.tensor(1.0)]
    plain = [torch.randn(MANY, generator=generator).to(BF16), torch.tensor(2.0)]
    ours = [plain[0] * 1.004, plain[1] * 1.001]
    noisy = [plain[0] * 1.05, plain[1]]
    found = agreement(eager, plain, ours, lambda: plain, comparable=False)
    assert found is not None
    assert found.agrees
    wrong = [plain[0], plain[1] * 1.09]
    found = agreement(eager, plain, wrong, lambda: noisy, comparable=False)
    assert found is not None
    assert not found.agrees, "what the first changes by from run to run excuses no loss"
