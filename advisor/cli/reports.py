"""How commands name a report: a run directory, or a report.json by itself."""

from __future__ import annotations

from pathlib import Path

from advisor.model.applied import Applied
from advisor.model.base import MAX_RECORD_BYTES, decode
from advisor.model.report import Report
from advisor.store.directory import RunDirectory
from advisor.store.files import read_named

REMEDY = "give a run directory, or its report.json; a trace is read by `fusion-advisor analyze`"


def read_report(path: Path) -> Report:
    """The report of a run directory or of a file; raises `UnreadableError` or `UsageError`."""
    return read_run(path)[0]


def read_run(path: Path) -> tuple[Report, Applied | None, str | None]:
    """Report, applied record and the name of the run directory, as far as there are any."""
    if path.is_dir():
        stored = RunDirectory.at(path)
        return stored.report(), stored.applied(), str(path)
    data = read_named(path, MAX_RECORD_BYTES, remedy=REMEDY)
    return decode(data, Report, str(path), REMEDY), None, None
