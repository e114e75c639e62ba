"""The learned factor of intervals: kept per GPU, checked, applied to both halves."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import InvalidRecordError
from advisor.hardware.gpus import gpu_by_key
from advisor.hardware.learned import (
    LearnedIntervals,
    interval_factor,
    learned_path,
    save_learned,
    widened,
)
from advisor.model.base import Range

H200, A100 = gpu_by_key("h200"), gpu_by_key("a100")


def test_nothing_learned_changes_nothing(tmp_path: Path) -> None:
    assert interval_factor(H200, tmp_path) == 1.0


def test_a_factor_is_its_gpus(tmp_path: Path) -> None:
    found = LearnedIntervals(gpu="h200", interval_factor=1.5, plans=40)
    save_learned(found, learned_path(H200, tmp_path))
    assert interval_factor(H200, tmp_path) == 1.5
    assert interval_factor(A100, tmp_path) == 1.0
    learned_path(H200, tmp_path).rename(learned_path(A100, tmp_path))
    with pytest.raises(InvalidRecordError, match="is of h200"):
        interval_factor(A100, tmp_path)


@pytest.mark.parametrize(("factor", "plans"), [(0.0, 40), (99.0, 40), (1.0, 3)])
def test_what_cannot_have_been_learned_is_refused(
    tmp_path: Path, factor: float, plans: int
) -> None:
    with pytest.raises(InvalidRecordError):
        save_learned(
            LearnedIntervals(gpu="h200", interval_factor=factor, plans=plans), tmp_path / "x.json"
        )


def test_both_halves_are_widened_about_the_middle() -> None:
    assert widened(Range(low=80, mid=100, high=110), 2.0) == Range(low=60, mid=100, high=120)
    assert widened(Range(low=80, mid=100, high=110), 1.0) == Range(low=80, mid=100, high=110)
