"""A run that came to nothing leaves no directory behind, and nothing else is removed."""

from __future__ import annotations

from pathlib import Path

from advisor.store import RunDirectory, RunStore


def test_what_was_made_is_removed_with_a_partial_trace(tmp_path: Path) -> None:
    run = RunDirectory.create_at(tmp_path / "deep" / "inside" / "run")
    run.trace_path.write_bytes(b"cut short")
    run.discard()
    assert list(tmp_path.iterdir()) == []
    stored = RunStore(tmp_path / "runs").create("sample:x")
    stored.discard()
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_or_holds_more_stays(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    RunDirectory.create_at(empty).discard()
    assert empty.is_dir()
    run = RunDirectory.create_at(tmp_path / "new")
    (run.path / "notes.txt").write_text("mine")
    run.discard()
    assert (run.path / "notes.txt").read_text() == "mine"
