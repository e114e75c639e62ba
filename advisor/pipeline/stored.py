"""Recorded traces as a run in a store: their report, and the traces themselves beside it.

As a program it makes a run of what somebody uploaded, traces or a report, which is hostile input:
the dashboard starts it with limits and shows its events.
"""

from __future__ import annotations

import gzip
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from advisor.errors import (
    EXIT_OK,
    AdvisorError,
    InvalidRecordError,
    UnreadableError,
    UsageError,
)
from advisor.model.base import MAX_RECORD_BYTES, decode, encode
from advisor.model.report import Report
from advisor.model.step_record import StepRecord
from advisor.pipeline.analyze import analyzed
from advisor.store.directory import RunDirectory
from advisor.store.files import read_bounded
from advisor.store.progress import ProgressWriter
from advisor.units import format_bytes
from collectors.bytes_in import Source

_GZIP = b"\x1f\x8b"
_LEVEL = 4
# How a report of ours begins: the fields of `Report` are written in their order.
_REPORT = re.compile(rb'\s*\{\s*"schema_version"')
_HEAD_BYTES = 256


def keep_traces(run: RunDirectory, files: Sequence[Path]) -> None:
    """Copy the traces into the run, compressed: the first as its own, others as other ranks."""
    for number, path in enumerate(files):
        place = run.trace_path if number == 0 else run.path / f"rank{number}" / run.trace_path.name
        place.parent.mkdir(exist_ok=True)
        try:
            _copy(path, place)
        except OSError as error:
            raise UnreadableError(
                "cannot keep the trace", where=str(place), why=error.strerror or str(error)
            ) from error


def _copy(path: Path, place: Path) -> None:
    with path.open("rb") as source:
        if source.read(len(_GZIP)) == _GZIP:
            source.seek(0)
            with place.open("wb") as target:
                shutil.copyfileobj(source, target)
            return
    with gzip.open(place, "wb", compresslevel=_LEVEL) as packed:
        for chunk in Source(path).chunks():
            packed.write(chunk)


def receive(run: RunDirectory, progress: ProgressWriter) -> None:
    """Turn the uploaded files of a run into its report; raises what reading them raises."""
    paths = run.uploads()
    step: StepRecord | None = None
    if any(_REPORT.match(_head(path)) for path in paths):
        report = _report(run, paths, progress)
    else:
        size = format_bytes(sum(path.stat().st_size for path in paths))
        what = "a trace" if len(paths) == 1 else f"the traces of {len(paths)} ranks"
        progress.emit("analyze", "running", message=f"reading {what}, {size}")
        report, step = _analyzed(run, paths)
        progress.emit("analyze", "done", message=f"{len(report.kernels)} kernels by name")
        progress.emit("keep", "running", message="keeping what was uploaded for the timeline")
        keep_traces(run, paths)
        progress.emit("keep", "done")
    if len(encode(report)) > MAX_RECORD_BYTES:
        raise InvalidRecordError("the report is larger than a report may be")
    run.write_report(report)
    if step is not None:
        run.write_step(step)
    _remove(paths)
    progress.emit("done", "done", message="The report is ready.")


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _report(run: RunDirectory, paths: Sequence[Path], progress: ProgressWriter) -> Report:
    """The report that was uploaded, checked; raises `UsageError` where it came with others."""
    if len(paths) > 1:
        raise UsageError(
            "a report is uploaded alone", remedy="several files are the traces of one job's ranks"
        )
    progress.emit("check", "running", message="checking the report")
    report = decode(read_bounded(paths[0], MAX_RECORD_BYTES), Report, run.info().target)
    progress.emit("check", "done", message=f"{len(report.findings)} findings")
    return report


def _head(path: Path) -> bytes:
    """The first bytes of a file as they are."""
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _analyzed(run: RunDirectory, paths: Sequence[Path]) -> tuple[Report, StepRecord]:
    """Report and step of the traces, under the names that the files were uploaded with."""
    from msgspec.structs import replace

    report, step = analyzed(paths)
    sources = tuple(replace(s, path=s.path and _named(run, s.path)) for s in report.sources)
    warnings = tuple(replace(w, message=_named(run, w.message)) for w in report.warnings)
    workload = replace(report.workload, target=run.info().target)
    return replace(report, sources=sources, warnings=warnings, workload=workload), step


def _named(run: RunDirectory, text: str) -> str:
    """A text with the names of the files as they were uploaded, for those they have here."""
    for number, name in enumerate(run.info().arguments[1:]):
        path = run.upload_part(number)
        text = text.replace(str(path), name).replace(path.name, name)
    return text


def main(arguments: Sequence[str]) -> int:
    """`RUN`: a failure is the final event of the job, and one line in its log."""
    run = RunDirectory.at(Path(arguments[0]))
    with ProgressWriter(run.progress_path, "upload") as progress:
        try:
            receive(run, progress)
        except AdvisorError as error:
            line = _named(run, error.line())
            progress.emit("done", "failed", message=line)
            sys.stderr.write(f"{line}\n")
            _remove(run.uploads())
            return error.exit_code
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
