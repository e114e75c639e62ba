"""Predictions against measurements on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.model.scores import Scores
from advisor.report.text import heading, plain, range_text, table
from advisor.units import UNKNOWN, counted, format_fraction


def render_scores(scores: Scores) -> RenderableType:
    """The summary, what it teaches, then every plan."""
    if not scores.plans:
        return plain(
            "no plan here has both a prediction and a measurement; `fusion-advisor apply` a run "
            "on a GPU first"
        )
    kept = sum(item.kept for item in scores.plans)
    lines: list[RenderableType] = [
        heading(f"{counted(len(scores.plans), 'plan')} measured, {kept} of them kept"),
        Text(f"median error: {format_fraction(scores.median_error)} of what plans replace"),
        Text(f"80 % intervals held: {format_fraction(scores.coverage)} ({_beyond(scores)})"),
        *(Text(line) for line in _learned(scores)),
    ]
    if scores.runs_without:
        lines.append(plain(f"{counted(scores.runs_without, 'run')} without such a plan", "dim"))
    return Group(*lines, Text(), _plans(scores))


def _beyond(scores: Scores) -> str:
    """How many plans lie beyond each end of their interval."""
    less = sum(item.measured_ns.mid < item.predicted_ns.low for item in scores.plans)
    more = sum(item.measured_ns.mid > item.predicted_ns.high for item in scores.plans)
    return f"{counted(less, 'plan')} saved less, {more} more"


def _learned(scores: Scores) -> Iterator[str]:
    """What predictions can learn of these plans, and how well that does elsewhere."""
    found, held_out = scores.residuals, scores.held_out
    if found is None:
        yield f"residuals of the new kernels' times: {UNKNOWN}, of too few plans"
        return
    yield (
        f"residuals of the new kernels' times: {found.mid:+.2f} half-widths in the median, "
        f"{found.low:+.2f} to {found.high:+.2f} for 80 %"
    )
    if held_out is None:
        yield f"each run as the others teach it: {UNKNOWN}, of too few plans"
        return
    yield (
        f"each run as the others teach it: {format_fraction(held_out.coverage)} of the intervals "
        f"hold, median error {format_fraction(held_out.median_error)}"
    )


def _plans(scores: Scores) -> RenderableType:
    rows = table(
        (
            ("Plan", False),
            ("Run", False),
            ("Predicted saving", False),
            ("Measured", False),
            ("Error", True),
            ("Held", False),
        )
    )
    for item in sorted(scores.plans, key=lambda score: -(score.error or 0.0)):
        rows.add_row(
            plain(f"{item.title} {item.plan_id[:8]}"),
            plain(item.run),
            range_text(item.predicted_ns),
            range_text(item.measured_ns),
            format_fraction(item.error),
            "yes" if item.inside else "no",
        )
    return rows
