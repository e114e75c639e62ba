"""The job runner with real children: queue, cancellation, death, restart."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.errors import RefusedError
from advisor.model.run import Progress
from advisor.report.progress import value_text
from advisor.store import RunDirectory, RunStore
from advisor.store.jobrecord import JobKind, JobRecord, ProcessIdentity
from dashboard.access import Access
from dashboard.app import create_app
from dashboard.jobs import JobRunner, cli_command
from dashboard.jobview import view_of
from dashboard.processes import describe_exit, identify, is_alive
from tests.builders.run import sample_run
from tests.dashboard.conftest import alive, child_command, wait_for

Make = Callable[[str], JobRunner]
GONE = ProcessIdentity(pid=2**22 + 1, start_ticks=1, boot_id="another")


def test_a_job_runs_to_its_end(run: RunDirectory, runner_of: Make) -> None:
    runner = runner_of("ok")
    runner.submit(run, "apply")
    view = wait_for(runner, run, lambda v: not v.active)
    assert (view.state, view.kind) == ("done", "apply")
    assert view.message == "1 of 1 plans kept: the step is faster by 1.29 ms."
    assert [s.name for s in view.stages if s.latest and s.latest.state == "done"] == [
        "load", "generate", "resources", "verify", "time", "rewrite", "measure", "decide", "done",
    ]  # fmt: skip
    assert "ok apply of" in run.log_tail()
    assert run.applied() is not None
    runner.submit(run, "revert")
    assert wait_for(runner, run, lambda v: v.kind == "revert" and not v.active).state == "done"
    assert run.applied() is None


def test_a_killed_child_is_a_failure_with_its_signal(run: RunDirectory, runner_of: Make) -> None:
    runner = runner_of("die")
    runner.submit(run, "apply")
    view = wait_for(runner, run, lambda v: not v.active)
    assert view.state == "failed"
    assert "signal 9 (SIGKILL)" in view.message
    assert next(s for s in view.stages if s.name == "verify").latest is not None


def test_an_exit_without_a_final_event_is_a_failure(run: RunDirectory, runner_of: Make) -> None:
    runner = runner_of("exit")
    runner.submit(run, "apply")
    view = wait_for(runner, run, lambda v: not v.active)
    assert view.state == "failed"
    assert "exit status 3" in view.message
    assert "something went wrong here" in run.log_tail()


def test_cancel_ends_the_process_group(run: RunDirectory, runner_of: Make) -> None:
    runner = runner_of("hang")
    runner.submit(run, "apply")
    wait_for(runner, run, lambda v: v.stages[3].latest is not None)
    record = run.job()
    assert record is not None
    assert record.process is not None
    assert os.getsid(record.process.pid) == record.process.pid
    runner.cancel(run)
    view = wait_for(runner, run, lambda v: not v.active)
    assert (view.state, view.message) == ("cancelled", "Cancelled on request.")
    assert not alive(record.process.pid)
    with pytest.raises(RefusedError, match="no job to cancel"):
        runner.cancel(run)


def test_one_job_at_a_time_in_order(store: RunStore, runner_of: Make) -> None:
    runs = [sample_run(store, applied=False, when=datetime(2026, 1, d)) for d in (3, 1, 2)]
    runner = runner_of("slow")
    for queued in runs:
        runner.submit(queued, "apply")
    views = [runner.view(queued) for queued in runs]
    assert [(v.state, v.ahead) for v in views if v] == [
        ("running", 0),
        ("queued", 1),
        ("queued", 2),
    ]
    with pytest.raises(RefusedError, match="already has a job"):
        runner.submit(runs[1], "apply")
    runner.cancel(runs[1])
    second = runner.view(runs[1])
    assert second is not None
    assert (second.state, second.message) == ("cancelled", "Cancelled before it started.")
    third = wait_for(runner, runs[2], lambda v: v.state == "running")
    assert third.ahead == 0
    first = runner.view(runs[0])
    assert first is not None
    assert first.state == "done"
    assert wait_for(runner, runs[2], lambda v: not v.active).state == "done"


def test_a_new_server_finds_a_running_job(run: RunDirectory, runner_of: Make) -> None:
    first = runner_of("slow")
    first.submit(run, "apply")
    second = runner_of("never used: the job goes on")
    view = second.view(run)
    assert view is not None
    assert view.state == "running"
    with pytest.raises(RefusedError, match="already has a job"):
        second.submit(run, "apply")
    assert wait_for(second, run, lambda v: not v.active).state == "done"


def test_a_new_server_starts_what_was_queued(store: RunStore, runner_of: Make) -> None:
    one = sample_run(store, applied=False, when=datetime(2026, 1, 1))
    two = sample_run(store, applied=False, when=datetime(2026, 1, 2))
    first = runner_of("slow")
    first.submit(one, "apply")
    first.submit(two, "apply")
    second = runner_of("ok")
    assert wait_for(second, two, lambda v: not v.active).state == "done"


def test_a_read_only_server_shows_the_queue_and_starts_nothing(
    store: RunStore, run: RunDirectory
) -> None:
    run.write_job(JobRecord(id="0" * 16, kind="apply", queued="2026-01-01T00:00:00+00:00"))
    (store.root / ".jobs").mkdir()
    (store.root / ".jobs" / run.id).touch()
    app, runner = create_app(store, Access(), command=child_command("ok"))
    runner.start()
    client = app.server.test_client()
    answer = client.get(f"/api/jobs/{run.id}", base_url="http://localhost")
    time.sleep(1.2)
    runner.stop()
    assert answer.get_json()["state"] == "queued"
    assert not run.log_path.exists()
    record = run.job()
    assert record is not None
    assert record.started is None


def test_runs_of_others_are_refused(store: RunStore, run: RunDirectory, runner_of: Make) -> None:
    runner = runner_of("ok")
    copied = store.root / "copied"
    shutil.copytree(run.path, copied)
    with pytest.raises(RefusedError, match="copied, moved or edited"):
        runner.submit(store.open("copied"), "apply")
    unsigned = sample_run(store, signed=False)
    with pytest.raises(RefusedError, match="not signed"):
        runner.submit(unsigned, "apply")
    with pytest.raises(RefusedError):
        runner.cancel(unsigned)


def test_a_copied_record_of_a_running_job_is_a_failure_not_a_hang(
    run: RunDirectory, runner_of: Make
) -> None:
    now = "2026-01-01T00:00:00+00:00"
    run.write_job(JobRecord(id="0" * 16, kind="apply", queued=now, started=now, process=GONE))
    view = runner_of("ok").view(run)
    assert view is not None
    assert view.state == "failed"


def test_a_planted_queue_entry_starts_nothing(store: RunStore, runner_of: Make) -> None:
    planted = sample_run(store, signed=False)
    planted.write_job(JobRecord(id="0" * 16, kind="apply", queued="2026-01-01T00:00:00+00:00"))
    (store.root / ".jobs").mkdir()
    (store.root / ".jobs" / planted.id).touch()
    (store.root / ".jobs" / "no-such-run").touch()
    runner = runner_of("ok")
    runner.tick()
    view = runner.view(planted)
    assert view is not None
    assert view.state == "failed"
    assert "not signed" in view.message
    assert not planted.log_path.exists()
    assert list((store.root / ".jobs").iterdir()) == []


def test_the_watch_survives_runs_it_cannot_read_or_write(
    store: RunStore, run: RunDirectory, runner_of: Make
) -> None:
    runner = runner_of("ok")
    runner.submit(run, "apply")
    broken = sample_run(store, applied=False)
    (broken.path / "job.json").write_text(
        '{"id": "0000000000000000", "kind": "apply", "queued": "yesterday"}'
    )
    (store.root / ".jobs" / broken.id).touch()
    runner.start()
    deadline = time.monotonic() + 20
    while list((store.root / ".jobs").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list((store.root / ".jobs").iterdir()) == []
    runner.stop()


def test_a_run_edited_while_it_waits_is_not_started(store: RunStore, runner_of: Make) -> None:
    one = sample_run(store, applied=False, when=datetime(2026, 1, 1))
    two = sample_run(store, applied=False, when=datetime(2026, 1, 2))
    runner = runner_of("slow")
    runner.submit(one, "apply")
    runner.submit(two, "apply")
    path = two.plans_path / f"{two.plan_ids()[0]}.json"
    path.write_bytes(path.read_bytes().replace(b'"rsqrt"', b'"sqrt"'))
    view = wait_for(runner, two, lambda v: not v.active)
    assert view.state == "failed"
    assert "edited" in view.message


def test_a_command_that_cannot_start_is_a_failure(store: RunStore, run: RunDirectory) -> None:
    runner = JobRunner(store, command=lambda *_: ["/no/such/program"])
    runner.submit(run, "apply")
    view = runner.view(run)
    assert view is not None
    assert view.state == "failed"
    assert "did not start" in view.message


def test_a_log_that_is_a_link_is_not_followed(
    run: RunDirectory, runner_of: Make, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    run.log_path.symlink_to(precious)
    runner = runner_of("ok")
    runner.submit(run, "apply")
    view = runner.view(run)
    assert view is not None
    assert view.state == "failed"
    assert precious.read_text() == "keep me"


def test_the_default_command_ends_options_before_the_directory() -> None:
    def argv(kind: JobKind, run: str, *only: str, budget_s: int | None = None) -> list[str]:
        job = JobRecord(id="0" * 16, kind=kind, only=only, budget_s=budget_s, queued="now")
        return list(cli_command(job, Path(run)))

    assert argv("apply", "/store/-rf", "row-1")[-2:] == ["--", "/store/-rf"]
    assert argv("apply", "/r", "row-1")[1:5] == ["-m", "advisor.cli.main", "apply", "--only=row-1"]
    assert argv("apply", "/r", budget_s=90)[-3:] == ["--budget=90s", "--", "/r"]
    assert argv("revert", "/r")[-3:] == ["revert", "--", "/r"]
    assert argv("cliff", "/r", "ab")[3:] == ["cliff", "--only=ab", "--save", "--", "/r"]


def test_identity_tells_a_process_from_a_later_one() -> None:
    mine = identify(os.getpid())
    assert mine is not None
    assert is_alive(mine)
    later = type(mine)(pid=mine.pid, start_ticks=mine.start_ticks + 1, boot_id=mine.boot_id)
    rebooted = type(mine)(pid=mine.pid, start_ticks=mine.start_ticks, boot_id="another boot")
    assert not is_alive(later)
    assert not is_alive(rebooted)
    assert identify(2**22 + 1) is None


@pytest.mark.parametrize(
    ("status", "text"),
    [(0, "exit status 0"), (3, "exit status 3"), (-signal.SIGKILL, "signal 9 (SIGKILL)"),
     (-99, "signal 99"), (None, "unknown")],
)  # fmt: skip
def test_exit_statuses_in_words(status: int | None, text: str) -> None:
    assert text in describe_exit(status)


def test_a_failed_plan_does_not_end_the_job() -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    record = JobRecord(id="0" * 16, kind="apply", queued=now, started=now)
    event = Progress(
        time=now, job="j", stage="verify", state="failed", plan="0" * 16, message="wrong constant"
    )
    view = view_of(record, [event], alive=True)
    assert view.state == "running"
    assert next(s for s in view.stages if s.name == "verify").plans == (event,)


def test_a_job_that_has_its_result_but_not_ended_is_finishing() -> None:
    now = "2026-01-01T00:00:00+00:00"
    record = JobRecord(id="0" * 16, kind="revert", queued=now, started=now)
    final = Progress(time=now, job="j", stage="done", state="done", message="reverted")
    view = view_of(record, [final], alive=True)
    assert (view.state, view.finishing) == ("running", True)
    assert not view_of(record, [], alive=True).finishing
    ended = view_of(replace(record, process=GONE, ended=now), [final], alive=False)
    assert (ended.state, ended.finishing) == ("done", False)


def test_events_of_a_later_command_are_not_those_of_the_job() -> None:
    begun, ended, later = (f"2026-01-01T00:0{n}:00.000+00:00" for n in range(3))
    record = JobRecord(
        id="0" * 16, kind="apply", queued=begun, started=begun, ended=ended, process=GONE,
        exit_status=0,
    )  # fmt: skip
    event = Progress(time=later, job="apply-7", stage="load", state="running", message="starting")
    view = view_of(record, [event], alive=False)
    assert view.state == "done"
    assert "later command" in view.message
    assert all(stage.latest is None for stage in view.stages)
    own = replace(event, time=begun)
    assert view_of(record, [own], alive=False).state == "failed", "it never said that it was done"


def _events(*stages: str) -> list[Progress]:
    times = "2026-01-01T00:00:00+00:00"
    return [Progress(time=times, job="j", stage=s, state="running", value=1500) for s in stages]


def test_stages_that_only_report_running_end_when_the_next_begins() -> None:
    now = "2026-01-01T00:00:00+00:00"
    record = JobRecord(id="0" * 16, kind="apply", queued=now, started=now)
    working = view_of(record, _events("load", "generate", "time"), alive=True)
    states = {stage.name: stage.state for stage in working.stages}
    assert [states[n] for n in ("load", "generate", "time", "decide")] == [
        "done", "done", "running", None,
    ]  # fmt: skip
    killed = view_of(replace(record, process=GONE, ended=now), _events("load", "time"), alive=False)
    assert {s.name: s.state for s in killed.stages}["time"] == "failed"
    final = Progress(time=now, job="j", stage="done", state="done", message="kept")
    finished = view_of(
        replace(record, process=GONE, ended=now), [*_events("load", "decide"), final], alive=False
    )
    assert {s.state for s in finished.stages if s.latest} == {"done"}
    assert [value_text(e) for e in _events("time", "rewrite", "load")] == [
        "1.5 µs", "1,500 sites", "1,500",
    ]  # fmt: skip
