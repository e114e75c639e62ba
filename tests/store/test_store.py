"""Runs on disk: ids, atomic writes, locks, bounds, hostile names."""

from __future__ import annotations

import multiprocessing
import os
import threading
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import (
    AdvisorError,
    InvalidRecordError,
    RefusedError,
    UnreadableError,
    UsageError,
)
from advisor.store import RunDirectory, RunStore
from advisor.store.directory import checked_plan_id
from advisor.store.files import read_bounded, read_tail, write_atomic
from advisor.store.store import RUN_ID, new_run_id
from tests.builders.run import sample_run
from tests.builders.run_applied import applied_of
from tests.builders.run_plan import norm_plan

HOSTILE = (
    "", ".", "..", "../x", "a/b", "/etc/passwd", "a\0b", "-rf", ".jobs", "a b", "a\n", "é",
    "x" * 200, "%2e%2e", "a.b", "..\\x", "~root",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """An empty store."""
    return RunStore(tmp_path / "runs")


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_every_file_comes_back_as_it_was_written(store: RunStore) -> None:
    run = sample_run(store)
    again = store.open(run.id)
    plan = norm_plan()
    assert again.report() == run.report()
    assert again.info().id == run.id
    assert again.plan(plan.id) == plan
    assert again.plan_ids() == (plan.id,)
    assert again.applied() == applied_of(plan)
    assert "tl.rsqrt" in (again.kernel(plan.id) or "")
    again.remove_applied()
    assert run.applied() is None
    assert run.job() is None
    assert run.kernel("0" * 16) is None


def test_runs_are_listed_newest_first_and_only_runs(store: RunStore, tmp_path: Path) -> None:
    assert store.runs() == ()
    days = (2, 1, 3)
    made = [sample_run(store, applied=False, when=datetime(2026, 1, d)).id for d in days]
    (store.root / "empty").mkdir()
    (store.root / "file").write_text("no run")
    outside = sample_run(RunStore(tmp_path / "other"))
    (store.root / "linked").symlink_to(outside.path)
    assert [run.id for run in store.runs()] == sorted(made, reverse=True)
    with pytest.raises(UnreadableError, match="no such run"):
        store.open("linked")


@pytest.mark.parametrize("run_id", HOSTILE)
def test_hostile_ids_are_refused(store: RunStore, run_id: str) -> None:
    sample_run(store)
    with pytest.raises(UsageError):
        store.open(run_id)
    with pytest.raises(UsageError):
        checked_plan_id(run_id)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_text_opens_anything_outside_the_store(text: str) -> None:
    store = RunStore(Path("/"))
    with pytest.raises((UsageError, UnreadableError)):
        store.open(text)


@settings(deadline=None)
@given(st.text(max_size=80), st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)))
def test_any_target_gives_a_good_id_that_sorts_by_time(target: str, when: datetime) -> None:
    name = new_run_id(target, when)
    assert RUN_ID.fullmatch(name)
    assert name.startswith(when.strftime("%Y%m%d-%H%M%S-"))


def test_a_directory_by_its_path(store: RunStore, tmp_path: Path) -> None:
    run = sample_run(store)
    assert RunDirectory.at(run.path).info() == run.info()
    file = run.path / "report.json"
    for path, why in ((tmp_path, "holds neither"), (tmp_path / "none", "no such"), (file, "is no")):
        with pytest.raises(UsageError, match=f"not a run directory: .*{why}"):
            RunDirectory.at(path)
    named = RunDirectory.create_at(tmp_path / "deep" / "mine")
    named.write_info(run.info())
    with pytest.raises(UsageError, match="not empty"):
        RunDirectory.create_at(named.path)
    assert RunDirectory.at(named.path).id == "mine"


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnreadableError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_readers_see_one_version_or_the_other(tmp_path: Path) -> None:
    path = tmp_path / "f"
    versions = [bytes([65 + i]) * 100_000 for i in range(3)]
    write_atomic(path, versions[0])
    stop = threading.Event()

    def write() -> None:
        for step in range(60):
            write_atomic(path, versions[step % 3])
        stop.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not stop.is_set():
        seen.add(path.read_bytes())
    writer.join()
    assert seen <= set(versions)


def test_reads_are_bounded_and_only_of_files(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(InvalidRecordError, match="larger than the 4 bytes"):
        read_bounded(path, 4)
    assert read_tail(path, 2) == b"45"
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(path)
    os.mkfifo(pipe)
    for bad in (link, pipe, tmp_path, tmp_path / "absent"):
        with pytest.raises(UnreadableError):
            read_bounded(bad, 10)
        assert read_tail(bad, 10) == b""


def test_broken_records_name_file_and_fault(store: RunStore) -> None:
    run = sample_run(store)
    (run.path / "applied.json").write_text('{"schema_version": 1}')
    with pytest.raises(InvalidRecordError, match=r"applied\.json.*missing required field"):
        run.applied()
    plan = norm_plan()
    (run.plans_path / ("f" * 16 + ".json")).write_bytes(run.plan_bytes(plan.id))
    with pytest.raises(InvalidRecordError, match="has the id"):
        run.plan("f" * 16)
    (run.plans_path / "notes.json").write_text("{}")
    assert "notes" not in run.plan_ids()


def _hold(path: Path, held: multiprocessing.synchronize.Event) -> None:
    with RunDirectory(path).lock():
        held.set()
        threading.Event().wait(30)


def test_a_lock_excludes_another_process_and_dies_with_it(store: RunStore) -> None:
    run = sample_run(store)
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    other = context.Process(target=_hold, args=(run.path, held))
    other.start()
    assert held.wait(20)
    with pytest.raises(RefusedError, match="another process"), run.lock():
        pass
    other.kill()
    other.join()
    with run.lock(timeout_s=5):
        pass


def test_an_unwritable_store_is_one_named_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the store should be")
    with pytest.raises(AdvisorError, match="cannot create a run"):
        RunStore(tmp_path / "runs").create("x")


def test_a_run_that_was_removed_meanwhile_is_one_named_error(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "gone")
    with pytest.raises(UnreadableError, match="cannot write"):
        run.write_plan(norm_plan())
    with pytest.raises(UnreadableError, match="cannot write"):
        run.write_kernel("0" * 16, "")
