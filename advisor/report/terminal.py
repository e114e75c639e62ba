"""A report on the terminal: verdict, findings by saving, figures, and what to type next."""

from __future__ import annotations

import shlex

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from advisor.model.base import Range
from advisor.model.findings import Evidence, Finding, Member
from advisor.model.report import Metric, Report
from advisor.report.text import counted, heading, interval, plain, range_text, table
from advisor.units import UNKNOWN, format_fraction, format_ns, format_value

# The metric that a saving is a share of: the step with no profiler attached.
STEP_METRIC = "step_ns"
MAX_MEMBERS = 8
MAX_EVIDENCE = 4
MAX_DETAILED = 10
KIND_STYLE = {"opportunity": "green", "regression": "red", "note": "dim"}


def render_report(report: Report) -> RenderableType:
    """The whole view of a report, from the verdict to the warnings."""
    parts: list[RenderableType] = [_subject(report), *_verdict(report)]
    findings = ranked(report)
    if findings:
        parts += [heading("Findings"), _findings_table(report, findings)]
        parts += [heading("Why, and what to do"), *_details(findings)]
    if report.recommended.order:
        parts += [heading("Recommended order"), *_order(report)]
    if report.metrics:
        parts += [heading("Metrics per step"), _metrics_table(report)]
    if report.warnings:
        parts += [heading("Warnings"), *_warnings(report)]
    return Group(*parts)


def render_next(report: Report, run: str, *, applied: bool) -> RenderableType:
    """What to type next, given the run directory and whether its plans have been tried."""
    name = shlex.quote(run)
    steps: list[tuple[str, str]] = []
    if applied:
        steps.append((f"fusion-advisor revert {name}", "take the kept fusions out again"))
    elif report.plans:
        steps.append((f"fusion-advisor apply {name}", "prove the kernels, keep those that pay"))
    steps.append((f"fusion-advisor show {name} --json", "the same as data"))
    width = max(len(command) for command, _ in steps)
    lines = [
        plain(f"{command:<{width}}", "bold").append(f"   {purpose}", "dim")
        for command, purpose in steps
    ]
    return Group(heading("Next"), *lines)


def ranked(report: Report) -> tuple[Finding, ...]:
    """Findings by exposed saving, largest first; unpriced ones behind, notes last."""

    def key(finding: Finding) -> tuple[bool, int, str]:
        saving = finding.exposed_saving_ns
        return (finding.kind == "note", 1 if saving is None else -saving.mid, finding.id)

    return tuple(sorted(report.findings, key=key))


def first_to_fuse(report: Report) -> Finding | None:
    """The head of the recommended order, else the opportunity with the largest certain saving."""
    by_id = {finding.id: finding for finding in report.findings}
    if report.recommended.order:
        return by_id[report.recommended.order[0]]
    for finding in ranked(report):
        saving = finding.exposed_saving_ns
        if finding.kind == "opportunity" and saving is not None and saving.low > 0:
            return finding
    return None


def cannot_judge(finding: Finding) -> str:
    """Why a finding has no price; empty where none was given."""
    return next((e.text for e in finding.evidence if e.kind == "cannot_judge"), "")


def _subject(report: Report) -> Text:
    work, hardware = report.workload, report.hardware
    device = hardware.name if hardware.present else f"{hardware.name} (not present, modelled)"
    line = plain(work.target, "bold")
    line.append_text(plain(f" · {work.mode} · {device}", "dim"))
    return line


def _verdict(report: Report) -> list[RenderableType]:
    first = first_to_fuse(report)
    if first is None:
        return [Text(), _no_verdict(report)]
    head = Text("\nFuse first: ", style="bold green")
    head.append_text(plain(first.title, "bold"))
    worth = Text("Worth: ", style="bold")
    worth.append(_worth(report, first))
    parts: list[RenderableType] = [head, worth]
    whole = report.recommended.set_saving_ns
    if whole is not None and len(report.recommended.order) > 1:
        count = counted(len(report.recommended.order), "recommended finding")
        parts.append(Text(f"All {count} together: {_share(report, whole)}"))
    return parts


def _no_verdict(report: Report) -> Text:
    opportunities = [f for f in ranked(report) if f.kind == "opportunity"]
    if not opportunities:
        return Text("Nothing to fuse was found.", style="bold")
    line = Text("No fusion is certain to pay. ", style="bold yellow")
    reason = next((cannot_judge(f) for f in opportunities if f.exposed_saving_ns is None), "")
    return line.append_text(plain(reason)) if reason else line


