"""A store with a signed run, and job children that are real processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from advisor.store import RunDirectory, RunStore
from advisor.store.jobrecord import JobRecord
from dashboard.access import Access
from dashboard.app import create_app
from dashboard.context import Context
from dashboard.jobs import Command, JobRunner
from dashboard.jobview import JobView
from tests.builders.run import sample_run

ROOT = Path(__file__).resolve().parents[2]


def child_command(mode: str) -> Command:
    """The command of the small real child."""

    def command(job: JobRecord, run: Path) -> Sequence[str]:
        code = "import sys; from tests.dashboard.child import main; sys.exit(main(*sys.argv[1:]))"
        return [sys.executable, "-c", code, mode, job.kind, str(run), *job.only]

    return command


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """An empty store."""
    return RunStore(tmp_path / "runs")


@pytest.fixture
def run(store: RunStore) -> RunDirectory:
    """A signed run that nothing was applied to."""
    return sample_run(store, applied=False)


@pytest.fixture
def context(store: RunStore) -> Context:
    """A server's state that lets apply."""
    return Context(store=store, runner=JobRunner(store), access=Access(allow_apply=True))


@pytest.fixture
def client(store: RunStore) -> Callable[..., Any]:
    """Makes clients of fresh servers over the store, each with its `runner`."""

    def make(**access: Any) -> Any:
        app, runner = create_app(store, Access(**access), command=child_command("ok"))
        made: Any = app.server.test_client()
        made.runner = runner
        return made

    return make


@pytest.fixture
def runner_of(store: RunStore) -> Iterator[Callable[[str], JobRunner]]:
    """Makes runners of the store; what they started is ended with the test."""
    made: list[JobRunner] = []

    def make(mode: str) -> JobRunner:
        made.append(JobRunner(store, command=child_command(mode)))
        return made[-1]

    yield make
    for runner in made:
        for child in runner._children.values():
            child.kill()
            child.wait()


def wait_for(
    runner: JobRunner, run: RunDirectory, done: Callable[[JobView], bool], timeout_s: float = 20.0
) -> JobView:
    """Drive the runner until a view satisfies `done`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        runner.tick()
        view = runner.view(run)
        if view is not None and done(view):
            return view
        time.sleep(0.05)
    raise AssertionError(f"job never got there: {runner.view(run)}")


def alive(pid: int) -> bool:
    """A process of this number exists and is no zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    from tests.dashboard.chromium import Chromium

    with playwright.sync_playwright() as driver:
        started = Chromium(driver)
        yield started
        started.running.close()
