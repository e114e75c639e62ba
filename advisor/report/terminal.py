"""A report on the terminal: verdict, findings by saving, figures, and what to type next."""

from __future__ import annotations

import shlex

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from advisor.model.applied import Applied
from advisor.model.findings import Finding
from advisor.model.metric_names import PER_STEP, per_step_name
from advisor.model.report import Metric, Report
from advisor.model.run import names_script
from advisor.report.text import (
    command,
    counted,
    heading,
    headline,
    plain,
    spread,
    table,
)
from advisor.report.verdict_words import left_text
from advisor.report.words import (
    ORDER,
    cannot_judge,
    device_text,
    evidence_text,
    kernels_text,
    members_text,
    nothing_found,
    place_text,
    priced,
    ranked,
    share,
    sites_text,
    verdicts,
    way_price,
    when,
    worth,
)
from advisor.units import UNKNOWN, format_value

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
        parts += [heading(ORDER), *_order(report)]
    if report.metrics:
        parts += [heading(f"Metrics {when(report)}"), *_metrics(report)]
    if report.warnings:
        parts += [heading("Warnings"), *_warnings(report)]
    return Group(*parts)


def render_next(report: Report, run: str, applied: Applied | None) -> RenderableType:
    """What to type next, given the run directory and what came of its plans, if they were tried.

    A script cannot be applied to, but its kernels can be written. On a GPU there are actions to try
    even without plans.
    """
    name, script = shlex.quote(run), names_script(report.workload.target)
    steps: list[tuple[str, str]] = []
    if applied is not None and left_text(applied):
        steps.append((_apply_command(report, run), "go on with what there was no time for"))
    if applied is not None and applied.set.verdict == "kept":
        steps.append((f"fusion-advisor patch {name}", "take what was kept elsewhere"))
        steps.append((f"fusion-advisor revert {name}", "take the kept fusions out again"))
    elif script and report.plans:
        steps.append((f"fusion-advisor generate {name}", "the kernels as files, to call from it"))
    elif applied is None and (report.plans or report.hardware.present):
        keep = "keep those that pay" if report.hardware.present else "to be timed and kept on a GPU"
        steps.append((_apply_command(report, run), f"prove the kernels, {keep}"))
    steps.append((f"fusion-advisor show {name} --json", "the same as data"))
    lines = [
        part
        for words, purpose in steps
        for part in (Padding(Text(f"{purpose}:", style="dim"), (0, 0, 0, 3)), command(words))
    ]
    return Group(heading("Next"), *lines)


def _apply_command(report: Report, run: str) -> str:
    """How a run is applied; that of one rank together with those of the others beside it."""
    ranks = report.workload.world_size
    if ranks == 1:
        return f"fusion-advisor apply {shlex.quote(run)}"
    parent = shlex.quote(run.rpartition("/")[0] or ".")
    return f"torchrun --nproc_per_node {ranks} --no-python fusion-advisor apply {parent}"


def _subject(report: Report) -> Text:
    line = plain(report.workload.target, "bold")
    line.append_text(plain(f" · {report.workload.mode} · {device_text(report)}", "dim"))
    return line


def _verdict(report: Report) -> list[RenderableType]:
    told = verdicts(report)
    if not told:
        return [Text(), _no_verdict(report)]
    parts: list[RenderableType] = [Text()]
    for label, finding in told:
        head = Text(f"{label}: ", style="bold green")
        head.append_text(plain(finding.title, "bold"))
        price = Text("Worth: ", style="bold")
        price.append_text(plain(worth(report, finding)))
        parts += [head, price]
    whole = report.recommended.set_saving_ns
    if whole is not None and len(report.recommended.order) > 1:
        count = counted(len(report.recommended.order), "recommended finding")
        parts.append(Text(f"All {count} together: {share(report, whole)}"))
    return parts


def _no_verdict(report: Report) -> Text:
    opportunities = [f for f in ranked(report) if f.kind == "opportunity"]
    if not opportunities:
        return Text(nothing_found(report), style="bold")
    line = Text("No fusion is certain to pay. ", style="bold yellow")
    reason = next((cannot_judge(f) for f in opportunities if f.exposed_saving_ns is None), "")
    return line.append_text(plain(reason)) if reason else line


def _findings_table(report: Report, findings: tuple[Finding, ...]) -> RenderableType:
    rows = table(
        (
            ("#", True),
            ("Finding", False),
            (f"Saves {when(report)} (interval)", False),
            ("Sites", True),
        )
    )
    for number, finding in enumerate(findings, 1):
        title = plain(finding.title).append("\n")
        title.append_text(plain(f"{finding.kind} · {finding.id}", KIND_STYLE[finding.kind]))
        saving = finding.exposed_saving_ns
        price = Text(UNKNOWN, style="dim")
        if saving is not None:
            price = Text(headline(saving), style="bold")
            price.append(f"\n{spread(saving)}", style="dim")
        elif kernels := kernels_text(finding):
            price.append(f"\n{kernels}")
        rows.add_row(str(number), title, price, sites_text(report, finding))
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
        lines.append(plain(f"members: {members_text(finding.members)}"))
    lines += [plain(evidence_text(evidence)) for evidence in finding.evidence[:MAX_EVIDENCE]]
    if place := place_text(finding.locations):
        lines.append(plain(f"at: {place}", "dim"))
    for other in finding.alternatives:
        way = f"{other.route.replace('_', ' ')}, {way_price(other)}"
        lines.append(plain(f"or: {way}: {other.text}", "dim"))
    return [head, *(Padding(line, (0, 0, 0, 3)) for line in lines)]


def _order(report: Report) -> list[RenderableType]:
    by_id = {finding.id: finding for finding in report.findings}
    return [
        plain(f"{place}. {priced(by_id[finding_id])}")
        for place, finding_id in enumerate(report.recommended.order, 1)
    ]


def _metrics(report: Report) -> list[RenderableType]:
    """Every figure once: that of the whole trace is only named where there is one per step."""
    rows = table((("Metric", False), ("Value", True), ("From", False), ("Definition", False)))
    whole = [name for name in sorted(report.metrics) if per_step_name(name) in report.metrics]
    marked = when(report) == "per step"
    if not marked:
        whole = [name for name in report.metrics if "_per_step" in name]
    for name, metric in sorted(report.metrics.items()):
        if name not in whole:
            definition = plain(metric.definition.removeprefix(PER_STEP), "dim")
            rows.add_row(plain(name), _metric_value(metric), metric.provenance, definition)
    if not whole or not marked:
        return [rows]
    note = (
        "_per_step: the median over the steps of what each launched. Of the whole trace, with "
        f"--json: {', '.join(whole)}"
    )
    return [rows, plain(note, "dim")]


def _metric_value(metric: Metric) -> Text:
    return plain(format_value(metric.value, metric.unit), "dim" if metric.value is None else "")


def _warnings(report: Report) -> list[RenderableType]:
    return [
        plain(f"{warning.code}: {warning.message} ({counted(warning.count, 'time')})", "yellow")
        for warning in report.warnings
    ]
