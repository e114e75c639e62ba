"""What an application came to, on the page and over HTTP: patches, cliffs, budgets, ranks."""

from __future__ import annotations

import io
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.errors import UnreadableError
from advisor.model.applied import NO_TIME, ActionVerdict, RankVote
from advisor.model.attempt import Attempt
from advisor.model.base import Warning_
from advisor.store import RunDirectory, RunStore
from dashboard.access import Access, Tokens
from dashboard.context import Context
from dashboard.jobpanel import _refresh
from dashboard.jobs import JobRunner
from dashboard.page import finding_path, run_path
from dashboard.patches import Patches
from tests.builders.run import sample_run
from tests.builders.run_applied import applied_of, comparison
from tests.dashboard.conftest import ROOT, wait_for
from tests.dashboard.test_pages import page
from tests.dashboard.test_server_safety import BASE, VIEW, apply, csrf, get, reason

Client = Callable[..., Any]
PREFILL, NORM = "llama_prefill_eager", "row-program-3fe649bf68"


@pytest.fixture
def recorded(store: RunStore) -> RunDirectory:
    """A run that was recorded on an H200, with kernels kept."""
    shutil.copytree(ROOT / "sample_traces" / "runs" / PREFILL, store.root / PREFILL)
    return store.open(PREFILL)


# --- patches --------------------------------------------------------------------------------------


def test_what_was_kept_is_taken_along(client: Client, recorded: RunDirectory) -> None:
    served = client()
    answer = get(served, f"/api/runs/{PREFILL}/patch.zip")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="fusion_patch.zip"'
    assert answer.mimetype == "application/zip"
    whole = zipfile.ZipFile(io.BytesIO(answer.data))
    applied = recorded.applied()
    assert applied is not None
    kernels = {name for name in whole.namelist() if "/kernels/" in name}
    assert kernels == {f"fusion_patch/kernels/{plan}.py" for plan in applied.set.plans}
    part = get(served, f"/api/runs/{PREFILL}/findings/{NORM}/patch.zip")
    held = zipfile.ZipFile(io.BytesIO(part.data)).namelist()
    assert 0 < len([name for name in held if "/kernels/" in name]) < len(kernels)


def test_every_name_in_a_patch_is_of_the_tool(client: Client, recorded: RunDirectory) -> None:
    data = get(client(), f"/api/runs/{PREFILL}/patch.zip").data
    for name in zipfile.ZipFile(io.BytesIO(data)).namelist():
        folder, *rest = name.split("/")
        assert folder == "fusion_patch"
        assert ".." not in rest
        assert len(rest) <= 2


@pytest.mark.parametrize(
    "path",
    ["../x/patch.zip", "%2e%2e%2frun/patch.zip", "absent/patch.zip", f"{PREFILL}/..%2fpatch.zip",
     f"{PREFILL}/findings/absent/patch.zip", f"{PREFILL}/findings/--help/patch.zip",
     f"{PREFILL}/findings/..%2f..%2fx/patch.zip"],
)  # fmt: skip
def test_hostile_names_give_no_patch(client: Client, recorded: RunDirectory, path: str) -> None:
    assert get(client(), f"/api/runs/{path}").status_code in (400, 404)


def test_where_nothing_is_kept_there_is_no_patch(client: Client, run: RunDirectory) -> None:
    answer = get(client(), f"/api/runs/{run.id}/patch.zip")
    assert answer.status_code == 400
    assert "nothing is kept in this run" in reason(answer)


def test_a_patch_needs_the_view_token_where_there_is_one(
    client: Client, recorded: RunDirectory
) -> None:
    served = client(tokens=Tokens(view=VIEW))
    assert get(served, f"/api/runs/{PREFILL}/patch.zip").status_code == 401
    served.post("/login", base_url=BASE, data={"token": VIEW})
    assert get(served, f"/api/runs/{PREFILL}/patch.zip").status_code == 200


