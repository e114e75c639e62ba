"""Runs that did not come to their end: what is kept of them. Needs no torch."""

from __future__ import annotations

import shutil
from contextlib import suppress

from msgspec.structs import replace

from advisor.errors import StorageError
from advisor.model.base import Warning_
from advisor.model.report import INCOMPLETE, Report
from advisor.store import RunDirectory

UNFINISHED = "the profile has not finished: what is here was known before the next stage"


def incomplete(why: str) -> Warning_:
    """The mark of a run that did not come to its end."""
    return Warning_(code=INCOMPLETE, message=why)


def is_incomplete(report: Report) -> bool:
    """Whether the report is of a run that did not come to its end."""
    return any(warning.code == INCOMPLETE for warning in report.warnings)


def keep_unfinished(run: RunDirectory, why: str) -> bool:
    """Say in the report why the run ended early; False if nothing of it is worth keeping.

    Then all that was written is removed, with the directories that were made for it. On a full disk
    the report stays as it was: it says that the run has not finished.
    """
    if not (run.path / "report.json").exists():
        run.progress_path.unlink(missing_ok=True)
        run.log_path.unlink(missing_ok=True)
        for directory in ("plans", "kernels"):
            shutil.rmtree(run.path / directory, ignore_errors=True)
        run.discard()
        return False
    report = run.report()
    told = [
        incomplete(why) if (w.code, w.message) == (INCOMPLETE, UNFINISHED) else w
        for w in report.warnings
    ]
    with suppress(StorageError):
        run.write_report(replace(report, warnings=tuple(told)))
    return True
