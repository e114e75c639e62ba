"""`/run/ID/calibration`: what was predicted beside what was measured, of everything tried."""

from __future__ import annotations

import re

from dash.development.base_component import Component

from advisor.errors import AdvisorError
from advisor.model.applied import Applied, Comparison, PlanVerdict
from advisor.report.text import counted, gain_text
from advisor.units import UNKNOWN, format_fraction
from dashboard.context import Context
from dashboard.figures_run import Scored, calibration
from dashboard.page import Page
from dashboard.pages.frame import frame
from dashboard.parts import (
    VERDICT_WORDS,
    cannot_show,
    figure_card,
    graph,
    message,
    saving_text,
    section,
    table,
)

_HEAD = ("Plan", "Predicted saving", "Measured", "Measured / predicted", "Interval held", "Verdict")


def layout(context: Context, run: str) -> Component:
    """Scores of the predictions of one run."""
    directory = context.store.open(run)
    report = context.report(directory)
    try:
        applied = context.applied(directory)
    except AdvisorError as error:
        return frame(directory, report, "Calibration", cannot_show(error))
    if applied is None:
        text = (
            "Predictions are scored when a run is applied: press Apply on the overview, or run "
            f"fusion-advisor apply -- {directory.path}"
        )
        return frame(directory, report, "Calibration", message("Nothing was applied yet", text))
    scored = scores(applied)
    blocks: list[Component] = []
    if scored:
        label = "Measured against predicted saving per step of each plan"
        blocks.append(graph(calibration(scored), "calibration", label))
    else:
        text = "No plan was both predicted and measured: timing needs the GPU of the run."
        blocks.append(message("Nothing to score", text))
    rows = [_row(verdict) for verdict in applied.plans]
    blocks.append(table(_HEAD, rows, "Predicted against measured, by plan"))
    held = sum(_held(row) for row in scored)
    card = figure_card(
        "Intervals that held",
        f"{held} of {len(scored)}" if scored else UNKNOWN,
        "predictions are given at 80 %",
        "The interval of the prediction and that of the measurement overlap.",
    )
    note = f"{counted(len(applied.plans), 'plan')} tried, {len(scored)} scored; savings per step."
    body = section("Predicted against measured", *blocks, note=note)
    return frame(directory, report, "Calibration", card, body)


def scores(applied: Applied) -> list[Scored]:
    """Every plan that was both predicted and measured."""
    return [
        Scored(
            verdict.title,
            verdict.verdict,
            (verdict.predicted_ns.low, verdict.predicted_ns.mid, verdict.predicted_ns.high),
            _gain(verdict.measured),
        )
        for verdict in applied.plans
        if verdict.predicted_ns is not None and verdict.measured is not None
    ]


def _row(verdict: PlanVerdict) -> tuple[str, ...]:
    predicted, measured = verdict.predicted_ns, verdict.measured
    ratio = held = UNKNOWN
    if predicted is not None and measured is not None:
        ratio = format_fraction(measured.gain_mid_ns / predicted.mid) if predicted.mid else UNKNOWN
        held = "yes" if _overlaps(predicted.low, predicted.high, measured) else "no"
    return (
        verdict.title,
        UNKNOWN if predicted is None else saving_text(predicted),
        gain_text(measured),
        ratio,
        held,
        f"{VERDICT_WORDS[verdict.verdict]}: {verdict.reason}",
    )


def _held(row: Scored) -> bool:
    return row.predicted[0] <= row.measured[2] and row.measured[0] <= row.predicted[2]


def _overlaps(low: int, high: int, measured: Comparison) -> bool:
    return low <= measured.gain_high_ns and measured.gain_low_ns <= high


def _gain(measured: Comparison) -> tuple[int, int, int]:
    return (measured.gain_low_ns, measured.gain_mid_ns, measured.gain_high_ns)


PAGE = Page(
    name="calibration",
    pattern=re.compile(r"/run/(?P<run>[\w-]+)/calibration"),
    layout=layout,
    title="Calibration",
)
