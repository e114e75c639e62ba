"""What an application shows beside its verdicts: both clocks of a plan, sites, metrics."""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from advisor.model.applied import NO_TIME, ActionVerdict, Applied, PlanVerdict, RankVote
from advisor.model.base import Range
from advisor.model.launch import LaunchConfig
from advisor.model.report import Metric
from advisor.report.applied import render_applied
from advisor.report.html import to_html
from advisor.report.markdown import to_markdown
from advisor.report.report_document import report_document
from advisor.report.text import render
from tests.model import builders
from tests.model.builders import comparison


def with_plan(plan: PlanVerdict) -> Applied:
    return replace(builders.applied(), plans=(plan,))


def shown(value: Applied, width: int = 120) -> str:
    return render(render_applied(value), width=width)


def metrics(kernels: float | None, busy_ns: float) -> dict[str, Metric]:
    return {
        name: Metric(value=value, unit=unit, provenance="measured", definition=name)
        for name, value, unit in (
            ("kernels_per_step", kernels, "count"),
            ("gpu_busy_per_step_ns", busy_ns, "ns"),
            ("gpu_span_ns", busy_ns, "ns"),
        )
    }


def test_sites_of_a_plan_that_was_not_measured_can_be_replaced() -> None:
    plan = builders.applied().plans[0]
    assert "sites replaced: 2 of 2" in shown(with_plan(plan))
    planned = replace(plan, verdict="not_measured")
    unmeasured = replace(
        with_plan(planned), set=replace(builders.applied().set, verdict="not_measured", plans=())
    )
    text = shown(unmeasured)
    assert "sites that can be replaced: 2 of 2" in text
    assert "sites replaced" not in text


def test_a_kernel_that_fits_the_places_of_other_plans_too_is_not_three_of_one() -> None:
    plan = replace(builders.applied().plans[0], sites_swapped=3, sites_expected=1)
    assert "sites replaced: 1 of 1, and 2 of other plans" in shown(with_plan(plan))


def test_what_is_worth_most_stands_first() -> None:
    plan = builders.applied().plans[0]
    worth = {"small": 10_000, "kept": 1_000, "large": 90_000}
    plans = tuple(
        replace(
            plan,
            title=name,
            verdict="kept" if name == "kept" else "not_measured",
            predicted_ns=Range(low=mid, mid=mid, high=mid),
        )
        for name, mid in worth.items()
    )
    applied = builders.applied()
    text = shown(replace(applied, plans=plans, set=replace(applied.set, plans=(plan.plan_id,))))
    assert re.findall(r"^(?:kept|not measured) +(\w+)", text, re.MULTILINE) == [
        "kept", "large", "small",
    ]  # fmt: skip


def test_the_compiled_step_stands_beside_what_was_predicted() -> None:
    plan = replace(builders.applied().plans[0], region=comparison(979_000, 690_000))
    lines = shown(with_plan(plan)).splitlines()
    measured = next(i for i, line in enumerate(lines) if "measured  270 µs" in line)
    assert lines[measured + 1].strip() == (
        "region    289 µs (289 µs … 289 µs); compiled step 979 µs → 690 µs with it"
    )


def test_one_measurement_is_shown_once() -> None:
    plan = builders.applied().plans[0]
    assert "region" not in shown(with_plan(plan))
    assert "region" not in shown(with_plan(replace(plan, region=plan.measured)))
    alone = shown(with_plan(replace(plan, measured=None, region=comparison(2_000_000, 1_000_000))))
    assert "measured  unknown" in alone
    assert "region    1 ms" in alone


def test_kernels_and_busy_time_of_the_step_before_and_after() -> None:
    record = replace(
        builders.applied(),
        metrics_before=metrics(40, 690_000),
        metrics_after=metrics(None, 480_000),
    )
    text = shown(record)
    assert re.search(r"kernels_per_step +40 +unknown\n", text)
    assert re.search(r"gpu_busy_per_step_ns +690 µs +480 µs\n", text)
    assert "gpu_span_ns" not in text
    assert max(map(len, shown(record, 80).splitlines())) <= 80


def test_metrics_of_one_side_alone_compare_nothing() -> None:
    record = replace(builders.applied(), metrics_before=metrics(40, 690_000))
    assert "kernels_per_step" not in shown(record)


def action(**changes: Any) -> ActionVerdict:
    found = ActionVerdict(
        kind="attention", title="attention as one library call", verdict="kept", reason="it pays"
    )
    return replace(found, **changes)


def every_form(value: Applied) -> tuple[str, str, str]:
    document = report_document(builders.report(), value)
    return shown(value, 200), to_markdown(document), to_html("t", document)


def test_what_does_not_apply_is_told_apart_with_its_reason() -> None:
    other = action(
        kind="channels_last", title="channels-last", verdict="refused", applies=False,
        reason="no convolution is in the model",
    )  # fmt: skip
    value = replace(builders.applied(), actions=(action(), other))
    for text in every_form(value):
        assert text.index("Actions that have nothing to change here") > text.index("it pays")
        assert "channels-last: no convolution is in the model" in text.replace("&#45;", "-")
    assert "1 of 1 action kept" in shown(value)


def test_a_step_that_is_compiled_with_its_loss_says_what_its_figures_are_of() -> None:
    value = replace(builders.applied(), actions=(action(with_loss=True),))
    for text in every_form(value):
        assert "it pays; model and loss are compiled as one function" in text
    assert "compiled as one" not in shown(replace(value, actions=(action(),)))


def test_memory_votes_and_what_there_was_no_time_for_are_in_every_form() -> None:
    vetoed = RankVote(rank=1, keep=False, reason="slower here", step=comparison(1_000, 1_100))
    measured = action(
        peak_memory_before_bytes=3 << 30, peak_memory_after_bytes=2 << 30, votes=(vetoed,)
    )
    late = action(kind="autotune", title="tuned", verdict="not_measured", reason=NO_TIME)
    for text in every_form(replace(builders.applied(), actions=(measured, late))):
        assert "3 GiB → 2 GiB" in text
        assert "vetoes: slower here" in text
        assert "1 thing not tried, for the time was used up: tuned." in text
        assert "Applying again goes on" in text


def test_who_chose_how_a_kernel_is_launched() -> None:
    plan = builders.applied().plans[0]
    launch = LaunchConfig(scheme="online", block_columns=4096, num_warps=8)
    timed = replace(plan, launch=launch)
    assert f"launched as {launch.label()}, the fastest of those timed" in shown(with_plan(timed))
    untimed = replace(timed, timings=())
    assert "the model's first choice, not timed" in shown(with_plan(untimed))
