"""`profile --again`: the options of an earlier run, and what changed since."""

from __future__ import annotations

from pathlib import Path

import msgspec

from advisor.cli.compare import show_comparison
from advisor.cli.reports import read_report
from advisor.errors import InvalidRecordError
from advisor.pipeline.options import ProfileOptions
from advisor.report.compare import compare_reports
from advisor.store import RunDirectory


def options_of(run: RunDirectory) -> tuple[ProfileOptions, Path]:
    """How a run was profiled and from which directory; its signature has been checked.

    Raises `InvalidRecordError` for options that this version does not know.
    """
    info = run.info()
    pairs = (argument.removeprefix("--").partition("=") for argument in info.arguments)
    given = {name: value for name, _, value in pairs} | {"target": info.target}
    try:
        # The values are text: as numbers where the options are.
        options = msgspec.convert(given, ProfileOptions, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRecordError(
            "cannot be profiled again",
            where=str(run.path),
            why=f"it was profiled in a way that this version does not know: {error}",
            remedy=f"profile {info.target} itself",
        ) from error
    return options, Path(info.working_directory)


def compare_with(before: Path, after: RunDirectory) -> None:
    """Print what changed from an earlier run to a new one of the same work."""
    show_comparison(
        compare_reports(
            read_report(before), after.report(), (str(before), str(after.path.name)), ()
        ),
        "text",
    )
