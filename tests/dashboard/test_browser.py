"""The dashboard in real Chromium: from the list of runs to an applied plan, and what may fail."""

from __future__ import annotations

import os
import shutil
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.errors import UsageError
from advisor.model.attempt import Attempt
from advisor.model.findings import Alternative
from advisor.store import RunDirectory, RunStore
from dashboard import jobs
from dashboard.access import Access, Tokens
from dashboard.page import finding_path, run_path
from tests.builders.run import sample_run
from tests.builders.run_plan import range_of
from tests.dashboard.chromium import Served, end_children, needs_chromium, opened

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect

pytestmark = needs_chromium
HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script>\"'`{{7*7}}\u202etxt " + "y" * 10_000
)
# Cells and column titles that are wider than their place, and columns beyond the table's edge.
CUT_OFF = """() => {
  const cells = [...document.querySelectorAll(".ag-cell, .ag-header-cell-text")];
  const wide = (c) => c.scrollWidth > c.clientWidth + 1;
  const cut = cells.filter((c) => wide(c) || c.scrollHeight > c.clientHeight + 1);
  const view = document.querySelector(".ag-center-cols-viewport");
  const over = view.scrollWidth > view.clientWidth + 1 ? ["the table scrolls sideways"] : [];
  return [...cut.map((c) => c.textContent), ...over];
}"""
VIEW, APPLY = "view-token-of-twenty-or-more", "apply-token-of-twenty-or-more"


@pytest.fixture(scope="module")
def ports() -> list[int]:
    """Of the servers of earlier tests; Chromium keeps the libraries of an address."""
    return []


@pytest.fixture
def serve(
    store: RunStore, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Served]]:
    """Makes servers of the store."""
    made: list[Served] = []
    monkeypatch.setattr(jobs, "TICK_S", 0.1)

    def make(mode: str = "ok", **access: Any) -> Served:
        allowed = Access(**({"allow_apply": True} | access))
        if len(made) == len(ports):
            ports.append(0)
        try:
            served = Served(store, mode, allowed, ports[len(made)])
        except UsageError:  # another process has the port by now
            served = Served(store, mode, allowed)
        ports[len(made)] = served.port
        made.append(served)
        return served

    yield make
    for served in made:
        served.stop()
        end_children(served.runner)


def stage(page: Any, name: str, state: str) -> Any:
    """The line of a stage in a state."""
    return page.locator(f'[data-stage="{name}"].{state}')


def state(page: Any, name: str) -> Any:
    """The job's status in a state."""
    return page.locator(f'#job-status [data-state="{name}"]')


def test_from_the_list_to_an_applied_plan_and_back(
    browser: Any, serve: Callable[..., Served], run: RunDirectory
) -> None:
    served = serve("slow")
    with opened(browser) as page:
        page.goto(served.url("/"))
        page.get_by_role("link", name=run.id).click()
        expect(page).to_have_url(served.url(run_path(run.id)))
        expect(page).to_have_title("Overview - fusion advisor")
        page.get_by_role("link", name="Findings", exact=True).click()
        page.locator(".ag-row").get_by_role("link", name="RMS norm written in pieces").click()
        expect(page).to_have_url(served.url(finding_path(run.id, "row-program-1")))
        expect(page.get_by_text("Not generated yet")).to_be_visible()
        page.get_by_role("button", name="Apply", exact=True).click()
        expect(stage(page, "load", "done")).to_contain_text("load finished")
        assert f"{run.id} row-program-1" in run.log_tail()
        expect(stage(page, "decide", "waiting")).to_be_visible()
        expect(page.get_by_role("button", name="Apply", exact=True)).to_be_disabled()
        page.reload()
        expect(stage(page, "verify", "running").or_(stage(page, "verify", "done"))).to_be_visible()
        expect(state(page, "done")).to_contain_text("1 of 1 plans kept")
        expect(stage(page, "done", "done")).to_be_visible()
        expect(page.locator("#proof-result")).to_contain_text("Kept")
        expect(page.locator(".kernel-source")).to_contain_text("tl.rsqrt")
        expect(page.locator("#proof-details")).to_contain_text("75.0 % (registers)")
        page.get_by_role("button", name="Revert").click()
        expect(page.locator("#job-status")).to_contain_text("The run is as it was profiled.")
        expect(page.locator("#proof-result")).not_to_contain_text("Kept")
        page.go_back()
        expect(page).to_have_url(served.url(f"{run_path(run.id)}/findings"))


