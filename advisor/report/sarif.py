"""Findings and failed checks as SARIF 2.1.0 (OASIS), which code scanning services read."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

import msgspec

from advisor.model.base import Location
from advisor.model.findings import Finding
from advisor.model.gate import GateCheck, GateResult
from advisor.model.report import Report
from advisor.report.document import visible
from advisor.report.gate import EXITS
from advisor.report.text import range_text
from advisor.report.words import when

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"
CHECK_RULE = "gate"
LEVELS = {"regression": "warning", "opportunity": "note", "note": "none"}
# More results are dropped by the services; more places of one result are not shown.
MAX_RESULTS = 5_000
MAX_PLACES = 20


def to_sarif(result: GateResult, report: Report, root: str = "") -> str:
    """The log as JSON; files below `root` (an absolute path) are named relative to it.

    Findings that break a limit are errors, other regressions warnings, opportunities notes; what is
    unknown is open.
    """
    untold = [check for check in result.checks if check.status != "passed"]
    broken = {i for check in result.failed for i in check.findings}
    rules = list(dict.fromkeys([CHECK_RULE, *(visible(f.rule) for f in report.findings)]))
    results = [_check(check, result.report, root) for check in untold]
    of = when(report)
    results += [
        _finding(f, f.id in broken, result.report, rules, root, of) for f in report.findings
    ]
    run = {
        "tool": {
            "driver": {
                "name": visible(report.tool.name),
                "version": visible(report.tool.version),
                "rules": [_rule(rule, report) for rule in rules],
            }
        },
        "invocations": [{"executionSuccessful": True, "exitCode": EXITS[result.status]}],
        "columnKind": "utf16CodeUnits",
        "results": results[:MAX_RESULTS],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log)).decode() + "\n"


def _rule(rule: str, report: Report) -> dict[str, Any]:
    if rule == CHECK_RULE:
        text = "A limit of the gate is broken, or nobody can tell."
    else:
        titles = (f.title for f in report.findings if visible(f.rule) == rule)
        text = visible(next(titles, rule))
    return {"id": rule, "shortDescription": {"text": text or rule or CHECK_RULE}}


def _check(check: GateCheck, label: str, root: str) -> dict[str, Any]:
    return {
        "ruleId": CHECK_RULE,
        "ruleIndex": 0,
        # No level but none goes with what could not be decided (SARIF 2.1.0, 3.27.9 and 3.27.10).
        "level": "error" if check.status == "failed" else "none",
        "kind": "fail" if check.status == "failed" else "open",
        "message": {"text": f"{visible(check.name)}: {visible(check.text)}"},
        "locations": [{"physicalLocation": {"artifactLocation": _artifact(label, root)}}],
        "partialFingerprints": {"check/v1": _fingerprint(CHECK_RULE, check.name)},
    }


def _finding(
    finding: Finding, broken: bool, label: str, rules: list[str], root: str, of: str
) -> dict[str, Any]:
    rule = visible(finding.rule)
    saving = range_text(finding.exposed_saving_ns)
    text = f"{visible(finding.title)}. Saves {of}: {saving}. {visible(finding.action)}"
    places = [place for p in finding.locations[:MAX_PLACES] if (place := _place(p, root))]
    if not any("physicalLocation" in place for place in places):
        # Code scanning shows nothing without a file: then it is the report itself.
        places.insert(0, {"physicalLocation": {"artifactLocation": _artifact(label, root)}})
    return {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "level": "error" if broken else LEVELS[finding.kind],
        "kind": "fail" if broken or finding.kind != "note" else "informational",
        "message": {"text": text},
        "locations": places,
        "partialFingerprints": {"finding/v1": _fingerprint(finding.rule, finding.id)},
        "properties": {"findingId": finding.id, "provenance": finding.provenance},
    }


def _place(place: Location, root: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if place.file:
        found["physicalLocation"] = {"artifactLocation": _artifact(place.file, root)}
        if place.line is not None and place.line > 0:
            found["physicalLocation"]["region"] = {"startLine": place.line}
    if place.module:
        name = {"fullyQualifiedName": visible(place.module), "kind": "module"}
        found["logicalLocations"] = [name]
    return found


def _artifact(path: str, root: str) -> dict[str, str]:
    """A file as a URI: below the root relative to it, elsewhere absolute."""
    pure = PurePosixPath(path)
    if pure.is_absolute() and root and pure.is_relative_to(root):
        pure = pure.relative_to(root)
    encoded = quote(str(pure), safe="/", errors="surrogatepass")
    if pure.is_absolute():
        return {"uri": f"file://{encoded}"}
    return {"uri": encoded, "uriBaseId": ROOT}


def _fingerprint(*parts: str) -> str:
    data = "\0".join(parts).encode(errors="surrogatepass")
    return hashlib.sha256(data).hexdigest()[:32]
