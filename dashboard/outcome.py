"""What an application came to as a whole: the set, graph-level actions, ranks, what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from advisor.model.applied import (
    ELSEWHERE,
    ActionVerdict,
    Applied,
    Comparison,
    PlanVerdict,
    RankVote,
    SetVerdict,
)
from advisor.model.base import Range
from advisor.report.text import counted, gain_text, insignificant, speedup_text
from advisor.report.verdict_words import (
    NOT_APPLICABLE,
    STEP_METRICS,
    WARM,
    elsewhere_text,
    left_text,
    losses_text,
    not_applicable,
    peak_text,
    sites_words,
    swapped_text,
    tried,
    why_text,
)
from advisor.store.directory import RunDirectory
from advisor.units import UNKNOWN, format_bytes, format_ns, format_value
from dashboard import figures
from dashboard.parts import (
    VERDICT_COLORS,
    VERDICT_WORDS,
    Child,
    badge,
    graph,
    heading,
    message,
    moment,
    plain_name,
    saving_text,
    section,
    table,
)

CLOCKS = {"gpu_busy": "GPU time of the step", "step": "step time", "kernel": "kernel time"}


def set_section(run: RunDirectory, applied: Applied) -> Component:
    """The verdict on the set, what was tried for it, and the way to take it along."""
    result = applied.set
    blocks: list[Component] = [words(result.verdict, result.reason)]
    left = left_text(applied)
    if left:
        blocks.append(message("Not everything was tried", left, "orange"))
    if elsewhere := elsewhere_text(applied):
        blocks.append(message("Measured elsewhere", elsewhere, "orange"))
    blocks += [
        message(f"Warning: {w.code.replace('-', ' ')}", w.message, "orange")
        for w in applied.warnings
        if w.code != ELSEWHERE
    ]
    if result.verdict == "kept":
        blocks.append(download(run))
    rows = _compared(result)
    if rows:
        label = "Median time before and after applying, with intervals"
        blocks.append(graph(figures.comparison(rows), "before-after", label))
        blocks.append(comparisons(rows))
    measured = [row for row in _other_figures(applied) if set(row[1:]) != {UNKNOWN}]
    if measured:
        blocks.append(table(("Also measured", "Before", "After"), measured, "Other figures"))
    losses = losses_text(result)
    if losses:
        blocks.append(dmc.Text(f"{losses[0].upper()}{losses[1:]}."))
    blocks += votes("The set", result.votes)
    blocks += actions(tried(applied))
    if applied.plans:
        blocks += _plans(applied)
    blocks += folded(not_applicable(applied))
    took = "" if applied.duration_ns is None else f" in {format_ns(applied.duration_ns)}"
    note = f"Applied {moment(applied.created)} on {applied.device}{took}{_agreement(result)}"
    return section("Result", *blocks, note=note)


def _compared(result: SetVerdict) -> list[tuple[str, Comparison]]:
    named = (
        ("against eager", result.against_eager),
        ("against torch.compile", result.against_compiled),
        ("GPU time", result.gpu_time),
    )
    return [(label, compared) for label, compared in named if compared is not None]


def _plans(applied: Applied) -> list[Component]:
    rows = [(p.title, VERDICT_WORDS[p.verdict], p.reason, swapped(p)) for p in applied.plans]
    told = dict.fromkeys(sites_words(plan.verdict) for plan in applied.plans)
    head = ("Plan", "Verdict", "Why", " or ".join(told).capitalize())
    return [heading("Generated kernels", 3, small=True), table(head, rows, "Verdicts of the plans")]


def swapped(verdict: PlanVerdict) -> str:
    """`9 of 9` sites; `none of 9` where the kernel was put in nowhere."""
    if verdict.sites_swapped is None:
        return f"{'none' if verdict.verdict == 'refused' else UNKNOWN} of {verdict.sites_expected}"
    return swapped_text(verdict.sites_swapped, verdict.sites_expected)


def actions(verdicts: Sequence[ActionVerdict]) -> list[Component]:
    """What became of each graph-level action, with its figures and how to do it by hand."""
    if not verdicts:
        return []
    rows = [
        (
            action.title,
            VERDICT_WORDS[action.verdict],
            gain_text(action.step),
            gain_text(action.gpu_time),
            peak_text(action),
            html.Div([html.Div(why_text(action)), *_more(action)]),
        )
        for action in verdicts
    ]
    head = ("Action", "Verdict", "Step saves", "GPU time saves", "Peak memory", "Why")
    blocks = [
        heading("Graph-level actions", 3, small=True),
        table(head, rows, "Verdicts of the actions"),
    ]
    for action in verdicts:
        blocks += votes(action.title, action.votes)
    return blocks


def _more(action: ActionVerdict) -> list[Component]:
    """What became of each place, and how a person would do it, folded away."""
    lines = [html.Li(text) for text in action.details]
    if action.pool_bytes is not None:
        lines.append(html.Li(f"Memory held by the graph: {format_bytes(action.pool_bytes)}"))
    if action.by_hand:
        lines.append(html.Li(f"By hand: {action.by_hand}"))
    if not lines:
        return []
    places = "" if action.sites is None else f"{counted(action.sites, 'place')}; "
    return [html.Details([html.Summary(f"{places}how"), html.Ul(lines)])]


def folded(verdicts: Sequence[ActionVerdict]) -> list[Component]:
    """Why actions had nothing to change: there for who asks."""
    if not verdicts:
        return []
    lines = [html.Li([html.B(action.title), f": {action.reason}"]) for action in verdicts]
    title = f"{NOT_APPLICABLE} ({len(verdicts)}), and why"
    return [html.Details([html.Summary(title), html.Ul(lines)])]


def votes(title: str, told: Sequence[RankVote]) -> list[Component]:
    """What each rank of a job measured, and whether it would keep what was tried."""
    if not told:
        return []
    rows = [
        (
            f"rank {vote.rank}",
            "would keep it" if vote.keep else "vetoes",
            gain_text(vote.step),
            gain_text(vote.gpu_time),
            vote.reason,
        )
        for vote in told
    ]
    against = sum(not vote.keep for vote in told)
    said = f"{against} against" if against else "all for it"
    head = ("Rank", "Vote", "Step saves", "GPU time saves", "Why")
    summary = html.Summary(f"{title}: votes of {counted(len(told), 'rank')}, {said}")
    return [html.Details([summary, table(head, rows, f"Votes of the ranks: {title}")])]


def download(run: RunDirectory, finding: str | None = None) -> Component:
    """The link to a patch: of all that was kept, or of what was kept for a finding."""
    below = "" if finding is None else f"findings/{finding}/"
    text = "what was kept" if finding is None else "what was kept for this finding"
    return dmc.Group(
        [
            html.A(
                "Download the patch",
                href=f"/api/runs/{run.id}/{below}patch.zip",
                download="fusion_patch.zip",
                className="button",
            ),
            dmc.Text(
                f"A Python package with {text}: kernels, actions, measurements and the line that "
                "applies them; it needs no run.",
                size="sm",
                c="dimmed",
                className="wide",
            ),
        ]
    )


def words(verdict: str, reason: str) -> Component:
    """A verdict and why."""
    return dmc.Group([badge(VERDICT_WORDS[verdict], VERDICT_COLORS[verdict]), dmc.Text(reason)])


def comparisons(rows: Sequence[tuple[str, Comparison]]) -> Component:
    """Before and after, with the judgement on the difference."""
    cells: list[Sequence[Child]] = [
        (
            label,
            CLOCKS[c.clock],
            format_ns(c.before.median_ns),
            format_ns(c.after.median_ns),
            saving_text(Range(low=c.gain_low_ns, mid=c.gain_mid_ns, high=c.gain_high_ns)),
            speedup_text(c),
            _judged(c),
        )
        for label, c in rows
    ]
    head = ("Compared", "Clock", "Before", "After", "Gain", "Speed-up", "Judgement")
    return table(head, cells, "Before and after, interleaved in one process")


def _judged(value: Comparison) -> str:
    """Whether the change is beyond noise, and in which direction: a loss is no noise."""
    if insignificant(value):
        return "within noise"
    return f"beyond noise, {'faster' if value.significant else 'slower'}"


def _other_figures(applied: Applied) -> tuple[tuple[str, str, str], ...]:
    result = applied.set
    memory = (result.peak_memory_before_bytes, result.peak_memory_after_bytes)
    return (
        ("Peak memory", format_bytes(memory[0]), format_bytes(memory[1])),
        (
            f"Compile time ({WARM})",
            format_ns(result.compile_before_ns),
            format_ns(result.compile_after_ns),
        ),
        *_step_figures(applied),
    )


def _step_figures(applied: Applied) -> Iterator[tuple[str, str, str]]:
    """Metrics of the compiled step without and with what was kept, where both were traced."""
    before, after = applied.metrics_before, applied.metrics_after
    for name in STEP_METRICS:
        if name in before and name in after:
            texts = [
                format_value(metrics[name].value, metrics[name].unit) for metrics in (before, after)
            ]
            yield plain_name(name).capitalize(), texts[0], texts[1]


def _agreement(result: SetVerdict) -> str:
    """Whether outputs agree, and how far they and those without plans are from exact ones."""
    if result.outputs_agree is None:
        return ""
    error = format_value(result.output_error, "count")
    own = format_value(result.baseline_error, "count")
    said = "agree" if result.outputs_agree else "differ"
    return f"; outputs {said} (error {error}, without plans {own})"
