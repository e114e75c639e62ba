"""Jobs whose log or progress has no room: the file is named, and no other error hidden by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.cli import jobs
from advisor.errors import UnreadableError, WorkloadError
from advisor.pipeline.job import ApplyJob
from advisor.store import ProgressWriter, read_progress
from tests.builders.file_limit import no_file_beyond


def test_a_log_that_has_no_room_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    told = pytest.raises(UnreadableError, match=r"log\.txt: cannot write: File too large")
    with no_file_beyond(4), told, jobs._output(log) as output:
        output(b"what the workload prints")
    assert log.read_bytes() == b"what"


def test_why_a_job_failed_is_told_where_progress_has_no_room_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise WorkloadError("the step failed")

    monkeypatch.setattr(jobs, "supervise", fails)
    path = tmp_path / "progress.jsonl"
    told = pytest.raises(WorkloadError, match="the step failed")
    with no_file_beyond(9), ProgressWriter(path, "job") as writer, told:
        jobs.run_job(ApplyJob(run="run"), writer, "text", where="net.py")
    assert read_progress(path)[0] == ()
