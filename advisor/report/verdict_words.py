"""What every form of a record of an application says in the same words."""

from __future__ import annotations

from advisor.model.actions import WITH_LOSS
from advisor.model.applied import (
    ELSEWHERE,
    ActionVerdict,
    Applied,
    PlanVerdict,
    RankVote,
    SetVerdict,
    Verdict,
    is_out_of_time,
)
from advisor.report.text import counted, gain_text
from advisor.units import UNKNOWN, format_value

SITES, SITES_TO_BE = "sites replaced", "sites that can be replaced"
STEP_METRICS = ("kernels_per_step", "gpu_busy_per_step_ns")
NOT_APPLICABLE = "Actions that have nothing to change here"
WARM = "after: with what trials left in the caches"


def vote_text(vote: RankVote) -> str:
    """What one rank of a job measured, and what it says."""
    compared = vote.step if vote.step is not None else vote.gpu_time
    would = "would keep it" if vote.keep else f"vetoes: {vote.reason}"
    return f"rank {vote.rank}: {gain_text(compared)}, {would}"


def change_text(before: float | None, after: float | None, unit: str) -> str:
    """`2.58 GiB → 2.1 GiB`."""
    if before is None and after is None:
        return UNKNOWN
    return f"{format_value(before, unit)} → {format_value(after, unit)}"


def compile_text(facts: SetVerdict) -> str:
    """`13.7 s → 5.09 s (…)`: what trials have left in the caches is no gain of the set's."""
    text = change_text(facts.compile_before_ns, facts.compile_after_ns, "ns")
    return text if text == UNKNOWN else f"{text} ({WARM})"


def peak_text(action: ActionVerdict) -> str:
    """Peak memory of a step without and with an action."""
    return change_text(action.peak_memory_before_bytes, action.peak_memory_after_bytes, "bytes")


def why_text(action: ActionVerdict) -> str:
    """The reason of a verdict, and what figures of a step compiled with its loss are of."""
    return f"{action.reason}; {WITH_LOSS}" if action.with_loss else action.reason


def swapped_text(swapped: int, expected: int) -> str:
    """How many sites of a plan; its kernel may fit places that another plan of the run names."""
    if swapped <= expected:
        return f"{swapped} of {expected}"
    return f"{expected} of {expected}, and {swapped - expected} of other plans"


def sites_words(verdict: Verdict) -> str:
    """What the count of a plan's sites is of: nothing is replaced where nothing was measured."""
    return SITES_TO_BE if verdict == "not_measured" else SITES


def losses_text(facts: SetVerdict) -> str:
    """How a training run goes beside an exacter one; empty where that was not tried."""
    if facts.loss_note:
        return f"losses of a training run: not judged, {facts.loss_note}"
    if facts.loss_divergence is None:
        return ""
    ours = format_value(facts.loss_divergence, "count")
    own = format_value(facts.eager_divergence, "count")
    reference = facts.loss_reference or "float32"
    if facts.compiled_divergence is not None:
        own += f", the compiler's {format_value(facts.compiled_divergence, 'count')}"
    dropped = "; dropout off" if facts.dropout_off else ""
    return (
        f"losses of a training run: {ours} of the largest from a {reference} run's, "
        f"eager's own {own}{dropped}"
    )


def tried(applied: Applied) -> tuple[ActionVerdict, ...]:
    """The actions that had something to change."""
    return tuple(action for action in applied.actions if action.applies)


def not_applicable(applied: Applied) -> tuple[ActionVerdict, ...]:
    """The actions that had nothing to change; each says why."""
    return tuple(action for action in applied.actions if not action.applies)


def out_of_time(applied: Applied) -> tuple[ActionVerdict | PlanVerdict, ...]:
    """What a budget left no time for: the next application goes on with it."""
    every: list[ActionVerdict | PlanVerdict] = [*applied.actions, *applied.plans]
    return tuple(verdict for verdict in every if is_out_of_time(verdict))


def elsewhere_text(applied: Applied) -> str:
    """That the record is of another device or other versions than were last applied; "" if not."""
    return " ".join(w.message for w in applied.warnings if w.code == ELSEWHERE)


def left_text(applied: Applied) -> str:
    """How much the budget left, and what to do; empty where nothing was left."""
    left = out_of_time(applied)
    if not left:
        return ""
    names = ", ".join(dict.fromkeys(item.title for item in left[:3]))
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""
    return (
        f"{counted(len(left), 'thing')} not tried, for the time was used up: {names}{more}. "
        "Applying again goes on with them."
    )


def launch_text(verdict: PlanVerdict) -> str:
    """How the kernel of a plan is launched and who chose that; empty where none was made."""
    if verdict.launch is None and verdict.block_rows is None:
        return ""
    label = verdict.configuration.label()
    if not verdict.timings:
        return f"{label}, the model's first choice, not timed"
    return f"{label}, the fastest of those timed"


def serves_text(verdict: PlanVerdict) -> str:
    """The sizes that the kernel of a plan is called with; empty where it is not used."""
    used = verdict.verdict in ("kept", "not_measured")
    return verdict.serves if used and verdict.serves is not None else ""
