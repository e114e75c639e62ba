"""The verdict of a gate as JUnit XML: one test case a check, as CI systems read it.

Elements and attributes are those that Jenkins, GitLab and GitHub actions agree on (testsuites,
testsuite, testcase, failure; error for a check that nobody can make, skipped where it may pass).
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from advisor.model.gate import GateResult
from advisor.report.document import visible

SUITE = "fusion-advisor gate"


def to_junit(result: GateResult, created: str) -> str:
    """The XML document; `created` is the time of the report, ISO 8601."""
    untold = "skipped" if result.allow_unknown else "error"
    counts = {
        "tests": str(len(result.checks)),
        "failures": str(len(result.failed)),
        "errors": str(len(result.unknown) if untold == "error" else 0),
        "skipped": str(len(result.unknown) if untold == "skipped" else 0),
    }
    root = ET.Element("testsuites", {"name": SUITE, **counts})
    named = {"name": visible(result.report), "timestamp": visible(created)}
    suite = ET.SubElement(root, "testsuite", {**named, **counts})
    for check in result.checks:
        case = ET.SubElement(
            suite, "testcase", classname="fusion_advisor.gate", name=visible(check.name), time="0"
        )
        if check.status == "failed":
            message = visible(check.text)
            failure = ET.SubElement(case, "failure", type=result.status, message=message)
            failure.text = message
        elif check.status == "unknown":
            ET.SubElement(case, untold, type=check.status, message=visible(check.text))
        else:
            ET.SubElement(case, "system-out").text = visible(check.text)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'
