"""A report, with what was applied, as a document."""

from __future__ import annotations

from collections.abc import Callable

from advisor.model.applied import ActionVerdict, Applied, Comparison, PlanVerdict
from advisor.model.findings import Finding
from advisor.model.report import Report
from advisor.report.document import (
    Block,
    Content,
    Document,
    Heading,
    Items,
    Mood,
    Paragraph,
    Words,
    code,
    table,
)
from advisor.report.text import (
    counted,
    gain_text,
    headline,
    interval,
    range_text,
    speedup_text,
    timing_text,
)
from advisor.report.verdict_words import (
    NOT_APPLICABLE,
    change_text,
    compile_text,
    elsewhere_text,
    left_text,
    not_applicable,
    peak_text,
    tried,
    vote_text,
    why_text,
)
from advisor.report.words import (
    ORDER,
    cannot_judge,
    commit_text,
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
from advisor.units import UNKNOWN, format_ns, format_value

KIND_MOOD: dict[str, Mood] = {"opportunity": "good", "regression": "bad", "note": "dim"}
VERDICT_MOOD: dict[str, Mood] = {
    "kept": "good",
    "reverted": "warn",
    "refused": "bad",
    "not_measured": "dim",
}
Namer = Callable[[str], str]
MAX_KERNELS = 40
MAX_NAME = 120


def report_document(
    report: Report, applied: Applied | None = None, namer: Namer | None = None
) -> Document:
    """Verdict, findings with evidence, recommended order, metrics, kernels, warnings, proof.

    `namer` shortens kernel names for people.
    """
    blocks: list[Block] = [Heading(report.workload.target, 1), Paragraph(subject(report))]
    blocks += _verdict(report)
    findings = ranked(report)
    if findings:
        blocks += [Heading("Findings"), _findings(report, findings)]
        for number, finding in enumerate(findings, 1):
            blocks += _detail(number, finding)
    if report.recommended.order:
        by_id = {finding.id: finding for finding in report.findings}
        chosen = [by_id[finding_id] for finding_id in report.recommended.order]
        lines = tuple(priced(finding) for finding in chosen)
        blocks += [Heading(ORDER), Items(lines, numbered=True)]
    if applied is not None:
        blocks += [Heading("Applied"), *_applied(applied)]
    if report.metrics:
        blocks += [Heading("Metrics"), _metrics(report)]
    if report.kernels:
        blocks += [Heading("Kernels"), *_kernels(report, namer or short)]
    if report.warnings:
        blocks += [Heading("Warnings"), Items(tuple(warning_lines(report)))]
    return (*blocks, Heading("Made by"), Paragraph(_origin(report)))


def subject(report: Report) -> str:
    """What was measured, on what: one line."""
    work = report.workload
    parts = [work.mode, device_text(report), *work.shapes]
    if work.world_size > 1:
        parts.append(f"rank {work.rank} of {work.world_size}")
    return " · ".join(part for part in parts if part)


def warning_lines(report: Report) -> list[Content]:
    """Each warning with its code and count."""
    return [
        (code(w.code, "warn"), Words(f" {w.message} ({counted(w.count, 'time')})"))
        for w in report.warnings
    ]


def short(name: str) -> str:
    """A kernel's name as far as a table has room for it."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _origin(report: Report) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in sorted(report.workload.versions.items()))
    made = f"{report.tool.name} {report.tool.version}, {report.created}"
    commit = report.workload.commit
    source = f"; source at commit {commit_text(commit)}" if commit is not None else ""
    return f"{made}{source}; with {versions}" if versions else f"{made}{source}"


def _verdict(report: Report) -> list[Block]:
    told = verdicts(report)
    if not told:
        opportunities = [f for f in report.findings if f.kind == "opportunity"]
        if not opportunities:
            return [Paragraph(Words(nothing_found(report), "strong"))]
        why = next((cannot_judge(f) for f in opportunities if f.exposed_saving_ns is None), "")
        return [Paragraph((Words("No fusion is certain to pay.", "strong"), Words(f" {why}")))]
    blocks: list[Block] = []
    for label, finding in told:
        blocks += [
            Paragraph((Words(f"{label}: ", "good"), Words(finding.title, "strong"))),
            Paragraph((Words("Worth: ", "strong"), Words(worth(report, finding)))),
        ]
    whole, count = report.recommended.set_saving_ns, len(report.recommended.order)
    if whole is not None and count > 1:
        text = f"All {counted(count, 'recommended finding')} together: {share(report, whole)}"
        blocks.append(Paragraph(text))
    return blocks


def _findings(report: Report, findings: tuple[Finding, ...]) -> Block:
    rows: list[tuple[Content, ...]] = []
    for number, finding in enumerate(findings, 1):
        saving = finding.exposed_saving_ns
        rows.append(
            (
                str(number),
                Words(finding.title, "strong"),
                Words(finding.kind, KIND_MOOD[finding.kind]),
                UNKNOWN if saving is None else headline(saving),
                (kernels_text(finding) or UNKNOWN)
                if saving is None
                else interval(saving.low, saving.high),
                sites_text(report, finding),
                code(finding.id, "dim"),
            )
        )
    titles = (("#", True), ("Finding", False), ("Kind", False), (f"Saves {when(report)}", True))
    more = (("Interval", False), ("Sites", True), ("Id", False))
    return table((*titles, *more), rows)


def _detail(number: int, finding: Finding) -> list[Block]:
    lines: list[Content] = [(Words("Do: ", "strong"), Words(finding.action))]
    if finding.members:
        lines.append((Words("Members: ", "strong"), Words(members_text(finding.members))))
    lines += [evidence_text(evidence) for evidence in finding.evidence]
    if place := place_text(finding.locations):
        lines.append((Words("At: ", "strong"), code(place)))
    for other in finding.alternatives:
        route = f"{other.route.replace('_', ' ')}, {way_price(other)}: {other.text}"
        lines.append((Words("Or: ", "strong"), Words(route)))
    if finding.provenance == "inferred":
        lines.append(Words("Inferred from a trace: advice, not a proof.", "dim"))
    return [Heading(f"{number}  {finding.title}", 3), Items(tuple(lines))]


def _metrics(report: Report) -> Block:
    rows = [
        (
            code(name),
            format_value(metric.value, metric.unit),
            metric.provenance,
            Words(metric.definition, "dim"),
        )
        for name, metric in sorted(report.metrics.items())
    ]
    titles = (("Metric", False), ("Value", True), ("From", False), ("Definition", False))
    return table(titles, rows)


def _kernels(report: Report, namer: Namer) -> list[Block]:
    total = sum(kernel.time_ns for kernel in report.kernels if kernel.time_ns > 0)
    shown = sorted(report.kernels, key=lambda kernel: -kernel.time_ns)[:MAX_KERNELS]
    rows = [
        (
            code(namer(k.name)),
            k.role,
            k.library,
            f"{k.count:,.4g}",
            format_ns(k.time_ns),
            format_value(k.registers_per_thread, "count"),
        )
        for k in shown
    ]
    titles = (("Kernel", False), ("Role", False), ("Library", False))
    figures = (("Count", True), ("Time", True), ("Registers", True))
    shares = [max(k.time_ns, 0) / total if total else 0.0 for k in shown]
    blocks: list[Block] = [table((*titles, *figures), rows, shares)]
    left = len(report.kernels) - len(shown)
    if left > 0:
        blocks.append(Paragraph(f"and {counted(left, 'kernel')} more, each shorter"))
    return blocks


def _applied(applied: Applied) -> list[Block]:
    head = (
        Words(applied.set.verdict.replace("_", " "), VERDICT_MOOD[applied.set.verdict]),
        Words(f" · {applied.device} · {applied.set.reason}"),
    )
    pairs = (
        ("step, against eager", applied.set.against_eager),
        ("step, against the compiler", applied.set.against_compiled),
        ("GPU time of the step", applied.set.gpu_time),
    )
    titles = (("Measured", False), ("Before", True), ("After", True), ("Speed-up", True))
    rows = [(name, *_compared(pair)) for name, pair in pairs]
    elsewhere = elsewhere_text(applied)
    blocks: list[Block] = [Paragraph(Words(elsewhere))] if elsewhere else []
    blocks += [Paragraph(head), table((*titles, ("Gain", False)), rows)]
    blocks += [Paragraph(Words(text)) for text in _facts(applied)]
    if tried(applied):
        blocks.append(_actions(tried(applied)))
    if applied.plans:
        blocks.append(_plans(applied.plans))
    blocks += _votes(applied)
    if others := not_applicable(applied):
        lines = tuple(Words(f"{action.title}: {action.reason}", "dim") for action in others)
        blocks += [Heading(NOT_APPLICABLE, 3), Items(lines)]
    return blocks


def _facts(applied: Applied) -> list[str]:
    """Memory and compile time of the set, what took how long, what there was no time for."""
    facts, texts = applied.set, []
    if facts.peak_memory_before_bytes is not None:
        before, after = facts.peak_memory_before_bytes, facts.peak_memory_after_bytes
        texts.append(f"Peak memory of the step: {change_text(before, after, 'bytes')}.")
    if facts.compile_before_ns is not None:
        texts.append(f"Compile time: {compile_text(facts)}.")
    if applied.duration_ns is not None:
        texts.append(f"This application took {format_ns(applied.duration_ns)}.")
    left = left_text(applied)
    return [" ".join(texts), *([left] if left else [])] if texts or left else []


def _votes(applied: Applied) -> list[Block]:
    """What the ranks of a job said of what was tried, and of the set."""
    told = [("The set", applied.set.votes)]
    told += [(action.title, action.votes) for action in applied.actions]
    told += [(plan.title, plan.votes) for plan in applied.plans]
    lines = tuple(
        f"{title}: {'; '.join(vote_text(vote) for vote in votes)}" for title, votes in told if votes
    )
    return [Heading("Votes of the ranks", 3), Items(lines)] if lines else []


def _compared(value: Comparison | None) -> tuple[str, str, str, str]:
    before, after = (None, None) if value is None else (value.before, value.after)
    return timing_text(before), timing_text(after), speedup_text(value), gain_text(value)


def _actions(actions: tuple[ActionVerdict, ...]) -> Block:
    rows: list[tuple[Content, ...]] = [
        (
            Words(action.title, "strong"),
            Words(action.verdict.replace("_", " "), VERDICT_MOOD[action.verdict]),
            gain_text(action.step),
            gain_text(action.gpu_time),
            peak_text(action),
            why_text(action),
        )
        for action in actions
    ]
    titles = ("Action", "Verdict", "Step", "GPU time", "Peak memory", "Reason")
    return table([(title, False) for title in titles], rows)


def _plans(plans: tuple[PlanVerdict, ...]) -> Block:
    rows: list[tuple[Content, ...]] = []
    for plan in plans:
        proof = plan.numerics
        numerics = UNKNOWN if proof is None else ("passed" if proof.passed else "FAILED")
        rows.append(
            (
                Words(plan.title, "strong"),
                Words(plan.verdict.replace("_", " "), VERDICT_MOOD[plan.verdict]),
                range_text(plan.predicted_ns),
                gain_text(plan.measured),
                Words(numerics, "bad" if proof is not None and not proof.passed else "plain"),
                plan.reason,
            )
        )
    titles = ("Plan", "Verdict", "Predicted", "Measured", "Numerics", "Reason")
    return table([(title, False) for title in titles], rows)
