"""A comparison of two reports as a document."""

from __future__ import annotations

from advisor.model.comparison import (
    Comparability,
    Difference,
    FindingChange,
    KernelChange,
    ReportComparison,
)
from advisor.model.overfusion import UNPAIRED, Bisection
from advisor.report.compare_work import unmade
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
from advisor.report.report_document import Namer, short
from advisor.report.text import INSIGNIFICANT, range_text
from advisor.units import UNKNOWN, counted, format_fraction, format_value

MAX_KERNELS = 30
# What a compiler made is stretched by other factors than what it replaced.
_GAPS = (
    "Recording slows the host, and with it the gaps, not the kernels: without a profiler they may "
    "have changed the other way (`fusion-advisor profile` times the step without one)."
)
UNTESTED = "?"
SINGLE = "¹"
MARKS = {"untested": UNTESTED, "single": SINGLE}
MOODS: dict[str, Mood] = {"better": "good", "worse": "bad", "changed": "plain"}
STATUS_MOODS: dict[str, Mood] = {"new": "bad", "gone": "good", "changed": "warn", "same": "dim"}
OUTCOME_MOODS: dict[str, Mood] = {"agree": "good", "differ": "bad", "unknown": "dim"}
LEGEND = {
    "insignificant": f"{INSIGNIFICANT} not significant: the interval of the change holds zero.",
    "untested": f"{UNTESTED} too few steps to say (four in each run suffice).",
    "single": f"{SINGLE} one value a run, none by step: nothing says how much of it is noise.",
    "significant": "Intervals are at 95 % and speak of the steps of these two processes.",
}


def comparison_document(
    comparison: ReportComparison, namer: Namer = short, metric_namer: Namer | None = None
) -> Document:
    """Whether the two compare and why, then metrics, findings, roles and kernels.

    `namer` shortens kernel names; `metric_namer` gives metrics the names that a page has for them,
    without one they stand as in the report and on the command line.
    """
    title = (code(comparison.before.label), Words(" → "), code(comparison.after.label))
    blocks: list[Block] = [Heading(title, 1), *_comparability(comparison.comparability)]
    if not comparison.comparability.comparable:
        return tuple(blocks)
    blocks += _regressions(comparison)
    if comparison.metrics:
        blocks += [Heading("Metrics"), *_metrics(comparison, metric_namer)]
    if comparison.findings:
        blocks += [Heading("Findings"), _findings(comparison.findings)]
    if comparison.roles:
        blocks += [Heading("Kernel time per step by role"), _roles(comparison)]
    if comparison.kernels:
        blocks += [Heading("Kernels per step"), *_kernels(comparison.kernels, namer)]
    legend = _legend(comparison)
    return (*blocks, Paragraph(Words(legend, "dim"))) if legend else tuple(blocks)


def _legend(comparison: ReportComparison) -> str:
    """What the marks mean that stand in this comparison."""
    shown = [metric.difference for metric in comparison.metrics if not metric.note]
    shown += [role.time for role in comparison.roles]
    shown += [kernel.time for kernel in comparison.kernels]
    seen = {change.significance for change in shown if change.change}
    if "insignificant" in seen:
        seen.add("significant")
    return " ".join(text for name, text in LEGEND.items() if name in seen)


def change_words(change: Difference, unit: str) -> Words:
    """`-12.0 % (-14.0 % … -10.0 %)`; `~` in front if not significant, `?` or `¹` if unknown."""
    if change.change is None:
        return Words(UNKNOWN, "dim")
    if change.significance == "insignificant":
        return Words(f"{INSIGNIFICANT} {_moved(change, unit)}", "dim")
    if change.change == 0:
        return Words("same", "dim")
    known = change.significance not in MARKS
    mark = "" if known else f"{MARKS[change.significance]} "
    mood = MOODS.get(change.direction, "plain") if known else "plain"
    return Words(f"{mark}{_moved(change, unit)}", mood)


