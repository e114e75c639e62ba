"""What was learned of a GPU's predictions: kept per GPU, checked, applied to modelled times."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import InvalidRecordError
from advisor.hardware.gpus import gpu_by_key
from advisor.hardware.learned import (
    AS_MODELLED,
    SHIPPED,
    LearnedIntervals,
    learned_path,
    learned_residuals,
    recalibrated,
    residual_of,
    save_learned,
    time_at,
)
from advisor.model.base import Range, load
from advisor.model.scores import ResidualQuantiles
from benchmarks.calibration import scores
from benchmarks.lessons import lesson

H200, A100 = gpu_by_key("h200"), gpu_by_key("a100")
LONGER = ResidualQuantiles(low=-0.5, mid=0.25, high=2.0)
TIMES = st.tuples(*[st.integers(0, 10**9)] * 3).map(sorted)


def test_nothing_learned_changes_nothing(tmp_path: Path) -> None:
    assert learned_residuals(A100, tmp_path) == AS_MODELLED


def test_what_the_zoo_taught_ships(tmp_path: Path) -> None:
    """The committed file is what the committed results give; it holds until there is another."""
    ships = load(SHIPPED / "h200.json", LearnedIntervals)
    assert ships == lesson(scores()), "python benchmarks/lessons.py"
    assert learned_residuals(H200, tmp_path) == ships.residuals


def test_what_was_learned_is_its_gpus(tmp_path: Path) -> None:
    save_learned(
        LearnedIntervals(gpu="h200", residuals=LONGER, plans=40), learned_path(H200, tmp_path)
    )
    assert learned_residuals(H200, tmp_path) == LONGER
    assert learned_residuals(A100, tmp_path) == AS_MODELLED
    learned_path(H200, tmp_path).rename(learned_path(A100, tmp_path))
    with pytest.raises(InvalidRecordError, match="is of h200"):
        learned_residuals(A100, tmp_path)


@pytest.mark.parametrize(
    ("low", "high", "plans"), [(-1.0, 99.0, 40), (-99.0, 1.0, 40), (1.0, -1.0, 40), (-1.0, 1.0, 3)]
)
def test_what_cannot_have_been_learned_is_refused(
    tmp_path: Path, low: float, high: float, plans: int
) -> None:
    found = ResidualQuantiles(low=low, mid=0.0, high=high)
    with pytest.raises(InvalidRecordError):
        save_learned(
            LearnedIntervals(gpu="h200", residuals=found, plans=plans), tmp_path / "x.json"
        )


def test_a_file_of_another_form_is_refused_with_what_to_do(tmp_path: Path) -> None:
    learned_path(H200, tmp_path).write_text('{"gpu": "h200", "interval_factor": 1.5, "plans": 40}')
    with pytest.raises(InvalidRecordError, match=r"interval_factor.*learn anew with"):
        learned_residuals(H200, tmp_path)


def test_each_end_and_the_middle_move_by_themselves() -> None:
    modelled = Range(low=80, mid=100, high=140)
    assert recalibrated(modelled, LONGER) == Range(low=90, mid=110, high=180)
    shorter = ResidualQuantiles(low=-8.0, mid=-0.5, high=-0.25)
    assert recalibrated(modelled, shorter) == Range(low=0, mid=90, high=95)


@given(TIMES)
def test_as_modelled_is_as_modelled(times: list[int]) -> None:
    low, mid, high = times
    modelled = Range(low=low, mid=mid, high=high)
    assert recalibrated(modelled, AS_MODELLED) == modelled


@given(TIMES, st.integers(0, 10**9))
def test_a_time_lies_where_its_residual_says(times: list[int], measured_ns: int) -> None:
    low, mid, high = times
    modelled = Range(low=low, mid=mid, high=high)
    residual = residual_of(modelled, measured_ns)
    if low < mid < high:
        assert time_at(modelled, residual) == measured_ns
        assert (low <= measured_ns <= high) == (-1 <= residual <= 1)


@given(TIMES, st.tuples(*[st.floats(-8, 8)] * 3).map(sorted))
def test_quantiles_in_order_give_a_range_in_order(times: list[int], quantiles: list[float]) -> None:
    low, mid, high = quantiles
    found = ResidualQuantiles(low=low, mid=mid, high=high)
    recalibrated(Range(low=times[0], mid=times[1], high=times[2]), found).check()
