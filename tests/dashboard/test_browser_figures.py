"""What pages say of recorded runs, damaged ones and ones without a GPU, in real Chromium."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Group

from advisor.model.applied import PlanVerdict
from advisor.report.applied import render_applied
from advisor.report.terminal import render_report
from advisor.report.text import render
from advisor.store import RunStore
from dashboard.access import Access
from dashboard.page import finding_path, run_path
from tests.dashboard.chromium import Served, needs_chromium, opened
from tests.dashboard.conftest import ROOT

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
pytestmark = needs_chromium

EAGER, COMPILED = "llama_prefill_eager", "llama_train_compile"
LOST, NORM = "row-program-78bad7e912", "row-program-3fe649bf68"
# Texts of a chart that lie on each other or beyond its frame.
CROWDED = """() => [...document.querySelectorAll(".js-plotly-plot")].flatMap((chart) => {
  const frame = chart.getBoundingClientRect(), found = [];
  const texts = [...chart.querySelectorAll("text")].filter((t) => t.textContent.trim());
  const boxes = texts.map((t) => [t.getBoundingClientRect(), t.textContent]);
  for (const [a, said] of boxes) {
    if (a.width && (a.left < frame.left - 1 || a.right > frame.right + 1)) found.push(said);
    for (const [b, other] of boxes) {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (a !== b && wide > 3 && high > 4) found.push(`${said} | ${other}`);
    }
  }
  return found;
})"""
# Contrast of the text in each bar with the bar's colour, by WCAG.
CONTRASTS = """() => {
  const light = (rgb) => {
    const [r, g, b] = rgb.match(/[\\d.]+/g).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll("#step-split .point")].flatMap((bar) => {
    const text = bar.querySelector("text");
    if (!text || !text.textContent.trim()) return [];
    const two = [bar.querySelector("path"), text].map((e) => light(getComputedStyle(e).fill));
    return [(Math.max(...two) + 0.05) / (Math.min(...two) + 0.05)];
  });
}"""
CUT = """() => [...document.querySelectorAll(".ag-cell")]
  .filter((c) => c.scrollWidth > c.clientWidth + 1).map((c) => c.textContent)"""


# Figures with a unit; a word goes on behind none of them.
FIGURE = re.compile(r"-?\d[\d,]*(?:\.\d+)? ?(?:ns|µs|ms|s|%|B|KiB|MiB|GiB|×)(?!\w)")
ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The recorded runs behind a server."""
    base = tmp_path_factory.mktemp("figures")
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_STATE_HOME", str(base / "state"))
    shutil.copytree(ROOT / "sample_traces" / "runs", base / "runs")
    server = Served(RunStore(base / "runs"), "real", Access(allow_apply=True))
    yield server
    server.stop()
    patch.undo()


def copied(served: Served, name: str, source: str = EAGER) -> str:
    """The id of a copy of a run, to damage."""
    shutil.copytree(served.store.root / source, served.store.root / name)
    return name


def test_a_loss_is_not_told_as_noise(browser: Any, served: Served) -> None:
    with opened(browser) as page:
        page.goto(served.url(finding_path(COMPILED, LOST)))
        row = page.get_by_role("row", name="as predicted, all sites")
        expect(row).to_contain_text("-57.4 µs (-65.3 µs to -51.5 µs)")
        expect(row).to_contain_text("beyond noise, slower")


def test_nothing_is_told_as_replaced_that_was_not_measured(browser: Any, served: Served) -> None:
    run = served.store.open(copied(served, "unmeasured"))
    applied = run.applied()
    assert applied is not None

    def unmeasured(plan: PlanVerdict) -> PlanVerdict:
        return replace(plan, verdict="not_measured", measured=None, region=None)

    whole = replace(applied.set, verdict="not_measured")
    plans = tuple(map(unmeasured, applied.plans))
    run.write_applied(replace(applied, set=whole, plans=plans))
    with opened(browser) as page:
        page.goto(served.url(run_path(run.id)))
        result = page.locator("#proof-result")
        expect(result).to_contain_text("Sites that can be replaced")
        page.goto(served.url(finding_path(run.id, NORM)))
        expect(result).to_contain_text("Sites that can be replaced: 1 of 9")
        expect(result).not_to_contain_text(re.compile("swapped|Sites replaced"))


