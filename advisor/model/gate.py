"""`GateConfig` (gates.toml) and `GateResult`: what a report must keep to, and whether it does.

What nobody can tell is neither: it is unknown, and passes only where that is allowed.
"""

from __future__ import annotations

import math
from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.base import Record
from advisor.model.comparison import Comparability
from advisor.model.findings import Kind

GATE_SCHEMA_VERSION = 1
CheckStatus = Literal["passed", "failed", "unknown"]
GateStatus = Literal["passed", "failed", "not_comparable", "unknown"]
Unpriced = Literal["unknown", "count", "ignore"]


class MetricLimit(Record, frozen=True, kw_only=True):
    """Bounds of one metric: `min` and `max` in its own unit, the others relative to the baseline.

    `max_increase = 0.05` lets it grow by 5 % of the baseline's value. With `beyond_noise` a
    relative bound is broken only where the whole 95 % interval of the change lies beyond it.
    """

    name: str
    min: float | int | None = None
    max: float | int | None = None
    max_increase: float | int | None = None
    max_decrease: float | int | None = None
    beyond_noise: bool = False

    @property
    def relative(self) -> bool:
        """Whether it needs a baseline."""
        return self.max_increase is not None or self.max_decrease is not None

    def check(self) -> None:
        bounds = {
            "min": self.min,
            "max": self.max,
            "max_increase": self.max_increase,
            "max_decrease": self.max_decrease,
        }
        known = {key: value for key, value in bounds.items() if value is not None}
        if not known:
            raise InvalidRecordError(
                "sets no bound",
                where=f"metric {self.name}",
                remedy=f"add one of {', '.join(bounds)}",
            )
        for key, value in known.items():
            if not math.isfinite(value):
                raise InvalidRecordError(f"{key} is {value}", where=f"metric {self.name}")
            if key.startswith("max_") and value < 0:
                raise InvalidRecordError(
                    f"{key} is {value}, a tolerance below zero", where=f"metric {self.name}"
                )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise InvalidRecordError("min is above max", where=f"metric {self.name}")
        if self.beyond_noise and not self.relative:
            raise InvalidRecordError(
                "beyond_noise is for relative bounds", where=f"metric {self.name}"
            )


class FindingLimit(Record, frozen=True, kw_only=True):
    """At most `max` findings of a kind, of a rule, that save more than this, that are new.

    `unpriced` are findings that may save more, since nobody can tell what they save: where they
    would exceed `max` the limit is unknown; or they count, or are ignored.
    """

    max: int
    kind: Kind | None = None
    rule: str | None = None
    saving_above_ns: int | None = None
    unpriced: Unpriced = "unknown"
    new: bool = False

    def check(self) -> None:
        if self.unpriced != "unknown" and self.saving_above_ns is None:
            raise InvalidRecordError(
                "unpriced needs saving_above_ns: without it every finding counts", where="finding"
            )
        if self.max < 0 or (self.saving_above_ns is not None and self.saving_above_ns < 0):
            raise InvalidRecordError("a limit is below zero", where="finding")


class CaptureLimit(Record, frozen=True, kw_only=True):
    """What may be missing: codes of warnings about lost events; kernels, for graphs alone."""

    allow_warnings: tuple[str, ...] = ()
    graphs_only: bool = False


class ComparisonLimit(Record, frozen=True, kw_only=True):
    """Checks of the same work that may differ from the baseline, and the least score.

    With `allow_unknown` a gate passes where nobody can tell whether all of its limits hold.
    """

    accept: tuple[str, ...] = ()
    min_score: float | int | None = None
    allow_unknown: bool = False

    def check(self) -> None:
        if self.min_score is not None and not 0 <= self.min_score <= 1:
            raise InvalidRecordError(f"min_score {self.min_score} is no fraction")


class GateConfig(Record, frozen=True, kw_only=True):
    """The whole of gates.toml; it must set at least one limit."""

    schema_version: int = GATE_SCHEMA_VERSION
    metric: tuple[MetricLimit, ...] = ()
    finding: tuple[FindingLimit, ...] = ()
    capture: CaptureLimit = CaptureLimit()
    comparison: ComparisonLimit = ComparisonLimit()

    @property
    def relative(self) -> bool:
        """Whether any limit needs a baseline."""
        return any(m.relative for m in self.metric) or any(f.new for f in self.finding)

    def check(self) -> None:
        if self.schema_version != GATE_SCHEMA_VERSION:
            raise InvalidRecordError(f"gate schema {self.schema_version} is not known")
        if not self.metric and not self.finding:
            raise InvalidRecordError("sets no limit", remedy="add a [[metric]] or a [[finding]]")


class GateCheck(Record, frozen=True, kw_only=True):
    """One limit and how the report stands to it; `findings` are those that count against it.

    Where it is unknown, those that may are among them.
    """

    name: str
    status: CheckStatus
    text: str
    findings: tuple[str, ...] = ()


class GateResult(Record, frozen=True, kw_only=True):
    """`status` is passed only if every check passed, or is unknown where that is allowed.

    Not comparable outranks failed, and failed outranks unknown.
    """

    schema_version: int = GATE_SCHEMA_VERSION
    status: GateStatus
    report: str
    baseline: str | None = None
    checks: tuple[GateCheck, ...]
    comparability: Comparability | None = None
    allow_unknown: bool = False

    def check(self) -> None:
        against = self.failed or (self.unknown and not self.allow_unknown)
        if self.status == "passed" and (against or not self.checks):
            raise InvalidRecordError("a gate passes only where every check passed")
        if self.status == "unknown" and (self.failed or not self.unknown):
            raise InvalidRecordError("a gate is unknown where a check is, and none failed")

    @property
    def failed(self) -> tuple[GateCheck, ...]:
        """The checks that failed, in order."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def unknown(self) -> tuple[GateCheck, ...]:
        """The checks that nobody can make, in order."""
        return tuple(check for check in self.checks if check.status == "unknown")
