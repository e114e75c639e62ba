"""Whether results are good enough where random numbers decide them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch

from advisor.errors import AbortedError, AdvisorError, WorkloadError
from advisor.pipeline.likeness import Agreement, Results, agreement
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.peers import Alone
from advisor.pipeline.sets import disagreement


class Drawing:
    """A bench whose compiler draws other numbers than eager, and whose variant differs again."""

    compiled = Variant("compiled", list, list, list)

    def __init__(self, without_dropout: Callable[[], Bench | None]) -> None:
        self.without_dropout = without_dropout

    def results(self, variant: Variant) -> Results:
        return Results(*([torch.full((4,), value)] for value in (1.0, 2.0, 3.0)))

    def agreement(self, results: Results, comparable: bool) -> Agreement | None:
        return agreement(*results, lambda: results.plain, comparable)


def judged(without_dropout: Callable[[], Bench | None]) -> str:
    bench = cast(Bench, Drawing(without_dropout))
    why, found = disagreement(Alone(), bench, Variant("ours", list, list, list))
    assert found is not None
    assert found.reference == "the compiler"
    return why


def test_what_differs_without_anything_to_drop_differs() -> None:
    assert judged(lambda: None).startswith("results differ from the compiler's by 5.00e-01")


def failing(error: AdvisorError) -> Callable[[], Bench | None]:
    def fail() -> Bench | None:
        raise error

    return fail


def test_a_step_that_does_not_run_without_dropout_is_taken_out_for_how_it_differs() -> None:
    why = judged(failing(WorkloadError("the step failed", why="no loss in evaluation")))
    assert why.startswith("results differ from the compiler's by 5.00e-01")
    assert "without dropout the step cannot be compared: " in why
    assert "no loss in evaluation" in why


def test_a_lost_process_ends_it() -> None:
    with pytest.raises(AbortedError):
        judged(failing(AbortedError("the device is lost")))
