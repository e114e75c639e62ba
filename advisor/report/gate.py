"""Whether a report keeps to its limits. A capture that is empty or partial never does.

Where a baseline, or a finding without a price, does not show whether it does, that is unknown:
neither passed nor failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from advisor.errors import (
    EXIT_GATE_FAILED,
    EXIT_OK,
    EXIT_UNKNOWN,
    EXIT_UNREADABLE,
    UsageError,
)
from advisor.model.comparison import Comparability, Difference
from advisor.model.findings import Finding
from advisor.model.gate import (
    CaptureLimit,
    ComparisonLimit,
    FindingLimit,
    GateCheck,
    GateConfig,
    GateResult,
    GateStatus,
    MetricLimit,
)
from advisor.model.report import INCOMPLETE, Metric, Report
from advisor.report.compare import finding_changes, metric_changes
from advisor.report.compare_work import comparability, unmade
from advisor.report.gate_config import check_names
from advisor.report.words import cannot_judge
from advisor.units import counted, format_fraction, format_ns, format_value

EXITS: dict[GateStatus, int] = {
    "passed": EXIT_OK,
    "failed": EXIT_GATE_FAILED,
    "not_comparable": EXIT_UNREADABLE,
    "unknown": EXIT_UNKNOWN,
}
# Warnings after which figures are of a part of the run, and nothing can be concluded from them.
PARTIAL = (
    INCOMPLETE, "truncated", "salvaged", "ranks_missing", "empty", "recording_doubtful",
)  # fmt: skip
# Warnings about single events that are lost; a configuration may allow them.
LOSSY = ("event_dropped", "event_untimed", "duration_impossible")
# The rule of what a baseline shows; its findings are regressions and notes.
OVER_FUSION = "over-fusion"


def judge(
    config: GateConfig,
    report: Report,
    baseline: Report | None = None,
    labels: tuple[str, str] = ("report", "baseline"),
    untold: str = "",
) -> GateResult:
    """Every limit of the configuration, checked.

    `untold` is why nobody can tell which fused kernels lost against the baseline's, "" if it was
    told. Raises `UsageError` for an unknown name, or a relative limit without a baseline.
    """
    if config.relative and baseline is None:
        raise UsageError(
            "a limit is relative", remedy="give the report to compare with: --baseline"
        )
    _check_allowed(config.capture)
    check_names(config, report, *([] if baseline is None else [baseline]))
    checks = [capture_check("report", report, config.capture)]
    same: Comparability | None = None
    if baseline is not None:
        checks.append(capture_check("baseline", baseline, config.capture))
        same = comparability(baseline, report, config.comparison.accept)
        checks.append(_comparable(same, config.comparison))
    status: GateStatus = "not_comparable"
    if same is None or same.comparable:
        checks += [_metric(limit, report, baseline) for limit in config.metric]
        checks += [_findings(limit, report, baseline, untold) for limit in config.finding]
        status = _status(checks, config.comparison.allow_unknown)
    return GateResult(
        status=status,
        report=labels[0],
        baseline=None if baseline is None else labels[1],
        checks=tuple(checks),
        comparability=same,
        allow_unknown=config.comparison.allow_unknown,
    )


def _status(checks: Iterable[GateCheck], allow_unknown: bool) -> GateStatus:
    found = {check.status for check in checks}
    if "failed" in found:
        return "failed"
    return "unknown" if "unknown" in found and not allow_unknown else "passed"


def capture_check(which: str, report: Report, allowed: CaptureLimit) -> GateCheck:
    """Whether the report rests on a whole capture."""
    faults = []
    for warning in report.warnings:
        code = _code(warning.code)
        lossy = code in LOSSY and code not in map(_code, allowed.allow_warnings)
        if code in PARTIAL or lossy:
            times = counted(warning.count, "time")
            faults.append(f"{warning.code} ({times}): {warning.message}")
    if not report.kernels and not (allowed.graphs_only and not _has_trace(report)):
        faults.append("it holds no kernels (graphs_only = true under [capture] allows that)")
    if not report.metrics and not report.findings:
        faults.append("it holds neither metrics nor findings")
    text = f"not a whole capture: {'; '.join(faults)}" if faults else "whole"
    return _checked(f"capture of the {which}", not faults, text)


def _checked(name: str, passed: bool, text: str, findings: tuple[str, ...] = ()) -> GateCheck:
    return GateCheck(
        name=name, status="passed" if passed else "failed", text=text, findings=findings
    )


def _code(code: str) -> str:
    return code.replace("-", "_")


def _check_allowed(allowed: CaptureLimit) -> None:
    for code in allowed.allow_warnings:
        if _code(code) not in LOSSY:
            raise UsageError(
                f"the warning {code!r} cannot be allowed",
                where="capture.allow_warnings",
                remedy=f"only these can: {', '.join(LOSSY)}",
            )


def _has_trace(report: Report) -> bool:
    return any("trace" in source.kind or "kineto" in source.kind for source in report.sources)


def _comparable(found: Comparability, limit: ComparisonLimit) -> GateCheck:
    name, least = "same work as the baseline", limit.min_score
    if found.reasons:
        return _checked(name, False, f"not comparable: {'; '.join(found.reasons)}")
    score = f"comparability {found.score:.2f}"
    if least is not None and found.score < least:
        return _checked(name, False, f"{score} is below {least:.2f}")
    accepted = f", accepted to differ: {', '.join(found.accepted)}" if found.accepted else ""
    untold = [check for check in unmade(found) if check not in limit.accept]
    if untold:
        names = ", ".join(check.replace("_", " ") for check in untold)
        text = f"{score}{accepted}, but not known of both: {names}"
        return GateCheck(name=name, status="unknown", text=text)
    return _checked(name, True, f"{score}{accepted}")


def _metric(limit: MetricLimit, report: Report, baseline: Report | None) -> GateCheck:
    """One metric against all of its bounds; unknown values break any bound."""
    metric = report.metrics.get(limit.name)
    if metric is None or metric.value is None:
        state = "is not in the report" if metric is None else "is unknown in the report"
        return _checked(limit.name, False, f"{limit.name} {state}")
    faults = list(_absolute(limit, metric))
    shown = format_value(metric.value, metric.unit)
    if metric.provenance != "measured":
        shown += f" ({metric.provenance})"
    if limit.relative and baseline is not None:
        change = next(m for m in metric_changes(baseline, report) if m.name == limit.name)
        if change.note:
            faults.append(f"cannot be compared: {change.note}")
        else:
            shown += f", {format_value(change.difference.before, change.unit)} in the baseline"
            faults += _relative(limit, change.difference, metric.unit)
    return _checked(limit.name, not faults, f"{shown}: {'; '.join(faults) or 'within its limits'}")


def _absolute(limit: MetricLimit, metric: Metric) -> list[str]:
    value, faults = metric.value, []
    if value is not None and limit.max is not None and value > limit.max:
        faults.append(f"above {_bound(limit.max, value, metric.unit)}")
    if value is not None and limit.min is not None and value < limit.min:
        faults.append(f"below {_bound(limit.min, value, metric.unit)}")
    return faults


def _bound(bound: float, value: float, unit: str) -> str:
    """A bound as text, with the distance of a value that the digits do not tell from it."""
    text = format_value(bound, unit)
    same = text == format_value(value, unit)
    return f"{text}, by {format_value(abs(value - bound), unit)}" if same else text


def _relative(limit: MetricLimit, change: Difference, unit: str) -> list[str]:
    base, moved = change.before, change.change
    if base is None or moved is None:
        return ["cannot be compared"]
    low = high = float(moved)
    if limit.beyond_noise and change.low is not None and change.high is not None:
        low, high = change.low, change.high
    faults = []
    percent = format_fraction(change.fraction) if base else f"{format_value(moved, unit)} from 0"
    if limit.max_increase is not None and low > limit.max_increase * abs(base):
        faults.append(f"grew by {percent}, more than {format_fraction(limit.max_increase)}")
    if limit.max_decrease is not None and high < -limit.max_decrease * abs(base):
        faults.append(f"changed by {percent}, more than -{format_fraction(limit.max_decrease)}")
    return faults


def _findings(
    limit: FindingLimit, report: Report, baseline: Report | None, untold: str
) -> GateCheck:
    """Findings that fall under a limit, against its number; what nobody can tell may decide it."""
    fresh = None
    if limit.new and baseline is not None:
        changes = finding_changes(baseline, report)
        fresh = {change.after for change in changes if change.status == "new"}
    chosen = [f for f in report.findings if _falls_under(limit, f, fresh)]
    hits, doubtful = _parted(limit, chosen)
    name, text = describe(limit), _counted(limit, hits, doubtful)
    hidden = untold if limit.kind != "opportunity" and limit.rule in (None, OVER_FUSION) else ""
    if hidden:
        text += f"; whether fused kernels lost against the baseline cannot be told: {hidden}"
    decides = limit.unpriced == "unknown" and len(hits) + len(doubtful) > limit.max
    if len(hits) <= limit.max and (hidden or decides):
        ids = tuple(f.id for f in (*hits, *doubtful))
        return GateCheck(name=name, status="unknown", text=text, findings=ids)
    return _checked(name, len(hits) <= limit.max, text, tuple(f.id for f in hits))


def _counted(limit: FindingLimit, hits: Sequence[Finding], doubtful: Sequence[Finding]) -> str:
    """How many findings a limit counts, which, and of which nobody can tell."""
    unsure = sum(_may_save(f, limit.saving_above_ns) for f in hits)
    less = f" ({unsure} of them may save less)" if unsure else ""
    text = f"{len(hits)} found{less}, at most {limit.max} allowed"
    if len(hits) > limit.max:
        text += f": {_named(hits)}"
    if doubtful:
        how = "ignored" if limit.unpriced == "ignore" else "nobody can tell"
        text += f"; {len(doubtful)} more may save as much, {how}: {_named(doubtful)}"
    return text


def _parted(limit: FindingLimit, chosen: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """What counts against a limit, and what may: its saving is unknown, or bounded from above."""
    least = limit.saving_above_ns
    if least is None:
        return list(chosen), []
    doubtful = [f for f in chosen if _may_save(f, least)]
    counts = doubtful if limit.unpriced == "count" else []
    hits = [f for f in chosen if _saving(f) > least or f in counts]
    return hits, [f for f in doubtful if f not in hits]


def _named(findings: Iterable[Finding]) -> str:
    return ", ".join(f"{finding.title} ({finding.id})" for finding in findings)


def describe(limit: FindingLimit) -> str:
    """What a limit counts: `new opportunities of rotary-written-out above 50 µs`."""
    plural = {"opportunity": "opportunities", "regression": "regressions", "note": "notes"}
    words = ["new"] if limit.new else []
    words.append("findings" if limit.kind is None else plural[limit.kind])
    words += [f"of {limit.rule}"] if limit.rule is not None else []
    words += [] if limit.saving_above_ns is None else [f"above {format_ns(limit.saving_above_ns)}"]
    return " ".join(words)


def _falls_under(limit: FindingLimit, finding: Finding, fresh: set[str | None] | None) -> bool:
    return (
        limit.kind in (None, finding.kind)
        and limit.rule in (None, finding.rule)
        and (fresh is None or finding.id in fresh)
    )


def _saving(finding: Finding) -> int:
    saving = finding.exposed_saving_ns
    return 0 if saving is None else saving.mid


def _may_save(finding: Finding, least: int | None) -> bool:
    """Whether nobody can tell that a finding saves no more than so many ns a step, if that counts.

    Of a middle of zero the upper end alone says anything. A note has no price because it asks for
    nothing, unless it says that something cannot be judged.
    """
    saving = finding.exposed_saving_ns
    if least is None:
        return False
    if saving is not None:
        return saving.mid <= 0 and saving.high > least
    return finding.kind != "note" or bool(cannot_judge(finding))
