"""Reports and applications on a terminal: 80 and 120 columns, with and without colour."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from advisor.model.applied import Applied, Comparison
from advisor.model.base import Location, Range, Warning_
from advisor.model.findings import Evidence
from advisor.model.report import INCOMPLETE, Recommended, Report
from advisor.report.applied import render_applied
from advisor.report.progress import progress_line
from advisor.report.terminal import render_next, render_report
from advisor.report.text import gain_text, range_text, render, speedup_text
from advisor.report.words import first_to_fuse, ranked
from tests.model import builders, strategies
from tests.model.builders import comparison, finding, price, report

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def three() -> Report:
    """A cheap opportunity, a dear one, an unpriced one and a note, in the wrong order."""
    return report(
        replace(finding("cheap", saving=price(1_000, 2_000, 3_000)), title="Cheap"),
        replace(finding("note", saving=price(10**9, 10**9, 10**9), kind="note"), title="Note"),
        replace(finding("unpriced"), title="Unpriced"),
        replace(finding("dear", saving=price(100_000, 200_000, 300_000)), title="Dear"),
    )


def shown(value: Report, width: int = 100) -> str:
    return render(render_report(value), width=width)


def test_findings_are_ranked_by_exposed_saving_unpriced_behind_notes_last() -> None:
    assert [f.title for f in ranked(three())] == ["Dear", "Cheap", "Unpriced", "Note"]


def test_the_verdict_comes_first_and_is_the_recommended_finding_that_saves_most() -> None:
    assert shown(three()).splitlines()[2] == "Fuse first: Dear"
    cheap = replace(three(), recommended=Recommended(order=("cheap",)))
    assert shown(cheap).splitlines()[2] == "Fuse first: Cheap"
    unordered = replace(three(), recommended=Recommended())
    assert shown(unordered).splitlines()[2] == "Fuse first: Dear"


def test_what_is_about_no_kernels_is_done_not_fused() -> None:
    """A late host saves most here; which kernels to fuse first is said beside it."""
    host = (Evidence(kind="host", text="the next kernel had not been launched yet"),)
    late = finding("late", saving=price(1, 10**6, 10**7))
    late = replace(late, members=(), evidence=host, title="Host-bound")
    fused = replace(finding("fused", saving=price(1, 10**5, 10**6)), title="Norms")
    lines = shown(report(late, fused)).splitlines()
    assert lines[2] == "Do first: Host-bound"
    assert lines[4] == "Fuse first: Norms"
    assert "Worth: 100 µs" in lines[5]
    assert "Fuse first" not in shown(report(late))


def test_worth_is_a_share_of_the_clean_step() -> None:
    assert "Worth: 310 µs (250 µs … 380 µs) of a 10.4 ms step, 3.0 %" in shown(report())
    bare = shown(replace(report(), metrics={}))
    assert "Worth: 310 µs (250 µs … 380 µs) per step" in bare


def test_a_saving_that_may_be_none_is_not_a_verdict() -> None:
    uncertain = replace(report(finding(saving=price(-5, 1_000, 90_000))), recommended=Recommended())
    assert first_to_fuse(uncertain) is None
    assert "No fusion is certain to pay." in shown(uncertain)


def test_what_cannot_be_judged_says_why_and_is_unknown_not_zero() -> None:
    text = shown(report(finding()))
    assert "No fusion is certain to pay. needs a clean step time" in text
    assert re.search(r"1 +RMSNorm in 8 pieces +unknown +2", text)
    assert re.search(r"gpu_idle_fraction +unknown +unknown", text)


def test_sites_are_counted_where_there_are_any() -> None:
    """Of a trace without stacks no place is known, but how many sites there are is."""
    bare = replace(finding("nine"), plan_id=None, locations=(), title="Nine")
    places = replace(bare.evidence[0], values={"sites": 9})
    late = replace(finding("late"), plan_id=None, locations=(), title="Late")
    host = replace(late.evidence[0], kind="host", values={})
    text = shown(
        report(
            replace(bare, evidence=(places, *bare.evidence[1:])),
            replace(late, evidence=(host, *late.evidence[1:])),
        )
    )
    assert re.search(r"Nine +unknown +9\n", text)
    # One of its plans serves two of the three that its title counts.
    three = replace(places, values={"sites": 3})
    several = replace(finding("several"), title="Three", evidence=(three, *bare.evidence[1:]))
    assert re.search(r"Three +unknown +3\n", shown(report(several)))
    assert re.search(r"Late +unknown +–\n", text)


def test_nothing_to_fuse_is_said() -> None:
    empty = replace(report(), findings=(), plans=(), recommended=Recommended())
    assert "Nothing to fuse was found." in shown(empty)
    assert "Findings" not in shown(empty)
    lost = replace(finding("lost"), kind="regression", plan_id=None, title="norm spills")
    alone = replace(report(lost), plans=(), recommended=Recommended())
    assert "Nothing to fuse was found. What lost: norm spills." in shown(alone)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (INCOMPLETE, "Nothing to fuse was found before the profile ended; it did not finish."),
        ("shapes-missing", "Nothing to fuse was found in the part that can be judged"),
        ("inferred-opaque", "Nothing to fuse was found in the part that can be judged"),
    ],
)
def test_nothing_found_is_not_nothing_there(code: str, said: str) -> None:
    empty = replace(report(), findings=(), plans=(), recommended=Recommended())
    assert said in shown(replace(empty, warnings=(Warning_(code=code, message="why"),)))


def test_a_device_that_was_not_there_is_marked() -> None:
    hardware = replace(report().hardware, present=False)
    absent = replace(report(), hardware=hardware)
    assert "NVIDIA H200 (not present, modelled)" in shown(absent)
    trace = replace(absent, workload=replace(absent.workload, mode="trace"))
    assert "trace · NVIDIA H200\n" in shown(trace), "a trace was measured elsewhere, not modelled"


def test_provenance_definition_and_warnings_are_printed() -> None:
    text = shown(report())
    assert re.search(r"step_ns +10\.4 ms +measured +clean step, median", text)
    assert "clipped: events outside the steps (3 times)" in text


def test_only_ten_findings_are_detailed_and_all_are_listed() -> None:
    many = [finding(f"f{n:02d}", saving=price(n, n, n)) for n in range(1, 15)]
    text = shown(report(*many))
    assert text.count("   do: ") == 10
    assert all(f"opportunity · f{n:02d}" in text for n in range(1, 15))


@pytest.mark.parametrize(
    ("saving", "text"),
    [
        (price(0, 400_000, 400_000), "Worth: at most 400 µs of a 10.4 ms step, 3.8 %"),
        (price(0, 0, 400_000), "Worth: at most 400 µs of a 10.4 ms step, 3.8 %"),
        (price(0, 90_000, 400_000), "Worth: at most 400 µs (estimated 90 µs) of a 10.4 ms step"),
        (price(-5, 90_000, 400_000), "Worth: 90 µs (-5 ns … 400 µs) of a 10.4 ms step, 0.9 %"),
        (price(0, 0, 0), "Worth: 0 ns of a 10.4 ms step, 0.0 %"),
    ],
)
def test_an_upper_bound_is_not_a_value(saving: Range, text: str) -> None:
    one = report(finding("bound", saving=saving))
    assert text in shown(replace(one, recommended=Recommended(order=("bound",))))


def test_next_names_the_run_quoted_for_a_shell() -> None:
    text = render(render_next(report(), "my runs/it's", None))
    assert "fusion-advisor apply 'my runs/it'\"'\"'s'" in text


def test_next_offers_to_apply_only_where_there_is_something_to_try() -> None:
    no_plans = replace(report(), plans=())
    assert "fusion-advisor apply r" in render(render_next(no_plans, "r", None))
    no_gpu = replace(no_plans, hardware=replace(no_plans.hardware, present=False))
    assert "apply" not in render(render_next(no_gpu, "r", None))
    workload = replace(report().workload, target="train.py -- --width 128")
    assert "apply" not in render(render_next(replace(report(), workload=workload), "r", None))


def test_a_place_without_a_name_is_not_shown() -> None:
    nowhere = replace(finding("lost"), locations=(Location(),))
    text = shown(replace(report(nowhere), recommended=Recommended(order=("lost",))))
    assert "at:" not in text
    known = replace(nowhere, locations=(Location(), Location(module="block.norm")))
    assert "at: module block.norm\n" in shown(replace(report(known), recommended=Recommended()))


def test_kernel_time_stands_beside_a_saving_that_is_unknown() -> None:
    spared = Evidence(kind="cannot_judge", text="no GPU", values={"kernel_saving_ns": 75_700})
    one = replace(finding("masked"), evidence=(spared,))
    text = shown(replace(report(one), recommended=Recommended(order=("masked",))))
    assert f"1. {one.title}: unknown (75.7 µs of kernel time)" in text


def test_next_is_never_broken_on_a_narrow_terminal() -> None:
    run = "/a long path/" + "run/" * 60
    lines = render(render_next(report(), run, None), width=60).splitlines()
    assert f"fusion-advisor apply '{run}'" in lines
    assert f"fusion-advisor show '{run}' --json" in lines


def test_revert_is_offered_only_where_something_is_kept() -> None:
    record = builders.applied()
    assert "revert" in render(render_next(report(), "r", record))
    taken_out = replace(record, set=replace(record.set, verdict="reverted", plans=()))
    text = render(render_next(report(), "r", taken_out))
    assert "revert" not in text
    assert "fusion-advisor apply" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_every_line_fits_and_colour_adds_only_colour(width: int) -> None:
    for renderable in (render_report(three()), render_applied(builders.applied())):
        bare = render(renderable, width=width)
        assert max(map(len, bare.splitlines())) <= width
        assert "\x1b" not in bare
        coloured = render(renderable, width=width, colour=True)
        assert ANSI.search(coloured)
        plain = "\n".join(line.rstrip() for line in ANSI.sub("", coloured).splitlines())
        assert plain + "\n" == bare


@pytest.mark.parametrize("width", [80, 120])
def test_figures_are_not_broken_over_lines(width: int) -> None:
    text = render(render_applied(builders.applied()), width=width)
    assert re.search(r"10\.4 ms +5 ms +2\.080×", text)
    assert re.search(r"4096x2048 +8 µs +90 µs +unknown +93\.0 %", text)


HOSTILE = "\x1b[2J[red]evil[/red]\u202e\r\nsecond :smile:"


def test_text_of_a_report_is_shown_not_obeyed() -> None:
    bad = replace(finding(saving=price(1, 2, 3)), title=HOSTILE, action=HOSTILE)
    text = shown(replace(report(bad), workload=replace(report().workload, target=HOSTILE)), 140)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]evil[/red]" in text
    assert r"\x1b[2J" in text
    assert ":smile:" in text


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=strategies.reports())
def test_any_valid_report_renders(value: Report) -> None:
    text = render(render_report(value), width=80)
    assert "\x1b" not in text
    assert text.endswith("\n")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=strategies.applications())
def test_any_valid_application_renders(value: Applied) -> None:
    assert "The set: " in render(render_applied(value), width=80)


@pytest.mark.parametrize(
    ("compared", "gain", "speedup"),
    [
        (comparison(1_000_000, 500_000), "500 µs (500 µs … 500 µs)", "2.000×"),
        (comparison(1_000, 1_004), "~ -4 ns (-14 ns … 6 ns)", "~"),
        (comparison(1_000, 1_000, spread=0), "~ 0 ns (0 ns … 0 ns)", "~"),
        (comparison(1_000, 2_000), "-1 µs (-1.01 µs … -990 ns)", "0.500×"),
        (None, "unknown", "unknown"),
    ],
)
def test_insignificant_differences_print_a_tilde(
    compared: Comparison | None, gain: str, speedup: str
) -> None:
    assert gain_text(compared) == gain
    assert speedup_text(compared) == speedup


def test_a_missing_price_is_unknown() -> None:
    assert range_text(None) == "unknown"


def test_failed_numerics_name_their_cases() -> None:
    record = builders.applied()
    plan = record.plans[0]
    numerics = plan.numerics
    assert numerics is not None
    bad = replace(numerics.cases[0], passed=False, detail="off by 9 ulp in row 3")
    failed = replace(numerics, passed=False, cases=(bad, *numerics.cases[1:]))
    text = render(render_applied(replace(record, plans=(replace(plan, numerics=failed),))))
    assert "numerics: FAILED, 1 of 2 cases on the gpu" in text
    assert "failed: plan shape: off by 9 ulp in row 3" in text


def test_unknown_resources_are_not_zero_and_faults_are_named() -> None:
    text = render(render_applied(builders.applied()))
    assert re.search(r"mi300x +4 warps +unknown +unknown +unknown +timed out after 60 s", text)
    assert re.search(r"h200 +4 warps +48 +0 B +62\.5 % +registers", text)


def test_progress_shows_mark_stage_plan_value_and_message() -> None:
    event = replace(builders.progress(), plan=builders.PLAN_ID, message="graphs\n2")
    assert progress_line(event).plain == "▸ capture      01234567 187  graphs\\n2"
