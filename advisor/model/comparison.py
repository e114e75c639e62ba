"""`ReportComparison`: two reports of the same work side by side, if they compare at all."""

from __future__ import annotations

from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.base import Provenance, Range, Record
from advisor.model.findings import Finding, Kind
from advisor.model.overfusion import Bisection
from advisor.model.report import Workload

COMPARISON_SCHEMA_VERSION = 1
Outcome = Literal["agree", "differ", "unknown"]
# significant, insignificant: the interval of the change excludes zero or holds it.
# exact: a count that is the same in every step of each run.
# untested: too few values for an interval at 95 %.
# single: a run has one value and no values by step, as without a GPU or of compiling.
# incomparable: a value is missing, or the two are of different kinds.
Significance = Literal[
    "significant", "insignificant", "exact", "untested", "single", "incomparable"
]
Direction = Literal["better", "worse", "changed", "same", "unknown"]
Basis = Literal["name_and_calls", "calls", "name_and_operators", "operators_and_order", "none"]
FindingStatus = Literal["new", "gone", "changed", "same"]


class IdentityCheck(Record, frozen=True, kw_only=True):
    """One thing that should agree; a `required` one that differs ends the comparison."""

    name: str
    before: str | None
    after: str | None
    outcome: Outcome
    required: bool
    weight: int
    text: str = ""


class Comparability(Record, frozen=True, kw_only=True):
    """`score` in [0, 1]: the weight of what agrees, half for what is unknown, over all weight.

    `reasons` are the required checks that differ; `accepted` those that the user let pass.
    """

    comparable: bool
    score: float
    checks: tuple[IdentityCheck, ...]
    reasons: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()

    def check(self) -> None:
        if self.comparable == bool(self.reasons):
            raise InvalidRecordError("reasons against a comparison, or none, must decide it")
        if not 0 <= self.score <= 1:
            raise InvalidRecordError(f"comparability score {self.score} is no fraction")


class Difference(Record, frozen=True, kw_only=True):
    """`change` = after − before; [low, high] holds the shift of the steps at 95 %, where known.

    The interval speaks of the steps of these two processes, not of the spread between processes.
    """

    before: float | int | None
    after: float | int | None
    change: float | int | None = None
    low: float | None = None
    high: float | None = None
    significance: Significance
    direction: Direction

    @property
    def fraction(self) -> float | None:
        """The change as a fraction of the value before; None where that is unknown or zero."""
        return None if self.change is None or not self.before else self.change / abs(self.before)


class MetricChange(Record, frozen=True, kw_only=True):
    """One metric in both runs; `note` says why two values are not compared."""

    name: str
    unit: str
    definition: str
    provenance_before: Provenance
    provenance_after: Provenance
    difference: Difference
    note: str = ""


class RoleChange(Record, frozen=True, kw_only=True):
    """All kernels of one role: what stays comparable when fusion changes the kernels themselves."""

    role: str
    count_before: float
    count_after: float
    time: Difference


class KernelChange(Record, frozen=True, kw_only=True):
    """A kernel of one run and its counterpart; `basis` says what they were matched by."""

    role: str
    basis: Basis
    before: str | None
    after: str | None
    calls: tuple[str, ...] = ()
    count_before: float | None = None
    count_after: float | None = None
    time: Difference


class FindingChange(Record, frozen=True, kw_only=True):
    """A finding of either run; savings are per step."""

    status: FindingStatus
    rule: str
    title: str
    kind: Kind
    before: str | None
    after: str | None
    saving_before_ns: Range | None = None
    saving_after_ns: Range | None = None
    text: str = ""


class Side(Record, frozen=True, kw_only=True):
    """One of the two reports."""

    label: str
    created: str
    workload: Workload


class ReportComparison(Record, frozen=True, kw_only=True):
    """`metrics`, `roles`, `kernels` and `findings` are empty where the two are not comparable.

    `regressions` are fused kernels that lost against what they replaced, `bisection` what the
    change of the step is made of; without both, `unpaired` says why.
    """

    schema_version: int = COMPARISON_SCHEMA_VERSION
    before: Side
    after: Side
    comparability: Comparability
    metrics: tuple[MetricChange, ...] = ()
    roles: tuple[RoleChange, ...] = ()
    kernels: tuple[KernelChange, ...] = ()
    findings: tuple[FindingChange, ...] = ()
    regressions: tuple[Finding, ...] = ()
    bisection: Bisection | None = None
    unpaired: str = ""

    def check(self) -> None:
        if self.schema_version != COMPARISON_SCHEMA_VERSION:
            raise InvalidRecordError(f"comparison schema {self.schema_version} is not known")
