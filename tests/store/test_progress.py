"""Events of a job: written one a line, read whole, whatever is torn or strange in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import UnreadableError
from advisor.model.run import Progress
from advisor.store import ProgressWriter, is_final, read_progress
from tests.builders.file_limit import no_file_beyond


def test_events_are_readable_as_soon_as_written(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    assert read_progress(path) == ((), 0)
    with ProgressWriter(path, "job") as writer:
        first = writer.emit("load", "running", message="line\nbreak <b>")
        events, offset = read_progress(path)
        assert events == (first,)
        second = writer.emit("verify", "done", plan="0" * 16, value=1.5)
        assert read_progress(path, offset) == ((second,), path.stat().st_size)
    with ProgressWriter(path, "next", fresh=False) as writer:
        writer.emit("done", "done")
    assert [e.job for e in read_progress(path)[0]] == ["job", "job", "next"]
    with ProgressWriter(path, "fresh"):
        assert read_progress(path) == ((), 0)


@settings(deadline=None, max_examples=40)
@given(cut=st.integers(0, 400), step=st.integers(1, 400))
def test_a_torn_file_loses_nothing_and_repeats_nothing(
    tmp_path_factory: pytest.TempPathFactory, cut: int, step: int
) -> None:
    path = tmp_path_factory.mktemp("p") / "progress.jsonl"
    with ProgressWriter(path, "job") as writer:
        written = [writer.emit(f"stage{i}", "running", message="µ" * i) for i in range(4)]
    data = path.read_bytes()
    seen: list[Progress] = []
    offset = 0
    for end in (*range(min(cut, len(data)), len(data), step), len(data)):
        path.write_bytes(data[:end])
        events, offset = read_progress(path, offset)
        seen += events
    assert seen == written


@settings(deadline=None, max_examples=40)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("p") / "progress.jsonl"
    with ProgressWriter(path, "job") as writer:
        event = writer.emit("load", "done")
    good = path.read_bytes()
    path.write_bytes(noise + b"\n" + good)
    events, offset = read_progress(path)
    assert events[-1] == event
    assert offset == path.stat().st_size


def test_a_line_without_end_does_not_stop_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    path.write_bytes(b"x" * (5 << 20))
    events, offset = read_progress(path)
    assert events == ()
    assert offset == 4 << 20
    assert read_progress(path, offset) == ((), 4 << 20)


@pytest.mark.parametrize(
    ("stage", "state", "plan", "final"),
    [
        ("done", "done", None, True),
        ("done", "failed", "0" * 16, True),
        ("load", "failed", None, True),
        ("time", "cancelled", None, True),
        ("verify", "failed", "0" * 16, False),
        ("verify", "done", None, False),
        ("done", "running", None, False),
    ],
)
def test_which_event_ends_a_job(stage: str, state: str, plan: str | None, final: bool) -> None:
    data = {"time": "t", "job": "j", "stage": stage, "state": state, "plan": plan}
    assert is_final(Progress(**data)) is final  # type: ignore[arg-type]


def test_a_pipe_in_its_place_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    os.mkfifo(path)
    assert read_progress(path) == ((), 0)


def test_progress_into_no_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"progress\.jsonl: cannot write"):
        ProgressWriter(tmp_path / "absent" / "progress.jsonl", "job")


def test_an_event_that_has_no_room_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    with ProgressWriter(path, "job") as writer:
        first = writer.emit("load", "running")
        with no_file_beyond(path.stat().st_size + 9):
            with pytest.raises(UnreadableError, match=r"progress\.jsonl: cannot write: File too"):
                writer.emit("verify", "running")
            writer.close()
    assert read_progress(path)[0] == (first,)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_link_is_not_written_through(tmp_path: Path, fresh: bool) -> None:
    """A run from elsewhere may hold a link to a file of the user's."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    link = tmp_path / "progress.jsonl"
    link.symlink_to(precious)
    with pytest.raises(UnreadableError, match=r"progress\.jsonl: cannot write"):
        ProgressWriter(link, "job", fresh=fresh)
    assert precious.read_text() == "kept"
    link.unlink()
    os.mkfifo(link)
    with pytest.raises(UnreadableError, match=r"progress\.jsonl: cannot write"):
        ProgressWriter(link, "job", fresh=fresh)
