"""Two reports side by side: whether they are of the same work, and then what differs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from advisor.model.base import Provenance, Range
from advisor.model.comparison import (
    Difference,
    FindingChange,
    FindingStatus,
    MetricChange,
    ReportComparison,
    Side,
)
from advisor.model.findings import Finding
from advisor.model.metric_names import higher_is_better
from advisor.model.report import Metric, Report
from advisor.report.compare_kernels import kernel_changes, role_changes
from advisor.report.compare_work import comparability
from advisor.report.shift import difference
from advisor.report.words import BLIND, INFERRED_MODE, about_ops, sites_of

EXACT_UNITS = ("count", "bytes")
MAY_HAVE_BEEN = "may have been there: part of the run before cannot be judged, see its warnings"
MAY_STILL_BE = "may still be there: part of the run after cannot be judged, see its warnings"


def compare_reports(
    before: Report,
    after: Report,
    labels: tuple[str, str] = ("before", "after"),
    accepted: Collection[str] = (),
) -> ReportComparison:
    """The comparison; without differences where the two are not of the same work."""
    found = comparability(before, after, accepted)
    sides = [
        Side(label=label, created=report.created, workload=report.workload)
        for label, report in zip(labels, (before, after), strict=True)
    ]
    if not found.comparable:
        return ReportComparison(before=sides[0], after=sides[1], comparability=found)
    return ReportComparison(
        before=sides[0],
        after=sides[1],
        comparability=found,
        metrics=metric_changes(before, after),
        roles=role_changes(before.kernels, after.kernels),
        kernels=kernel_changes(before.kernels, after.kernels),
        findings=finding_changes(before, after),
    )


def metric_changes(before: Report, after: Report) -> tuple[MetricChange, ...]:
    """Every metric that either report has, by name."""
    return tuple(
        _metric_change(name, before, after)
        for name in sorted(before.metrics.keys() | after.metrics.keys())
    )


def _metric_change(name: str, before: Report, after: Report) -> MetricChange:
    first, second = before.metrics.get(name), after.metrics.get(name)
    known = first or second
    note = _why_not(name, before, after)
    values = [None if metric is None else metric.value for metric in (first, second)]
    if note or first is None or second is None:
        change = Difference(
            before=values[0], after=values[1], significance="incomparable", direction="unknown"
        )
    else:
        change = difference(
            values[0],
            values[1],
            first.per_step,
            second.per_step,
            higher_is_better=higher_is_better(name),
            counted=first.unit in EXACT_UNITS,
        )
    return MetricChange(
        name=name,
        unit="" if known is None else known.unit,
        definition="" if known is None else known.definition,
        provenance_before=_provenance(first),
        provenance_after=_provenance(second),
        difference=change,
        note=note,
    )


def _provenance(metric: Metric | None) -> Provenance:
    return "unknown" if metric is None else metric.provenance


def _why_not(name: str, before: Report, after: Report) -> str:
    """Why two figures must not be subtracted; empty where they may."""
    first, second = before.metrics.get(name), after.metrics.get(name)
    if first is None or second is None:
        return "not in the report before" if first is None else "not in the report after"
    if first.value is None or second.value is None:
        return "unknown in a report"
    if first.unit != second.unit:
        return f"{first.unit} before, {second.unit} after"
    if first.provenance != second.provenance:
        return f"{first.provenance} before, {second.provenance} after"
    if name.startswith("fusion_coverage") and not _one_graph(before, after):
        return "coverage compares only over one captured graph"
    return ""


def _one_graph(before: Report, after: Report) -> bool:
    first, second = before.workload, after.workload
    captured = INFERRED_MODE not in (first.mode, second.mode)
    return captured and first.graph_hash is not None and first.graph_hash == second.graph_hash


def finding_changes(before: Report, after: Report) -> tuple[FindingChange, ...]:
    """Findings new, gone, changed and unchanged, in that order."""
    pairs, gone, new = _match(before.findings, after.findings)
    earlier, later = _hides(before, after), _hides(after, before)
    changes = [
        _finding(None, one, MAY_HAVE_BEEN if earlier and about_ops(one) else "") for one in new
    ]
    changes += [
        _finding(one, None, MAY_STILL_BE if later and about_ops(one) else "") for one in gone
    ]
    changes += [_finding(a, b) for a, b in pairs]
    order: tuple[FindingStatus, ...] = ("new", "gone", "changed", "same")
    return tuple(sorted(changes, key=lambda change: order.index(change.status)))


Pairs = list[tuple[Finding, Finding]]


def _match(
    before: tuple[Finding, ...], after: tuple[Finding, ...]
) -> tuple[Pairs, list[Finding], list[Finding]]:
    """By rule and places, then id, then title: ids of numbered findings move when one is added."""
    pairs: Pairs = []
    left, right = list(before), list(after)
    for identity in (_by_place, _by_id, _by_title):
        waiting: dict[tuple[object, ...], list[Finding]] = defaultdict(list)
        for finding in right:
            waiting[identity(finding)].append(finding)
        rest = []
        for finding in left:
            same = waiting[identity(finding)]
            if same:
                pairs.append((finding, same.pop(0)))
            else:
                rest.append(finding)
        left, right = rest, [finding for group in waiting.values() for finding in group]
    return pairs, left, right


def _by_place(finding: Finding) -> tuple[object, ...]:
    places = tuple((place.module, place.file) for place in finding.locations)
    return (finding.rule, finding.title, places, tuple(m.name for m in finding.members))


def _by_id(finding: Finding) -> tuple[object, ...]:
    return (finding.rule, finding.id)


def _by_title(finding: Finding) -> tuple[object, ...]:
    return (finding.rule, finding.title)


def _hides(report: Report, other: Report) -> bool:
    """Whether a part of it cannot be judged that the other report could see."""
    codes, seen = ({warning.code for warning in one.warnings} for one in (report, other))
    return bool((codes - seen) & set(BLIND))


def _finding(before: Finding | None, after: Finding | None, text: str = "") -> FindingChange:
    known = after or before
    if known is None:
        raise ValueError("a change is of at least one finding")
    status: FindingStatus = "new" if before is None else "gone"
    if before is not None and after is not None:
        text = _what_changed(before, after)
        status = "changed" if text else "same"
    return FindingChange(
        status=status,
        rule=known.rule,
        title=known.title,
        kind=known.kind,
        before=None if before is None else before.id,
        after=None if after is None else after.id,
        saving_before_ns=None if before is None else before.exposed_saving_ns,
        saving_after_ns=None if after is None else after.exposed_saving_ns,
        text=text,
    )


def _what_changed(before: Finding, after: Finding) -> str:
    """What differs beyond the intervals; empty where nothing does."""
    changes = []
    if before.kind != after.kind:
        changes.append(f"{before.kind} before, {after.kind} now")
    if (before.exposed_saving_ns is None) != (after.exposed_saving_ns is None):
        changes.append("priced before" if after.exposed_saving_ns is None else "now priced")
    elif apart(before.exposed_saving_ns, after.exposed_saving_ns):
        changes.append("the intervals of the saving do not meet")
    sites = sites_of(before), sites_of(after)
    if None not in sites and sites[0] != sites[1]:
        changes.append(f"{sites[0]} places before, {sites[1]} now")
    return "; ".join(changes)


def apart(before: Range | None, after: Range | None) -> bool:
    """Whether two savings differ by more than their intervals."""
    if before is None or after is None:
        return False
    return before.high < after.low or after.high < before.low
