"""The verdict of a gate as GitHub workflow commands, which become annotations of a pull request."""

from __future__ import annotations

from advisor.model.findings import Finding
from advisor.model.gate import GateResult
from advisor.model.report import Report
from advisor.report.document import visible

# GitHub shows ten of a kind a step and drops the rest without a word.
MAX_ANNOTATIONS = 10


def to_annotations(result: GateResult, report: Report) -> str:
    """One `::error` a check that failed or is unknown, a `::warning` where that is allowed.

    And one `::warning` a regression that the gate let pass.
    """
    by_id = {finding.id: finding for finding in report.findings}
    errors = []
    for check in result.failed:
        first = next((by_id[i] for i in check.findings if i in by_id), None)
        errors.append(_command("error", f"Gate: {check.name}", check.text, first))
    told = [
        _command("warning" if result.allow_unknown else "error", f"Gate: {c.name}", c.text, None)
        for c in result.unknown
    ]
    counted = {finding for check in result.failed for finding in check.findings}
    warnings = [
        _command("warning", finding.title, finding.action, finding)
        for finding in report.findings
        if finding.kind == "regression" and finding.id not in counted
    ]
    if result.allow_unknown:
        warnings = told + warnings
    else:
        errors += told
    return "".join(f"{text}\n" for kind in (errors, warnings) for text in _limited(kind))


def _limited(commands: list[str]) -> list[str]:
    if len(commands) <= MAX_ANNOTATIONS:
        return commands
    left = len(commands) - MAX_ANNOTATIONS + 1
    return [*commands[: MAX_ANNOTATIONS - 1], _command("notice", "Gate", f"and {left} more", None)]


def _command(kind: str, title: str, message: str, finding: Finding | None) -> str:
    fields = {"title": title}
    place = next((p for p in finding.locations if p.file), None) if finding else None
    if place is not None and place.file is not None:
        fields["file"] = place.file
        if place.line is not None and place.line > 0:
            fields["line"] = str(place.line)
    head = ",".join(f"{name}={_field(value)}" for name, value in fields.items())
    return f"::{kind} {head}::{_data(message)}"


def _data(text: str) -> str:
    """Escaped as GitHub's toolkit does; other control characters are spelled out."""
    return visible(text).replace("%", "%25")


def _field(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
