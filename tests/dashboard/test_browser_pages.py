"""Every page in real Chromium on runs of a real H200, and what axe says of each, light and dark."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.cli.main import run as command
from advisor.store import RunStore
from dashboard.access import Access
from tests.dashboard.chromium import Served, needs_chromium, opened
from tests.dashboard.conftest import ROOT

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=45_000)  # a busy machine reads a trace for longer than the usual 5 s
pytestmark = needs_chromium

TRACES, RUNS = ROOT / "sample_traces", ROOT / "sample_traces" / "runs"
EAGER, COMPILED = "/run/llama_prefill_eager", "/run/llama_prefill_compile"
NORM = "row-program-3fe649bf68"
WIDTH = "document.documentElement.scrollWidth"
# Looks at a page that is being drawn: on a busy machine that takes seconds.
STILL_AFTER = 4
# Words of the heads of tables that stand on two lines, and heads that are cut off.
BROKEN_HEADS = """[...document.querySelectorAll("thead th, .ag-header-cell-text")].flatMap(head => {
  const texts = document.createTreeWalker(head, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) for (const word of texts.currentNode.data.matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(texts.currentNode, word.index);
    range.setEnd(texts.currentNode, word.index + word[0].length);
    const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
    if (lines.size > 1) found.push(word[0]);
  }
  return head.scrollWidth > head.clientWidth + 1 ? [...found, head.textContent] : found;
})"""
_UPDATES = re.compile("_dash-update-component")
_SPANS = re.compile(r"([\d,]+) spans")
# page, what is on it once it is there
PAGES: tuple[tuple[str, str], ...] = (
    ("/", "llama_train_eager"),
    ("/upload", "Choose files"),
    ("/nowhere", "Cannot show this"),
    (EAGER, "Where the step's time goes"),
    (f"{EAGER}/findings", "RMS norm in 9 separate ops"),
    (f"{EAGER}/finding/{NORM}", "Predicted against measured"),
    (f"{EAGER}/kernels", "nvjet_sm90"),
    (f"{EAGER}/kernel/0", "Operators behind it"),
    (f"{EAGER}/timeline", "This run kept no trace"),
    (f"{EAGER}/overlap", "Ranks of the job"),
    (f"{EAGER}/regressions", "Compare with another run"),
    (f"{EAGER}/calibration", "Intervals that held"),
    (f"{COMPILED}/compiler", "Graph breaks"),
    ("/compare/llama_prefill_eager/llama_prefill_compile", "What changed between two runs"),
    ("/run/llama", "Roofline of arithmetic"),
    ("/run/llama/timeline", "spans"),
    ("/run/ddp/overlap", "rank 1"),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The real runs, and two traces analysed as a user would, behind one server."""
    patch = pytest.MonkeyPatch()
    base = tmp_path_factory.mktemp("pages")
    patch.setenv("XDG_CACHE_HOME", str(base / "cache"))
    patch.setenv("XDG_STATE_HOME", str(base / "state"))
    root = base / "runs"
    shutil.copytree(RUNS, root)
    ranks = [str(TRACES / f"ddp_onebucket.rank{rank}.json.gz") for rank in (0, 1)]
    llama = str(TRACES / "llama_prefill.eager.json.gz")
    for name, files in (("ddp", ranks), ("llama", [llama])):
        assert command(["analyze", *files, "--out", str(root / name)]) == 0
    server = Served(RunStore(root), "real", Access(allow_apply=True))
    yield server
    server.stop()
    patch.undo()


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core."""
    package = pytest.importorskip("axe_playwright_python", reason="axe is not installed")
    return (Path(package.__file__).parent / "axe.min.js").read_text()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_every_page_is_there_fits_and_axe_finds_nothing(
    browser: Any, served: Served, axe: str, scheme: str, width: int
) -> None:
    """On a screen by day and on a phone by night."""
    found = {}
    with opened(browser, color_scheme=scheme, bypass_csp=True) as page:
        page.set_viewport_size({"width": width, "height": 900})
        for path, words in PAGES:
            page.goto(served.url(path))
            expect(page.get_by_text(words).first).to_be_attached()
            if width > 1000:
                expect(page.get_by_text(words).first).to_be_visible()
            expect(page.get_by_role("heading", level=1).first).to_be_attached()
            page.evaluate(axe)
            if faults := _lasting_faults(page, width):
                found[path] = faults
    assert found == {}


def test_no_head_of_a_table_breaks_in_a_word(browser: Any, served: Served) -> None:
    found: dict[tuple[str, int], list[str]] = {}
    with opened(browser) as page:
        for path, words in PAGES:
            page.goto(served.url(path))
            expect(page.get_by_text(words).first).to_be_visible()
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            for width in (1280, 1024):
                page.set_viewport_size({"width": width, "height": 900})
                for _ in range(STILL_AFTER):
                    page.wait_for_timeout(300)
                    if not (broken := page.evaluate(BROKEN_HEADS)):
                        break
                found |= {(path, width): broken} if broken else {}
    assert found == {}


def _lasting_faults(page: Any, width: int) -> list[tuple[str, str]]:
    """What axe finds, and a page wider than the screen; not of what is drawn half yet."""
    for _ in range(STILL_AFTER):
        said = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        faults = [(v["id"], v["nodes"][0]["html"][:200]) for v in said["violations"]]
        if (wide := page.evaluate(WIDTH)) > width + 1:
            faults.append(("wider than the screen", f"{wide} px"))
        if not faults:
            break
        page.wait_for_timeout(1_000)
    return faults


def test_the_timeline_zooms_moves_marks_and_tells(browser: Any, served: Served) -> None:
    with opened(browser) as page:
        page.goto(served.url("/run/llama/timeline"))
        status = page.locator("#timeline-status")
        expect(status).to_contain_text("spans")
        whole = _spans(status)
        for _ in range(3):
            _zoom_in(page, status)
        assert 0 < _spans(status) < whole
        page.get_by_role("button", name="Later").click()
        page.get_by_role("button", name="Whole run").click()
        expect(status).to_contain_text(f"{whole:,} spans")
        plot = page.locator("#timeline-graph .nsewdrag").bounding_box()
        y = plot["y"] + plot["height"] - 8
        table = page.locator("#timeline-kernel table")
        for share in (0.3, 0.5, 0.7, 0.9, 0.95):
            page.mouse.click(plot["x"] + share * plot["width"], y)
            page.wait_for_timeout(400)
            if table.count():
                break
        expect(table).to_contain_text("Operator")
        page.locator("#timeline-kernel a").click()
        expect(page.get_by_text("Time per step").first).to_be_visible()
        page.go_back()
        expect(status).to_contain_text("spans")


def test_a_page_stays_in_sight_while_one_of_its_parts_is_redrawn(
    browser: Any, served: Served
) -> None:
    with opened(browser) as page:
        page.goto(served.url("/run/llama/timeline"))
        status = page.locator("#timeline-status")
        expect(status).to_contain_text(_SPANS)
        held: list[Any] = []
        page.route(_UPDATES, lambda call: held.append(call))  # noqa: PLW0108 - it reads names
        page.get_by_role("button", name="Zoom in").click()
        page.wait_for_timeout(1_000)
        assert held
        assert status.is_visible()
        for call in held:
            call.continue_()
        page.unroute(_UPDATES)


def _zoom_in(page: Any, status: Any) -> None:
    """Click until the picture changes: a click starts from the window that is stored by then."""
    before = status.text_content()
    for _ in range(STILL_AFTER):
        page.get_by_role("button", name="Zoom in").click()
        with contextlib.suppress(AssertionError):
            expect(status).not_to_have_text(before, timeout=7_000)
            return
    raise AssertionError(f"it stays at {before}")


def _spans(status: Any) -> int:
    expect(status).to_contain_text(_SPANS)
    found = _SPANS.search(status.text_content())
    assert found is not None
    return int(found[1].replace(",", ""))


def test_a_finding_is_marked_in_the_timeline_by_its_address(browser: Any, served: Served) -> None:
    finding = _bandable(served)
    with opened(browser) as page:
        page.goto(served.url(f"/run/llama/finding/{finding}"))
        page.get_by_role("link", name="Show its kernels in the timeline").click()
        expect(page.locator("#timeline-status")).to_contain_text("marks the finding's operators")
        expect(page).to_have_url(served.url(f"/run/llama/timeline/{finding}"))


def _bandable(served: Served) -> str:
    from dashboard.timeline_panel import can_band

    found = served.store.open("llama").report().findings
    return next(finding.id for finding in found if can_band(finding))


def test_two_runs_are_picked_and_compared(browser: Any, served: Served) -> None:
    with opened(browser) as page:
        page.goto(served.url("/"))
        for name in ("llama_train_eager", "llama_train_compile"):
            page.locator(".ag-row", has_text=name).get_by_role("checkbox").check()
        page.get_by_role("link", name="Compare llama_train_eager").click()
        expect(page.get_by_text("Not the same work").first).to_be_visible()
        page.get_by_role("link", name="Compare all the same").click()
        expect(page.get_by_text("Causes")).to_be_visible()
        expect(page.get_by_text("the bars add up")).to_be_visible()
        page.go_back()
        page.go_back()
        expect(page.get_by_role("link", name="llama_train_eager", exact=True)).to_be_visible()


def test_kernels_are_searched(browser: Any, served: Served) -> None:
    with opened(browser) as page:
        page.goto(served.url(f"{EAGER}/kernels"))
        expect(page.locator(".ag-row").first).to_be_visible()
        # What a short name leaves out is searched too.
        page.get_by_label("Search kernels").fill("at::native::")
        expect(page.locator(".ag-row", has_text="elementwise_kernel").first).to_be_visible()
        expect(page.locator(".ag-row", has_text="nvjet")).to_have_count(0)
        page.get_by_label("Search kernels").fill("softmax")
        expect(page.locator(".ag-row")).to_have_count(1)
        page.locator(".ag-row a").click()
        expect(page).to_have_url(re.compile(rf"{EAGER}/kernel/\d+$"))


def test_charts_are_saved_without_a_request(browser: Any, served: Served) -> None:
    forms = {"PNG": b"\x89PNG", "SVG": b"<svg", "CSV": b'"series","x","y"'}
    saved = {}
    with opened(browser) as page:
        page.goto(served.url(EAGER))
        expect(page.locator("#step-split .main-svg").first).to_be_visible()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for form, begins in forms.items():
            with page.expect_download() as waiting:
                page.get_by_role("button", name=f"Save step-split as {form}").click()
            saved[form] = Path(waiting.value.path()).read_bytes()
            assert saved[form].startswith(begins)
        beyond = [url for url in asked if not url.startswith(("data:", "blob:"))]
        assert [url for url in beyond if "_dash-update" not in url] == []
        assert b'"memory-bound"' in saved["CSV"]


def test_the_keyboard_reaches_and_works_everything(browser: Any, served: Served) -> None:
    with opened(browser) as page:
        page.goto(served.url(EAGER))
        expect(page.get_by_role("link", name="Kernels", exact=True)).to_be_visible()
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == "Kernels":
                break
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        page.keyboard.press("Enter")
        expect(page).to_have_url(served.url(f"{EAGER}/kernels"))


def test_new_runs_appear_without_a_restart(browser: Any, served: Served) -> None:
    with opened(browser) as page:
        page.goto(served.url("/"))
        expect(page.get_by_role("link", name="llama_prefill_eager", exact=True)).to_be_visible()
        shutil.copytree(RUNS / "llama_prefill_eager", served.store.root / "brand_new")
        try:
            page.reload()
            expect(page.get_by_role("link", name="brand_new", exact=True)).to_be_visible()
        finally:
            shutil.rmtree(served.store.root / "brand_new")


def test_files_of_one_job_are_uploaded_and_open(browser: Any, served: Served) -> None:
    with opened(browser) as page:
        page.goto(served.url("/upload"))
        with page.expect_file_chooser() as choosing:
            page.get_by_role("button", name="Choose files").click()
        assert choosing.value.is_multiple()
        ranks = [str(TRACES / f"ddp_onebucket.rank{rank}.json.gz") for rank in (1, 0)]
        choosing.value.set_files(ranks)
        expect(page).to_have_url(re.compile(r"/run/\d+-\d+-ddp_onebucket"))
        heading = "ddp_onebucket.rank0.json.gz and 1 more"
        expect(page.get_by_role("heading", name=heading)).to_be_visible()
        expect(page.locator('[data-state="done"]')).to_be_visible()
        page.get_by_role("link", name="Overlap").click()
        expect(page.get_by_text("rank 1").first).to_be_attached()


def test_a_page_prints_without_its_controls(browser: Any, served: Served) -> None:
    with opened(browser, color_scheme="dark") as page:
        page.goto(served.url(EAGER))
        expect(page.get_by_text("What to do")).to_be_visible()
        page.emulate_media(media="print")
        for hidden in ("header", ".tabs", "button.export"):
            expect(page.locator(hidden).first).to_be_hidden()
        expect(page.get_by_text("What to do")).to_be_visible()
        # Charts in the colours of a dark page are not readable on paper.
        expect(page.locator(".js-plotly-plot .xtick text").first).to_have_css(
            "fill", "rgb(0, 0, 0)"
        )


def test_names_without_end_do_not_widen_a_page(browser: Any, served: Served) -> None:
    report = served.store.open("llama_prefill_eager").report()
    findings = tuple(
        replace(item, title="T" * 10_000, action="A" * 10_000) for item in report.findings
    )
    endless = served.store.create("endless")
    try:
        endless.write_report(replace(report, findings=findings))
        with opened(browser) as page:
            page.goto(served.url(f"/run/{endless.id}"))
            expect(page.locator("ol.actions")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    finally:
        shutil.rmtree(endless.path)


def test_generated_source_is_scrolled_by_the_keyboard(browser: Any, served: Served) -> None:
    with opened(browser) as page:
        page.goto(served.url("/run/llama_prefill_eager/finding/row-program-3fe649bf68"))
        area = page.locator(".kernel-source .mantine-ScrollArea-viewport").first
        expect(area).to_be_attached()
        expect(area).to_have_attribute("tabindex", "0")