def test_a_killed_child_shows_as_a_failure(
    browser: Any, serve: Callable[..., Served], run: RunDirectory
) -> None:
    served = serve("hang")
    with opened(browser) as page:
        page.goto(served.url(run_path(run.id)))
        page.get_by_role("button", name="Apply", exact=True).click()
        expect(stage(page, "verify", "running")).to_be_visible()
        record = run.job()
        assert record is not None
        assert record.process is not None
        os.kill(record.process.pid, signal.SIGKILL)
        expect(state(page, "failed")).to_contain_text("signal 9 (SIGKILL)")
        expect(stage(page, "verify", "failed")).to_be_visible()
        expect(page.get_by_role("button", name="Apply", exact=True)).to_be_enabled()


def test_cancel(browser: Any, serve: Callable[..., Served], run: RunDirectory) -> None:
    served = serve("hang")
    with opened(browser) as page:
        page.goto(served.url(run_path(run.id)))
        page.get_by_role("button", name="Apply", exact=True).click()
        page.get_by_role("button", name="Cancel").click()
        expect(state(page, "cancelled")).to_be_visible()


def test_the_queue_is_visible(
    browser: Any, serve: Callable[..., Served], store: RunStore, run: RunDirectory
) -> None:
    served = serve("hang")
    served.runner.submit(run, "apply")
    second = sample_run(store, applied=False)
    with opened(browser) as page:
        page.goto(served.url(run_path(second.id)))
        page.get_by_role("button", name="Apply", exact=True).click()
        expect(state(page, "queued")).to_contain_text("behind 1 other job")
        page.get_by_role("button", name="Cancel").click()
        expect(state(page, "cancelled")).to_contain_text("before it started")


def test_a_job_and_its_page_outlive_the_server(
    browser: Any, serve: Callable[..., Served], run: RunDirectory
) -> None:
    served = serve("slow")
    with opened(browser) as page:
        page.goto(served.url(run_path(run.id)))
        page.get_by_role("button", name="Apply", exact=True).click()
        expect(stage(page, "load", "done")).to_be_visible()
        served.stop()
        served.start()
        expect(state(page, "done")).to_contain_text("1 of 1 plans kept")


def test_what_cannot_be_applied_says_why(
    browser: Any, serve: Callable[..., Served], store: RunStore, run: RunDirectory
) -> None:
    shutil.copytree(run.path, store.root / "copied")
    read_only = serve(allow_apply=False)
    with opened(browser) as page:
        page.goto(read_only.url(run_path(run.id)))
        expect(page.get_by_text("This server is read-only")).to_be_visible()
        expect(page.get_by_role("button", name="Apply", exact=True)).to_be_disabled()
        page.goto(serve().url(run_path("copied")))
        expect(page.get_by_text("the run was copied, moved or edited")).to_be_visible()
        expect(page.get_by_role("button", name="Apply", exact=True)).to_be_disabled()


def test_tokens(browser: Any, serve: Callable[..., Served], run: RunDirectory) -> None:
    served = serve(tokens=Tokens(view=VIEW, apply=APPLY))
    with opened(browser) as page:
        page.goto(served.url(run_path(run.id)))
        page.get_by_label("View token").fill(VIEW)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(served.url("/"))
        page.goto(served.url(run_path(run.id)))
        expect(page.get_by_text("Applying needs the apply token")).to_be_visible()
        page.goto(served.url("/login"))
        page.get_by_label("View token").fill(APPLY)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(served.url("/"))
        page.goto(served.url(run_path(run.id)))
        page.get_by_role("button", name="Apply", exact=True).click()
        expect(state(page, "done")).to_be_visible()


def test_hostile_names_are_text(
    browser: Any, serve: Callable[..., Served], store: RunStore
) -> None:
    run = sample_run(store, title=HOSTILE, target=HOSTILE)
    served = serve()
    with opened(browser) as page:
        page.goto(served.url("/"))
        expect(page.get_by_role("link", name=run.id)).to_be_visible()
        for path in (run_path(run.id), f"{run_path(run.id)}/findings"):
            page.goto(served.url(path))
            expect(page.get_by_text("onerror=alert(1)").first).to_be_visible()
        assert page.locator("img[src=x]").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")