def test_a_patch_is_made_once_and_writes_nothing_into_the_run(recorded: RunDirectory) -> None:
    started: list[Path] = []

    def counted(run: Path, only: str | None, place: Path) -> Sequence[str]:
        started.append(place)
        return [sys.executable, "-c", f"open({str(place)!r}, 'wb').write(b'zip {only}')"]

    before = sorted(recorded.path.rglob("*"))
    patches = Patches(counted)
    assert [patches.archive(recorded) for _ in range(3)] == [b"zip None"] * 3
    assert patches.archive(recorded, "f") == b"zip f"
    assert len(started) == 2
    assert not any(place.exists() for place in started)
    assert sorted(recorded.path.rglob("*")) == before


def test_a_patch_that_cannot_be_made_says_why(recorded: RunDirectory) -> None:
    failing = Patches(lambda *_: [sys.executable, "-c", "import sys; sys.exit('no disk')"])
    with pytest.raises(UnreadableError, match="cannot be made") as refused:
        failing.archive(recorded)
    assert refused.value.why == "no disk"


def test_the_pages_lead_to_the_patch(context: Context, store: RunStore) -> None:
    run = sample_run(store)
    assert f"/api/runs/{run.id}/patch.zip" in page(context, run_path(run.id))
    one = page(context, finding_path(run.id, "row-program-1"))
    assert f"/api/runs/{run.id}/findings/row-program-1/patch.zip" in one
    applied = applied_of(run.plan(run.plan_ids()[0]))
    lost = replace(applied, set=replace(applied.set, verdict="reverted", plans=()))
    run.write_applied(lost)
    for path in (run_path(run.id), finding_path(run.id, "row-program-1")):
        assert "patch.zip" not in page(context, path)


# --- what else became of things -------------------------------------------------------------------


def action(**changes: Any) -> ActionVerdict:
    found = ActionVerdict(
        kind="attention", title="attention as one library call", verdict="kept", reason="it pays"
    )
    return replace(found, **changes)


def test_memory_votes_places_and_reasons_are_on_the_page(
    context: Context, run: RunDirectory
) -> None:
    vetoed = RankVote(rank=1, keep=False, reason="slower here", step=comparison(1_100, 1_090))
    applied = applied_of(run.plan(run.plan_ids()[0]))
    measured = action(
        peak_memory_before_bytes=3 << 30, peak_memory_after_bytes=2 << 30, votes=(vetoed,),
        details=("layer 0: scaled_dot_product_attention",), sites=1,
    )  # fmt: skip
    other = action(
        kind="channels_last", title="channels-last", verdict="refused", applies=False,
        reason="no convolution is in the model",
    )  # fmt: skip
    late = action(kind="autotune", title="tuned", verdict="not_measured", reason=NO_TIME)
    trained = replace(
        applied.set, loss_divergence=0.004, eager_divergence=0.006, loss_reference="float64",
        dropout_off=True,
    )  # fmt: skip
    run.write_applied(replace(applied, set=trained, actions=(measured, other, late)))
    text = page(context, run_path(run.id))
    for told in (
        "3 GiB → 2 GiB", "votes of 1 rank, 1 against", "slower here",
        "layer 0: scaled_dot_product_attention", "no convolution is in the model",
        "Actions that have nothing to change here (1), and why", "Not everything was tried",
        "1 thing not tried, for the time was used up: tuned.",
        "Losses of a training run: 0.004 of the largest from a float64 run's, eager's own 0.006; "
        "dropout off.",
    ):  # fmt: skip
        assert told in text, told


def test_an_application_that_is_not_at_its_end_can_be_continued(
    context: Context, run: RunDirectory
) -> None:
    hidden = _refresh(context, run.id, None)[6]
    attempt = Attempt(signature=None, only=("row-program-1",), device="a GPU", versions={})
    run.write_attempt(attempt)
    refreshed = _refresh(context, run.id, None)
    assert (hidden, refreshed[6], refreshed[7]) == ({"display": "none"}, {}, ["row-program-1"])
    (run.path / "attempt.json").write_text("{")
    assert _refresh(context, run.id, None)[6] == hidden, "a damaged one is nothing to go on from"


