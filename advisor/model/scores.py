"""Predictions held against what was measured, plan by plan."""

from __future__ import annotations

from advisor.model.base import Range, Record

SCORES_SCHEMA_VERSION = 1


class PlanScore(Record, frozen=True, kw_only=True):
    """One plan of one application: predicted and measured saving of a step, like for like.

    `error` is |predicted - measured| over the time of what the plan replaces, `before_ns`; None of
    both where older records of compiled steps do not say what that takes.
    """

    run: str
    plan_id: str
    title: str
    gpu: str
    kept: bool
    predicted_ns: Range
    measured_ns: Range
    before_ns: int | None
    error: float | None
    inside: bool


class Scores(Record, frozen=True, kw_only=True):
    """All plans that have both figures; `coverage` is the share whose interval held.

    `median_error` is of those whose error is known. `interval_factor` is what the half-widths of
    the intervals would have to be multiplied by for four fifths of them to hold; None with too few
    plans to tell.
    """

    schema_version: int = SCORES_SCHEMA_VERSION
    plans: tuple[PlanScore, ...]
    median_error: float | None = None
    coverage: float | None = None
    interval_factor: float | None = None
    runs_without: int = 0