def _moved(change: Difference, unit: str) -> str:
    """As a share of the value before, with its interval; in the unit where that value is 0."""
    if not change.before or change.change is None:
        sign = "+" if unit == "count" and (change.change or 0) > 0 else ""
        return sign + format_value(change.change, unit)
    base = abs(change.before)
    text = _signed(change.change / base)
    if change.low is None or change.high is None:
        return text
    return f"{text} ({_signed(change.low / base)} … {_signed(change.high / base)})"


def _signed(fraction: float) -> str:
    return f"{'+' if fraction > 0 else ''}{format_fraction(fraction)}"


def _comparability(found: Comparability) -> list[Block]:
    score = f"Comparability {found.score:.2f} of 1."
    unknown = [name.replace("_", " ") for name in unmade(found)]
    if found.comparable and unknown:
        least = f"Comparable as far as is known, but not of both: {', '.join(unknown)}. "
        head = (Words(least, "warn"), Words(score))
    elif found.comparable:
        head = (Words("Comparable. ", "good"), Words(score))
    else:
        head = (Words("Not comparable. ", "bad"), Words(score))
    blocks: list[Block] = [Paragraph(head)]
    if found.reasons:
        blocks += [Paragraph("Against it:"), Items(tuple(found.reasons))]
        names = " ".join(f"--accept {r.partition(':')[0].replace(' ', '_')}" for r in found.reasons)
        hint = (Words("To compare all the same: "), code(names))
        blocks.append(Paragraph(hint))
    if found.accepted:
        names = ", ".join(found.accepted)
        blocks.append(Paragraph(Words(f"Differ and were accepted: {names}.", "warn")))
    rows: list[tuple[Content, ...]] = [
        (
            check.name.replace("_", " "),
            short(check.before or check.text or UNKNOWN),
            short(check.after or UNKNOWN) if check.after or not check.text else "",
            Words(check.outcome, OUTCOME_MOODS[check.outcome]),
            "required" if check.required else "stated",
        )
        for check in found.checks
    ]
    titles = ("Same work?", "Before", "After", "Outcome", "Needed")
    return [*blocks, table([(title, False) for title in titles], rows)]


def _regressions(comparison: ReportComparison) -> list[Block]:
    """What lost and why, then the change of the step in shares that add up to it."""
    blocks: list[Block] = []
    if comparison.unpaired:
        text = f"Whether fusing hurt cannot be judged kernel by kernel: {comparison.unpaired}"
        blocks.append(Paragraph(Words(text, "dim")))
    if comparison.regressions:
        blocks.append(Heading("What lost"))
    for finding in comparison.regressions:
        mood: Mood = "bad" if finding.kind == "regression" else "dim"
        blocks.append(Paragraph(Words(finding.title, mood)))
        blocks.append(Items((*(e.text for e in finding.evidence), f"To do: {finding.action}")))
    found = comparison.bisection
    lost = any(finding.kind == "regression" for finding in comparison.regressions)
    if found is not None and not lost:
        blocks.append(Paragraph(_nothing_lost(found)))
    if found is None or not found.shares:
        return blocks
    change = found.after_ns - found.before_ns
    rows: list[tuple[Content, ...]] = [
        (
            (share.cause or UNKNOWN).replace("_", " "),
            format_value(share.change_ns, "ns"),
            format_fraction(share.change_ns / change) if change else "–",
            share.text,
            f"{len(share.kernels):,}" if share.kernels else "",
        )
        for share in found.shares
    ]
    total = (
        f"While profiled, from the first activity of a step to its last: "
        f"{format_value(found.before_ns, 'ns')} "
        f"before, {format_value(found.after_ns, 'ns')} after; "
        f"{format_fraction(found.unexplained)} of what changed is unexplained."
    )
    if any(share.cause == "launch_gaps" for share in found.shares):
        total += f" {_GAPS}"
    titles = (
        ("Cause", False),
        ("Change", True),
        ("Share", True),
        ("What", False),
        ("Kernels", True),
    )
    return [*blocks, Heading("What the change is made of"), Paragraph(total), table(titles, rows)]


