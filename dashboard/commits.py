"""Runs of one workload by the commit of its source: the points of a trend, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from advisor.model.report import Commit
from advisor.report.words import commit_text
from advisor.units import format_value
from dashboard.parts import moment

MAX_TOLD = 6


class Point(NamedTuple):
    """A run's value."""

    created: str
    run: str
    value: float
    unit: str
    commit: Commit | None = None


class Place(NamedTuple):
    """What stands at one place of a trend: the clean runs of a commit, or one other run."""

    points: tuple[Point, ...]

    @property
    def commit(self) -> Commit | None:
        """The commit of its runs."""
        return self.points[0].commit

    @property
    def label(self) -> str:
        """The commit, else when the run was made."""
        return moment(self.points[0].created) if self.commit is None else commit_text(self.commit)

    @property
    def middle(self) -> float:
        """The median of its values."""
        return median(point.value for point in self.points)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest of its values."""
        values = [point.value for point in self.points]
        return min(values), max(values)

    def lines(self) -> list[str]:
        """What to tell of it: commit and its time, the value, then every run."""
        unit, lines = self.points[0].unit, []
        if self.commit is not None:
            made = moment(self.commit.committed) if self.commit.committed else "time unknown"
            lines.append(f"commit {commit_text(self.commit)}, {made}")
        lines.append(format_value(self.middle, unit))
        if len(self.points) > 1:
            low, high = (format_value(value, unit) for value in self.ends)
            lines[-1] += f", median of {len(self.points)} runs ({low} to {high})"
        lines += [f"{point.run}, made {moment(point.created)}" for point in self.points[:MAX_TOLD]]
        if len(self.points) > MAX_TOLD:
            lines.append(f"and {len(self.points) - MAX_TOLD} more runs")
        return lines


def places(points: Sequence[Point]) -> list[Place]:
    """The places of a trend by time, that of the commit where it is known, else of the run.

    Clean runs of a commit share a place. Of trees with changes each run has its own, behind those
    of the commit: nothing says that two of them had the same changes.
    """
    found: dict[tuple[str, ...], list[Point]] = {}
    for point in sorted(points, key=lambda p: (p.created, p.run)):
        commit = point.commit
        alone = commit is None or commit.dirty
        key = (
            ("run", point.run)
            if alone or commit is None
            else ("commit", commit.id, str(commit.dirty))
        )
        found.setdefault(key, []).append(point)
    return sorted((Place(tuple(own)) for own in found.values()), key=_order)


def _order(place: Place) -> tuple[str, str, bool, str]:
    first, commit = place.points[0], place.commit
    if commit is None:
        return first.created, "", False, first.created
    return commit.committed or first.created, commit.id, bool(commit.dirty), first.created
