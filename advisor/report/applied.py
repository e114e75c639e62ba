"""`applied.json` on the terminal: the set first, then every plan with its proof."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from advisor.model.applied import (
    ELSEWHERE,
    ActionVerdict,
    Applied,
    Comparison,
    KernelResources,
    KernelTiming,
    Numerics,
    PlanVerdict,
    RankVote,
    SetVerdict,
)
from advisor.report.text import (
    comparison_style,
    gain_text,
    heading,
    plain,
    range_text,
    speedup_text,
    table,
    timing_text,
)
from advisor.report.verdict_words import (
    NOT_APPLICABLE,
    SITES,
    SITES_TO_BE,
    STEP_METRICS,
    change_text,
    compile_text,
    elsewhere_text,
    launch_text,
    left_text,
    losses_text,
    not_applicable,
    peak_text,
    serves_text,
    sites_words,
    swapped_text,
    tried,
    vote_text,
    why_text,
)
from advisor.units import UNKNOWN, counted, format_bytes, format_fraction, format_value

VERDICT_STYLE = {"kept": "green", "reverted": "yellow", "refused": "red", "not_measured": "cyan"}
INDENT = (0, 0, 0, 3)


def render_applied(applied: Applied) -> RenderableType:
    """The verdict on the set, what it was measured against, and one section a plan."""
    elsewhere = elsewhere_text(applied)
    parts: list[RenderableType] = [plain(elsewhere, "yellow")] if elsewhere else []
    parts.append(_set_line(applied))
    if _was_measured(applied.set):
        parts += [_set_table(applied), *_set_facts(applied)]
    parts.append(Text(f"this application took {format_value(applied.duration_ns, 'ns')}"))
    parts += _set_metrics(applied)
    if left := left_text(applied):
        parts.append(plain(left, "yellow"))
    for action in tried(applied):
        parts += [Text(), *_action(action)]
    for plan in _by_worth(applied.plans):
        parts += [Text(), *_plan(plan)]
    parts += _not_applicable(applied)
    warnings = [w for w in applied.warnings if w.code != ELSEWHERE]
    if warnings:
        parts.append(heading("Warnings"))
        parts += [
            plain(f"{w.code}: {w.message} ({counted(w.count, 'time')})", "yellow") for w in warnings
        ]
    return Group(*parts)


def _by_worth(plans: Iterable[PlanVerdict]) -> list[PlanVerdict]:
    """What was kept, then the rest, each by what it was to save; the order of trials is another."""

    def key(plan: PlanVerdict) -> tuple[bool, float]:
        return plan.verdict != "kept", -plan.predicted_ns.mid if plan.predicted_ns else 0.0

    return sorted(plans, key=key)


def _verdict(verdict: str) -> Text:
    return Text(verdict.replace("_", " "), style=f"bold {VERDICT_STYLE[verdict]}")


def _set_line(applied: Applied) -> Text:
    line = Text("The set: ", style="bold")
    line.append_text(_verdict(applied.set.verdict))
    for noun, verdicts in (("action", tried(applied)), ("plan", applied.plans)):
        if verdicts:
            kept = sum(item.verdict == "kept" for item in verdicts)
            line.append(f" · {kept} of {counted(len(verdicts), noun)} kept")
    line.append_text(plain(f" · {applied.device}", "dim")).append("\n")
    line.append_text(plain(applied.set.reason))
    return line


def _was_measured(facts: SetVerdict) -> bool:
    """Whether anything is known of the step; without a GPU every figure would be unknown."""
    told = (facts.against_eager, facts.against_compiled, facts.gpu_time, facts.outputs_agree)
    return any(item is not None for item in told)


def _set_table(applied: Applied) -> RenderableType:
    rows = table(
        (
            ("Measured", False),
            ("Before", True),
            ("After", True),
            ("Speed-up", True),
            ("Gain", False),
        )
    )
    for name, comparison in (
        ("step, against eager", applied.set.against_eager),
        ("step, against the compiler", applied.set.against_compiled),
        ("GPU time of the step", applied.set.gpu_time),
    ):
        rows.add_row(name, *_comparison(comparison))
    return rows


def _comparison(value: Comparison | None) -> tuple[str, str, str, Text]:
    before, after = (None, None) if value is None else (value.before, value.after)
    gain = Text(gain_text(value), style=comparison_style(value))
    return timing_text(before), timing_text(after), speedup_text(value), gain


def _set_facts(applied: Applied) -> list[RenderableType]:
    facts = applied.set
    agree = UNKNOWN if facts.outputs_agree is None else ("yes" if facts.outputs_agree else "NO")
    error = format_value(facts.output_error, "count")
    own = format_value(facts.baseline_error, "count")
    memory = change_text(facts.peak_memory_before_bytes, facts.peak_memory_after_bytes, "bytes")
    return [
        Text(f"outputs agree: {agree} (error {error}, without plans {own})"),
        *([plain(losses)] if (losses := losses_text(facts)) else []),
        *_votes(facts.votes),
        Text(f"peak memory: {memory} · compile time: {compile_text(facts)}"),
    ]


def _votes(votes: tuple[RankVote, ...]) -> list[RenderableType]:
    """What each rank of a job measured."""
    return [plain(vote_text(vote), comparison_style(vote.step or vote.gpu_time)) for vote in votes]


def _set_metrics(applied: Applied) -> list[RenderableType]:
    """The compiled step without and with the kept plans, where both were traced."""
    before, after = applied.metrics_before, applied.metrics_after
    shown = [name for name in STEP_METRICS if name in before and name in after]
    if not shown:
        return []
    rows = table((("Metric of the compiled step", False), ("Before", True), ("After", True)))
    for name in shown:
        rows.add_row(name, *(format_value(m[name].value, m[name].unit) for m in (before, after)))
    return [Text(), rows]


def _action(action: ActionVerdict) -> list[RenderableType]:
    """What was done to the step besides kernels, what it gave, and how to do it by hand."""
    head = _verdict(action.verdict)
    head.append_text(plain(f"  {action.title}", "bold")).append(f"  {action.kind}", "dim")
    lines: list[RenderableType] = [plain(why_text(action))]
    if action.sites is not None:
        replaced = SITES if action.step is not None else SITES_TO_BE
        lines.append(Text(f"{replaced}: {action.sites}"))
    if action.step is not None:
        lines.append(
            Text(f"step      {gain_text(action.step)}", style=comparison_style(action.step))
        )
    if action.gpu_time is not None:
        text = f"GPU time  {gain_text(action.gpu_time)}"
        lines.append(Text(text, style=comparison_style(action.gpu_time)))
    lines += _votes(action.votes)
    if action.pool_bytes is not None:
        lines.append(Text(f"memory held by the graph: {format_bytes(action.pool_bytes)}"))
    if action.peak_memory_before_bytes is not None:
        lines.append(Text(f"peak memory: {peak_text(action)}"))
    if action.verdict == "kept":
        lines.append(plain(f"by hand: {action.by_hand}", "dim"))
    return [head, *(Padding(line, INDENT) for line in lines)]


def _not_applicable(applied: Applied) -> list[RenderableType]:
    """One line each: why there was nothing to try."""
    others = not_applicable(applied)
    if not others:
        return []
    lines = [plain(f"{action.title}: {action.reason}", "dim") for action in others]
    return [Text(), Text(NOT_APPLICABLE, style="bold"), *(Padding(line, INDENT) for line in lines)]


def _plan(plan: PlanVerdict) -> list[RenderableType]:
    head = _verdict(plan.verdict)
    head.append_text(plain(f"  {plan.title}", "bold")).append(f"  {plan.plan_id}", "dim")
    sites = (
        f"{UNKNOWN} of {plan.sites_expected}"
        if plan.sites_swapped is None
        else swapped_text(plan.sites_swapped, plan.sites_expected)
    )
    replaced = sites_words(plan.verdict)
    lines: list[RenderableType] = [
        plain(plan.reason),
        Text(f"{replaced}: {sites}"),
        Text(f"predicted {range_text(plan.predicted_ns)}"),
        Text(f"measured  {gain_text(plan.measured)}", style=comparison_style(plan.measured)),
    ]
    if plan.region is not None and plan.region != plan.measured:
        lines.append(_region(plan.region))
    if launched := launch_text(plan):
        lines.append(plain(f"launched as {launched}"))
    if served := serves_text(plan):
        lines.append(plain(f"serves {served}"))
    lines += _votes(plan.votes)
    if plan.numerics is not None:
        lines += _numerics(plan.numerics)
    if plan.timings:
        lines.append(_timings(plan.timings))
    if plan.resources:
        lines.append(_resources(plan.resources))
    return [head, *(Padding(line, INDENT) for line in lines)]


def _region(region: Comparison) -> Text:
    """The compiled step without the plan and with it: what its verdict rests on."""
    text = f"compiled step {timing_text(region.before)} → {timing_text(region.after)} with it"
    return Text(f"region    {gain_text(region)}; {text}", style=comparison_style(region))


def _numerics(numerics: Numerics) -> list[RenderableType]:
    failed = [case for case in numerics.cases if not case.passed]
    worst = max(numerics.cases, key=lambda case: case.max_error_ulps or 0.0, default=None)
    line = Text("numerics: ")
    line.append(
        "passed" if numerics.passed else "FAILED", style="green" if numerics.passed else "bold red"
    )
    passed = len(numerics.cases) - len(failed)
    line.append(
        f", {passed} of {counted(len(numerics.cases), 'case')} on the {numerics.executed_on}"
    )
    if worst is not None and worst.max_error_ulps is not None:
        own = format_value(worst.eager_error_ulps, "ulp")
        line.append(f"; worst error {worst.max_error_ulps:.3g} ulp, eager's own {own}")
    return [line, *(plain(f"failed: {case.name}: {case.detail}", "red") for case in failed)]


def _timings(timings: tuple[KernelTiming, ...]) -> RenderableType:
    rows = table(
        (
            ("Shape", False),
            ("Kernel", True),
            ("Op by op", True),
            ("Inductor", True),
            ("Of a copy", True),
            ("Of peak copy", True),
        )
    )
    for timing in timings:
        rows.add_row(
            plain(timing.shape), timing_text(timing.kernel), timing_text(timing.eager),
            timing_text(timing.inductor), format_fraction(timing.copy_bandwidth_fraction),
            format_fraction(timing.peak_copy_bandwidth_fraction),
        )  # fmt: skip
    return rows


def _resources(resources: tuple[KernelResources, ...]) -> RenderableType:
    rows = table(
        (
            ("GPU", False),
            ("Configuration", False),
            ("Registers", True),
            ("Spilled", True),
            ("Occupancy", True),
            ("Limit", False),
        )
    )
    for item in resources:
        if item.error is not None:
            rows.add_row(
                plain(item.gpu),
                plain(item.config),
                UNKNOWN,
                UNKNOWN,
                UNKNOWN,
                plain(item.error, "red"),
            )
            continue
        spilled = item.spill_store_bytes
        rows.add_row(
            plain(item.gpu), plain(item.config), format_value(item.registers, "count"),
            Text(format_bytes(spilled), style="red" if spilled else ""),
            format_fraction(item.occupancy), plain((item.limiter or UNKNOWN).replace("_", " ")),
        )  # fmt: skip
    return rows