def _worth(report: Report, finding: Finding) -> str:
    saving = finding.exposed_saving_ns
    if saving is None:
        reason = cannot_judge(finding)
        return f"{UNKNOWN}; {plain(reason).plain}" if reason else UNKNOWN
    return _share(report, saving)


def _share(report: Report, saving: Range) -> str:
    """`310 µs (250 µs … 380 µs) of a 10.4 ms step, 3.0 %`, as far as the step is known."""
    metric = report.metrics.get(STEP_METRIC)
    step = None if metric is None else metric.value
    spread = f"({interval(saving.low, saving.high)})"
    if not step:
        return f"{format_ns(saving.mid)} {spread} per step"
    return (
        f"{format_ns(saving.mid)} {spread} of a {format_ns(step)} step, "
        f"{format_fraction(saving.mid / step)}"
    )


def _findings_table(report: Report, findings: tuple[Finding, ...]) -> RenderableType:
    rows = table(
        (("#", True), ("Finding", False), ("Saves per step (interval)", False), ("Sites", True))
    )
    sites = {plan.id: plan.sites for plan in report.plans}
    for number, finding in enumerate(findings, 1):
        count = sites.get(finding.plan_id or "", len(finding.locations))
        title = plain(finding.title).append("\n")
        title.append_text(plain(f"{finding.kind} · {finding.id}", KIND_STYLE[finding.kind]))
        saving = finding.exposed_saving_ns
        price = Text(UNKNOWN, style="dim")
        if saving is not None:
            price = Text(format_ns(saving.mid), style="bold")
            price.append(f"\n{interval(saving.low, saving.high)}", style="dim")
        rows.add_row(str(number), title, price, str(count) if count else UNKNOWN)
    return rows


def _details(findings: tuple[Finding, ...]) -> list[RenderableType]:
    return [
        part
        for number, finding in enumerate(findings[:MAX_DETAILED], 1)
        for part in _detail(number, finding)
    ]


def _detail(number: int, finding: Finding) -> list[RenderableType]:
    head = Text(f"{number}  ", style="bold")
    head.append_text(plain(finding.title, "bold"))
    lines = [plain(f"do: {finding.action}", "green")]
    if finding.members:
        lines.append(plain(f"members: {_members(finding.members)}"))
    lines += [plain(_evidence(evidence)) for evidence in finding.evidence[:MAX_EVIDENCE]]
    for place in finding.locations[:1]:
        where = f"{place.file}:{place.line}" if place.file and place.line else place.file
        more = f" and {len(finding.locations) - 1} more" if len(finding.locations) > 1 else ""
        lines.append(plain(f"at: {' · '.join(filter(None, (place.module, where)))}{more}", "dim"))
    for other in finding.alternatives:
        price = range_text(other.saving_ns)
        lines.append(plain(f"or: {other.route.replace('_', ' ')}, {price}: {other.text}", "dim"))
    return [head, *(Padding(line, (0, 0, 0, 3)) for line in lines)]


def _members(members: tuple[Member, ...]) -> str:
    shown = [
        f"{member.name} ×{member.count}"
        + ("" if member.time_ns is None else f" {format_ns(member.time_ns)}")
        for member in members[:MAX_MEMBERS]
    ]
    left = len(members) - MAX_MEMBERS
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")


def _evidence(evidence: Evidence) -> str:
    return f"{evidence.kind.replace('_', ' ')}: {evidence.text}"


def _order(report: Report) -> list[RenderableType]:
    by_id = {finding.id: finding for finding in report.findings}
    return [
        plain(
            f"{place}. {by_id[finding_id].title}: {range_text(by_id[finding_id].exposed_saving_ns)}"
        )
        for place, finding_id in enumerate(report.recommended.order, 1)
    ]


def _metrics_table(report: Report) -> RenderableType:
    rows = table((("Metric", False), ("Value", True), ("From", False), ("Definition", False)))
    for name, metric in sorted(report.metrics.items()):
        rows.add_row(
            plain(name), _metric_value(metric), metric.provenance, plain(metric.definition, "dim")
        )
    return rows


def _metric_value(metric: Metric) -> Text:
    return plain(format_value(metric.value, metric.unit), "dim" if metric.value is None else "")


def _warnings(report: Report) -> list[RenderableType]:
    return [
        plain(f"{warning.code}: {warning.message} ({counted(warning.count, 'time')})", "yellow")
        for warning in report.warnings
    ]