@pytest.mark.parametrize("width", [1280, 1400])
def test_nothing_of_the_tables_is_cut_off(
    browser: Any, serve: Callable[..., Served], store: RunStore, width: int
) -> None:
    target = "/home/someone/projects/language-models/workloads/llama_prefill.py:decoder_of_four"
    run = sample_run(store, target=target)
    unpriced = replace(run.report().findings[0], alternatives=(
        Alternative(route="generated_kernel", text="one", saving_ns=range_of(1_358_000)),
    ))  # fmt: skip
    run.write_report(replace(run.report(), findings=(unpriced, *run.report().findings[1:])))
    served = serve()
    with opened(browser) as page:
        page.set_viewport_size({"width": width, "height": 900})
        for path in ("/", f"{run_path(run.id)}/findings"):
            page.goto(served.url(path))
            expect(page.locator(".ag-row .ag-cell").first).to_be_visible()
            page.wait_for_timeout(300)
            assert page.evaluate(CUT_OFF) == []


def test_the_library_of_subgraphs_is_fetched_where_one_is_drawn(
    browser: Any, serve: Callable[..., Served], run: RunDirectory
) -> None:
    served = serve()
    with opened(browser) as page:
        fetched: list[str] = []
        page.on("request", lambda request: fetched.append(request.url))
        page.goto(served.url(run_path(run.id) + "/findings"))
        page.locator(".ag-row a").first.click()
        expect(page.locator(".subgraph canvas").first).to_be_visible()
        assert sum("dash_cytoscape" in url for url in fetched) == 1
        page.go_back()
        expect(page.locator(".ag-row a").first).to_be_visible()
        page.go_forward()
        expect(page.locator(".subgraph canvas").first).to_be_visible()
        assert sum("dash_cytoscape" in url for url in fetched) == 1


def test_what_was_kept_is_downloaded(
    browser: Any, serve: Callable[..., Served], store: RunStore
) -> None:
    run = sample_run(store)
    served = serve(allow_apply=False)
    with opened(browser) as page:
        for path in (run_path(run.id), finding_path(run.id, "row-program-1")):
            page.goto(served.url(path))
            with page.expect_download() as started:
                page.get_by_role("link", name="Download the patch").click()
            assert started.value.suggested_filename == "fusion_patch.zip"
            names = zipfile.ZipFile(started.value.path()).namelist()
            assert f"fusion_patch/kernels/{run.plan_ids()[0]}.py" in names


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for what no page shows."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ops_are_sized_by_a_button_and_a_bounded_application_is_continued(
    browser: Any, serve: Callable[..., Served], run: RunDirectory
) -> None:
    served = serve()
    with opened(browser) as page:
        page.goto(served.url(finding_path(run.id, "row-program-1")))
        page.get_by_role("button", name="Find out what each op costs").click()
        expect(page.get_by_text("Sizing op by op: done")).to_be_visible()
        expect(page.get_by_text("Sizing op by op: done")).to_be_in_viewport()
        assert f"ok cliff of {run.id} {run.plan_ids()[0]}" in run.log_tail()
        expect(page.get_by_role("button", name="Continue")).to_be_hidden()
        run.write_attempt(
            Attempt(signature=None, only=("row-program-1",), device="a GPU", versions={})
        )
        page.goto(served.url(run_path(run.id)))
        page.locator("#job-budget").click()
        page.get_by_role("option", name="10 minutes").click()
        page.get_by_role("button", name="Continue").click()
        # The sizing before it is done as well, and shown so until the application has begun.
        until(lambda: (job := run.job()) is not None and job.kind == "apply")
        expect(state(page, "done")).to_be_visible()
    job = run.job()
    assert job is not None
    assert (job.only, job.budget_s) == (("row-program-1",), 600)


def test_dark_phone_and_missing_pages(
    browser: Any, serve: Callable[..., Served], store: RunStore
) -> None:
    run = sample_run(store)
    served = serve()
    with opened(browser, color_scheme="dark", is_mobile=True) as page:
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(served.url(finding_path(run.id, "row-program-1")))
        expect(page.locator(".kernel-source")).to_contain_text("tl.rsqrt")
        assert page.evaluate("document.documentElement.scrollWidth") <= 391
        assert page.evaluate("document.documentElement.dataset.mantineColorScheme") == "dark"
        page.goto(served.url("/run/absent"))
        expect(page.get_by_text("Cannot show this: no such run")).to_be_visible()
        page.get_by_role("link", name="All runs").click()
        expect(page.get_by_role("link", name=run.id)).to_be_visible()