def test_a_budget_reaches_the_command(client: Client, run: RunDirectory) -> None:
    served = client(allow_apply=True)
    for bad in (0, -5, 1 << 40, "1h"):
        body = {"run": run.id, "budget_s": bad}
        refused = served.post("/api/jobs", base_url=BASE, json=body, headers=csrf(served))
        assert refused.status_code == 400, bad
    body = {"run": run.id, "budget_s": 600}
    assert (
        served.post("/api/jobs", base_url=BASE, json=body, headers=csrf(served)).status_code == 202
    )
    job = run.job()
    assert job is not None
    assert job.budget_s == 600
    wait_for(served.runner, run, lambda view: not view.active)


# --- cliffs ---------------------------------------------------------------------------------------


def test_a_cliff_is_a_job_of_runs_made_here(
    client: Client, run: RunDirectory, recorded: RunDirectory
) -> None:
    plan, served = run.plan_ids()[0], client(allow_apply=True)
    path = f"/api/runs/{run.id}/plans/{plan}/cliff"
    assert served.post(path, base_url=BASE, json={}).status_code == 403, "without the pair"
    reader = client()
    assert reader.post(path, base_url=BASE, json={}, headers=csrf(reader)).status_code == 403
    for wrong in ("0" * 16, "--help", "..%2fx"):
        bad = f"/api/runs/{run.id}/plans/{wrong}/cliff"
        answer = served.post(bad, base_url=BASE, json={}, headers=csrf(served))
        assert answer.status_code in (404, 405)
    other = f"/api/runs/{PREFILL}/plans/{recorded.plan_ids()[0]}/cliff"
    refused = served.post(other, base_url=BASE, json={}, headers=csrf(served))
    assert refused.status_code == 403, "this machine did not make it"
    assert served.post(path, base_url=BASE, json={}, headers=csrf(served)).status_code == 202
    assert "already has a job" in reason(apply(served, run.id))
    wait_for(served.runner, run, lambda view: not view.active)
    assert f"ok cliff of {run.id} {plan}" in run.log_tail()


def test_who_may_not_start_a_cliff_is_told_the_command(store: RunStore) -> None:
    run = sample_run(store)
    path, command = finding_path(run.id, "row-program-1"), f"fusion-advisor cliff {run.id}"
    may = Context(store=store, runner=JobRunner(store), access=Access(allow_apply=True))
    may_not = Context(store=store, runner=JobRunner(store, read_only=True), access=Access())
    assert "Find out what each op costs" in page(may, path)
    assert command not in page(may, path)
    assert command in page(may_not, path)
    assert "Find out what each op costs" not in page(may_not, path)


def test_the_real_cliff_job_ends_with_the_cliff_on_the_page(store: RunStore) -> None:
    pytest.importorskip("triton", reason="compiling needs triton")
    run = sample_run(store)
    runner = JobRunner(store)
    plan = run.plan_ids()[0]
    runner.submit(run, "cliff", (plan,))
    view = wait_for(runner, run, lambda seen: not seen.active, timeout_s=120)
    assert (view.state, view.message) == ("done", "What each op costs is on record."), (
        run.log_tail()
    )
    (cliff,) = run.cliffs(plan)
    assert cliff.gpu == run.report().hardware.key
    here = Context(store=store, runner=runner, access=Access(allow_apply=True))
    assert "Op by op on h200" in page(here, finding_path(run.id, "row-program-1"))


def test_what_the_terminal_says_of_an_application_the_page_says_too(
    context: Context, recorded: RunDirectory
) -> None:
    applied = recorded.applied()
    assert applied is not None
    graph = ActionVerdict(
        kind="cuda_graph", title="CUDA graph of the step", verdict="kept", reason="faster",
        applies=True, by_hand="capture it", pool_bytes=3 << 20,
    )  # fmt: skip
    warned = (Warning_(code="other-load", message="another process used the GPU", count=1),)
    recorded.write_applied(replace(applied, actions=(graph,), warnings=warned))
    text = page(context, run_path(recorded.id))
    for expected in (
        "another process used the GPU", "Memory held by the graph: 3 MiB", "1.158×",
        "outputs agree (error", "Kernels per step", "GPU busy per step",
    ):  # fmt: skip
        assert expected in text
