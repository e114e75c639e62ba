"""A run directory belongs to the `profile` that made it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="profile needs torch")
pytest.importorskip("triton", reason="profile needs triton")

from advisor.cli.main import run
from advisor.store import RunDirectory


def test_a_run_in_the_making_is_not_touched_by_another_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    first = RunDirectory.create_at(out)
    # Between its look at the directory and the lock, the second one sees it still empty.
    monkeypatch.setattr(RunDirectory, "create_at", classmethod(lambda cls, path: cls(path)))
    with first.lock():
        first.trace_path.write_bytes(b"the first one's trace")
        assert run(["profile", "sample:transformer_block", "--out", str(out)]) == 2
    assert "another process is working on this run" in capsys.readouterr().err
    assert first.trace_path.read_bytes() == b"the first one's trace"


def test_a_failed_profile_leaves_no_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(["profile", "sample:no_such_sample", "--out", str(out)]) == 2
    assert not out.exists()