def test_bytes_of_single_ops_are_not_told_as_those_of_compiled_kernels(
    browser: Any, served: Served
) -> None:
    with opened(browser) as page:
        page.goto(served.url(finding_path(COMPILED, LOST)))
        legend = page.locator("[id^=roofline-] .legend")
        expect(legend).to_contain_text("fused")
        expect(legend).not_to_contain_text("now")
        expect(page.get_by_role("row", name="Bytes per step")).to_contain_text("4.64 GiB, op by op")
        page.goto(served.url(finding_path(EAGER, NORM)))
        expect(page.locator("[id^=roofline-] .legend").first).to_contain_text("now")


@pytest.mark.parametrize("width", [900, 1280, 2200])
def test_texts_of_charts_do_not_collide(browser: Any, served: Served, width: int) -> None:
    with opened(browser) as page:
        page.set_viewport_size({"width": width, "height": 900})
        for path in (run_path(EAGER), run_path(COMPILED), finding_path(COMPILED, LOST)):
            page.goto(served.url(path))
            expect(page.locator("[id^=roofline] .legend").first).to_be_attached()
            page.wait_for_timeout(700)
            assert page.evaluate(CROWDED) == []
            ticks = page.locator("[id^=roofline] .xtick text").first
            expect(ticks).to_have_text(re.compile(r"^\d+ [KMG]iB$"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_parts_of_the_step_are_told_apart_and_read(
    browser: Any, served: Served, scheme: str
) -> None:
    with opened(browser, color_scheme=scheme) as page:
        page.goto(served.url(run_path(EAGER)))
        expect(page.locator("#step-split .bartext").first).to_be_attached()
        page.wait_for_timeout(500)
        assert min(page.evaluate(CONTRASTS)) >= 4.5
        read = "items => items.map(item => getComputedStyle(item).fill)"
        colors = page.locator("#step-split .legendpoints path").evaluate_all(read)
        assert len(set(colors)) == len(colors) > 3


@pytest.mark.parametrize("width", [900, 1280])
def test_names_of_kernels_are_whole(browser: Any, served: Served, width: int) -> None:
    with opened(browser) as page:
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(served.url(f"{run_path(COMPILED)}/kernels"))
        expect(page.locator(".ag-row .ag-cell").first).to_be_visible()
        page.wait_for_timeout(500)
        assert page.evaluate(CUT) == []


def test_a_damaged_file_hides_nothing_but_its_part(browser: Any, served: Served) -> None:
    record = served.store.open(copied(served, "damaged_record"))
    (record.path / "applied.json").write_text('{"x":')
    plan = served.store.open(copied(served, "damaged_plan"))
    found = next(f for f in plan.report().findings if f.id == NORM)
    (plan.plans_path / f"{found.plan_id}.json").write_text("{}")
    with opened(browser) as page:
        for run, kind in ((record, "Applied"), (plan, "FusionPlan")):
            told = page.get_by_text(f"Cannot show this: not a valid {kind}").first
            for path in (run_path(run.id), finding_path(run.id, NORM)):
                page.goto(served.url(path))
                expect(told).to_be_visible()
                expect(page.get_by_text("RMS norm in 9 separate ops").first).to_be_visible()
        page.goto(served.url(f"{run_path(record.id)}/calibration"))
        expect(page.get_by_text("Cannot show this: not a valid Applied")).to_be_visible()
        expect(page.get_by_role("link", name="Findings", exact=True)).to_be_visible()


def test_a_run_without_findings_sends_nobody_to_look_for_them(browser: Any, served: Served) -> None:
    run = served.store.open(copied(served, "nothing_found"))
    shutil.rmtree(run.plans_path)
    (run.path / "applied.json").unlink()
    said = json.loads((run.path / "report.json").read_text())
    said |= {"findings": [], "plans": [], "recommended": {"order": [], "set_saving_ns": None}}
    (run.path / "report.json").write_text(json.dumps(said))
    with opened(browser) as page:
        page.goto(served.url(run_path(run.id)))
        expect(page.get_by_text("Nothing to fuse was found.")).to_be_visible()
        expect(page.get_by_text("nothing is recommended")).to_be_visible()
        expect(page.get_by_text("The findings page lists")).to_have_count(0)


def test_a_name_that_is_too_long_for_an_address_is_told(browser: Any, served: Served) -> None:
    copied(served, "n" * 200)
    with opened(browser) as page:
        page.goto(served.url("/"))
        expect(page.get_by_text("at most 120 letters")).to_be_visible()


@pytest.mark.parametrize("name", [EAGER, COMPILED])
def test_every_figure_of_the_terminal_is_on_a_page_of_the_run(
    browser: Any, served: Served, name: str
) -> None:
    run = served.store.open(name)
    report, applied = run.report(), run.applied()
    assert applied is not None
    told = render(Group(render_report(report), render_applied(applied)), width=200)
    paths = [run_path(name), f"{run_path(name)}/findings", f"{run_path(name)}/calibration"]
    paths += [finding_path(name, finding.id) for finding in report.findings]
    shown: set[str] = {"0 B"}  # of spills, which the page calls none
    with opened(browser) as page:
        for path in paths:
            page.goto(served.url(path))
            expect(page.get_by_role("heading", level=1)).to_be_attached()
            expect(page.locator(".js-plotly-plot .main-svg, .ag-row, table").first).to_be_attached()
            page.evaluate(ALL)
            shown |= set(FIGURE.findall(page.locator("main").inner_text()))
    said = set(FIGURE.findall(" ".join(told.split())))
    assert len(said) > 100
    assert said - shown == set()


def test_a_server_that_is_gone_is_told_until_it_is_back(browser: Any, served: Served) -> None:
    lost = "The server does not answer"
    with opened(browser) as page:
        page.goto(served.url(run_path(EAGER)))
        expect(page.get_by_role("heading", name="What to do")).to_be_visible()
        served.stop()
        try:
            page.get_by_role("link", name="Compiler", exact=True).click()
            expect(page.get_by_role("alert").filter(has_text=lost)).to_be_visible()
        finally:
            served.start()
        expect(page.get_by_text(lost)).to_have_count(0)
        expect(page.get_by_role("heading", name="Graph breaks")).to_be_visible()


def test_a_comparison_and_a_trend_are_read(browser: Any, served: Served) -> None:
    run = served.store.open(copied(served, "slower"))
    said = json.loads((run.path / "report.json").read_text())
    longest, *_, last = said["kernels"]
    longest["time_ns"] += longest["time_ns"] // 2
    last["time_ns"] -= last["time_ns"] // 10
    said["metrics"]["step_ns"]["value"] *= 1.1
    (run.path / "report.json").write_text(json.dumps(said))
    with opened(browser) as page:
        page.set_viewport_size({"width": 900, "height": 900})
        page.goto(served.url(f"/compare/{EAGER}/{run.id}"))
        expect(page.get_by_role("heading", level=1)).to_have_text("What changed between two runs")
        card = page.locator(".cards > div", has_text="Step time")
        expect(card).to_contain_text("+10.0 %): not significant: the interval of the change")
        expect(page.locator("#causes .bartext").first).to_be_attached()
        page.wait_for_timeout(500)
        assert page.evaluate(CROWDED) == []
        page.goto(served.url("/"))
        expect(page.locator("#trend .xtick text").first).to_be_attached()
        page.wait_for_timeout(500)
        assert page.evaluate(CROWDED) == []
        for tick in page.locator("#trend .xtick text").all_text_contents():
            assert "." not in tick, "thousandths of a second"


def test_a_name_cannot_turn_the_figures_behind_it(browser: Any, served: Served) -> None:
    run = served.store.open(copied(served, "turned"))
    report = run.report()
    first = report.findings[0]
    turned = replace(first, title=f"\u202e{first.title}", action=f"\u2067{first.action}")
    target = replace(report.workload, target="\u202eworkload \u05d0\u05d1 of 18 layers")
    run.write_report(replace(report, workload=target, findings=(turned, *report.findings[1:])))
    base = run_path(run.id)
    with opened(browser) as page:
        for path in ("/", base, f"{base}/findings", finding_path(run.id, first.id)):
            page.goto(served.url(path))
            expect(page.get_by_text("\\u202e").first).to_be_visible()
            shown = page.locator("body").inner_text()
            assert not {"\u202e", "\u2067"} & set(shown)
        assert "\u05d0\u05d1" in shown
