"""Predictions held against what was measured, plan by plan."""

from __future__ import annotations

from advisor.errors import InvalidRecordError
from advisor.model.base import Range, Record

SCORES_SCHEMA_VERSION = 1


class ResidualQuantiles(Record, frozen=True, kw_only=True):
    """Where measured times lie in predicted intervals: a tenth below `low`, a tenth above `high`.

    In half-widths of the interval as modelled: -1 is its lower end, 0 its middle, 1 its upper end.
    """

    low: float
    mid: float
    high: float

    def check(self) -> None:
        if not self.low <= self.mid <= self.high:
            raise InvalidRecordError(
                f"quantiles are not ordered: {self.low}, {self.mid}, {self.high}"
            )


class PlanScore(Record, frozen=True, kw_only=True):
    """One plan of one application: predicted and measured saving of a step, like for like.

    `error` is |predicted - measured| over the time of what the plan replaces, `before_ns`; None of
    both where older records of compiled steps do not say what that takes. `modelled_ns` is the
    prediction before anything learned changed it, and `residual` where the time that was left lies
    in it, in half-widths (`ResidualQuantiles`); None of a matrix product, where nothing is learned.
    """

    run: str
    plan_id: str
    title: str
    gpu: str
    kept: bool
    predicted_ns: Range
    modelled_ns: Range
    measured_ns: Range
    before_ns: int | None
    error: float | None
    residual: float | None
    inside: bool


class HeldOut(Record, frozen=True, kw_only=True):
    """Each run predicted as the other runs teach: the share of intervals that would have held.

    `median_error` is that of the middles, as in `PlanScore`. Runs of the same work are no test of
    each other.
    """

    plans: int
    coverage: float
    median_error: float | None


class Scores(Record, frozen=True, kw_only=True):
    """All plans that have both figures; `coverage` is the share whose interval held.

    `median_error` is of those whose error is known. `residuals` is what intervals can learn from
    these plans, `held_out` how well what the others teach fits each run; None with too few plans
    to tell.
    """

    schema_version: int = SCORES_SCHEMA_VERSION
    plans: tuple[PlanScore, ...]
    median_error: float | None = None
    coverage: float | None = None
    residuals: ResidualQuantiles | None = None
    held_out: HeldOut | None = None
    runs_without: int = 0
