"""Predictions against measurements on the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.model.scores import Scores
from advisor.report.text import heading, plain, range_text, table
from advisor.units import UNKNOWN, counted, format_fraction


def render_scores(scores: Scores) -> RenderableType:
    """The summary, then every plan."""
    if not scores.plans:
        return plain(
            "no plan here has both a prediction and a measurement; `fusion-advisor apply` a run "
            "on a GPU first"
        )
    kept = sum(item.kept for item in scores.plans)
    factor = scores.interval_factor
    width = f"{UNKNOWN}, of too few plans" if factor is None else f"{factor:.2f}×"
    lines: list[RenderableType] = [
        heading(f"{counted(len(scores.plans), 'plan')} measured, {kept} of them kept"),
        Text(f"median error: {format_fraction(scores.median_error)} of what plans replace"),
        Text(f"80 % intervals held: {format_fraction(scores.coverage)}"),
        Text(f"half-widths that would hold 80 %: {width}"),
    ]
    if scores.runs_without:
        lines.append(plain(f"{counted(scores.runs_without, 'run')} without such a plan", "dim"))
    return Group(*lines, Text(), _plans(scores))


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
