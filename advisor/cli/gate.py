"""`fusion-advisor gate`: does a report keep to its limits, for CI."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import replace

from advisor.cli.output import check_folder, echo, echo_json, write_text
from advisor.cli.reports import read_report
from advisor.errors import UnreadableError, UsageError
from advisor.model.base import encode
from advisor.model.gate import GateConfig, GateResult
from advisor.model.report import Report
from advisor.report.annotations import to_annotations
from advisor.report.gate import EXITS, judge
from advisor.report.gate_config import MAX_CONFIG_BYTES, default_config, read_config
from advisor.report.gate_document import gate_document
from advisor.report.junit import to_junit
from advisor.report.markdown import to_markdown
from advisor.report.plain_document import to_terminal
from advisor.report.sarif import to_sarif
from advisor.store.files import read_named

NO_CONFIG = "name a TOML file with limits, or leave --config out"

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("report", metavar="REPORT", type=click.Path(path_type=Path))
@click.option("--baseline", type=click.Path(path_type=Path), help="Run or report to compare with.")
@click.option("--config", type=_FILE,
              help="Limits, TOML; without it: no regressions and, beside a baseline, no step, GPU "
              "time or launches that grew by more than 5 %.")  # fmt: skip
@click.option("--allow-unknown", is_flag=True, help="Let pass what nobody can tell, with a word "
              "of it.")  # fmt: skip
@click.option("--junit", type=_FILE, help="Write JUnit XML.")
@click.option("--sarif", type=_FILE, help="Write SARIF 2.1.0.")
@click.option("--markdown", type=_FILE, help="Write Markdown, for a summary or a comment.")
@click.option("--github", is_flag=True, help="Print GitHub annotations instead of text.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON instead of text.")
@click.pass_context
def gate(
    ctx: click.Context,
    report: Path,
    baseline: Path | None,
    config: Path | None,
    allow_unknown: bool,
    junit: Path | None,
    sarif: Path | None,
    markdown: Path | None,
    github: bool,
    as_json: bool,
) -> None:
    """Check REPORT, a run directory or report.json, against limits.

    Exit code 0 if it keeps to all, 1 if not, 2 for wrong usage or limits, 3 if a file cannot be
    read or the baseline is of other work, 4 if nobody can tell: whether both are of the same work,
    which fused kernels lost, or whether findings without a price save more than a limit
    (`unpriced`). Beside a baseline, kernels that lost against what they replaced are regressions of
    REPORT. An empty or partial capture never passes.
    `fusion-advisor schema gate` prints what the configuration may hold.
    """
    if github and as_json:
        raise UsageError(
            "--github and --json both print to standard output", remedy="give one of the two"
        )
    for written in filter(None, (junit, sarif, markdown)):
        check_folder(written)
    subject = read_report(report)
    against, untold = None if baseline is None else read_report(baseline), ""
    if baseline is not None and against is not None:
        from advisor.pipeline.regressions import with_regressions

        subject, untold = with_regressions(subject, report, against, baseline)
    labels = (str(report), str(baseline))
    limits = _config(config, subject, against)
    if allow_unknown:
        limits = replace(limits, comparison=replace(limits.comparison, allow_unknown=True))
    try:
        result = judge(limits, subject, against, labels, untold)
    except UsageError as error:
        where = ": ".join(filter(None, ("" if config is None else str(config), error.where)))
        raise UsageError(error.what, where=where, why=error.why, remedy=error.remedy) from error
    for path, text in (
        (junit, to_junit(result, subject.created) if junit else ""),
        (sarif, to_sarif(result, subject, str(Path.cwd())) if sarif else ""),
        (markdown, to_markdown(gate_document(result)) if markdown else ""),
    ):
        if path is not None:
            write_text(path, text)
    _print(result, subject, github=github, as_json=as_json)
    ctx.exit(EXITS[result.status])


def _config(path: Path | None, report: Report, baseline: Report | None) -> GateConfig:
    if path is None:
        return default_config(report, baseline)
    try:
        data = read_named(path, MAX_CONFIG_BYTES, remedy=NO_CONFIG)
    except UnreadableError as error:
        raise UsageError(
            error.what, where=error.where, why=error.why, remedy=error.remedy
        ) from error
    return read_config(data, str(path))


def _print(result: GateResult, report: Report, *, github: bool, as_json: bool) -> None:
    if as_json:
        echo_json(encode(result))
    elif github:
        click.echo(to_annotations(result, report), nl=False)
    else:
        echo(to_terminal(gate_document(result)))