def _nothing_lost(found: Bisection) -> str:
    """That no fused kernel lost, and of how many that is not known."""
    unknown = sum(len(share.kernels) for share in found.shares if share.text == UNPAIRED)
    rest = f"; {counted(unknown, 'kernel')} could not be paired" if unknown else ""
    return f"No fused kernel is found to have lost against what it replaced{rest}."


def _metrics(comparison: ReportComparison, namer: Namer | None) -> list[Block]:
    named = code if namer is None else lambda name: Words(namer(name))
    rows: list[tuple[Content, ...]] = []
    skipped: list[Content] = []
    same: list[str] = []
    for metric in comparison.metrics:
        if metric.note:
            skipped.append((named(metric.name), Words(f" {metric.note}")))
            continue
        found = metric.difference
        if found.change == 0 and found.low == found.high:
            same.append(metric.name)
            continue
        rows.append(
            (
                named(metric.name),
                format_value(found.before, metric.unit),
                format_value(found.after, metric.unit),
                change_words(found, metric.unit),
            )
        )
    titles = (("Metric", False), ("Before", True), ("After", True), ("Change", False))
    blocks: list[Block] = [table(titles, rows)] if rows else []
    if same:
        names = ", ".join(same if namer is None else map(namer, same))
        blocks.append(Paragraph((Words("Unchanged: "), Words(names, code=namer is None))))
    if skipped:
        blocks += [Paragraph("Not compared:"), Items(tuple(skipped))]
    return blocks


def _findings(changes: tuple[FindingChange, ...]) -> Block:
    rows: list[tuple[Content, ...]] = [
        (
            Words(change.status, _finding_mood(change)),
            change.kind,
            change.title,
            range_text(change.saving_before_ns) if change.before else "–",
            range_text(change.saving_after_ns) if change.after else "–",
            change.text,
        )
        for change in changes
    ]
    titles = ("Status", "Kind", "Finding", "Saved before", "Saves now", "What changed")
    return table([(title, False) for title in titles], rows)


def _finding_mood(change: FindingChange) -> Mood:
    unsure = change.status in ("new", "gone") and change.text
    return "dim" if change.kind == "note" or unsure else STATUS_MOODS[change.status]


def _roles(comparison: ReportComparison) -> Block:
    rows = [
        (
            role.role,
            f"{format_value(role.count_before, 'count')} → "
            f"{format_value(role.count_after, 'count')}",
            format_value(role.time.before, "ns"),
            format_value(role.time.after, "ns"),
            change_words(role.time, "ns"),
        )
        for role in comparison.roles
    ]
    titles = (("Role", False), ("Kernels", True), ("Before", True), ("After", True))
    return table((*titles, ("Change", False)), rows)


def _kernels(changes: tuple[KernelChange, ...], namer: Namer) -> list[Block]:
    rows: list[tuple[Content, ...]] = []
    for change in changes[:MAX_KERNELS]:
        rows.append(
            (
                _names(change, namer),
                change.role,
                change.basis.replace("_", " "),
                format_value(change.time.before, "ns") if change.before else "–",
                format_value(change.time.after, "ns") if change.after else "–",
                _kernel_words(change),
            )
        )
    titles = (("Kernel", False), ("Role", False), ("Matched by", False))
    figures = (("Before", True), ("After", True), ("Change", False))
    blocks: list[Block] = [table((*titles, *figures), rows)]
    left = len(changes) - len(rows)
    if left > 0:
        blocks.append(Paragraph(f"and {counted(left, 'kernel')} more that changed less"))
    return blocks


def _names(change: KernelChange, namer: Namer) -> Content:
    names = [namer(name) for name in (change.before, change.after) if name is not None]
    if len(names) == 2 and names[0] != names[1]:
        return (code(names[0]), Words(" → "), code(names[1]))
    return code(names[0])


def _kernel_words(change: KernelChange) -> Words:
    if change.before is None:
        return Words("new", "plain")
    return Words("gone", "plain") if change.after is None else change_words(change.time, "ns")
