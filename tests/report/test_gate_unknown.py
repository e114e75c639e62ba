"""What nobody can tell: a gate passes it only where that is allowed, and every output says so."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from advisor.errors import InvalidRecordError
from advisor.model.findings import Finding
from advisor.model.gate import ComparisonLimit, GateResult
from advisor.report.annotations import to_annotations
from advisor.report.gate import judge
from advisor.report.gate_document import gate_document
from advisor.report.junit import to_junit
from advisor.report.markdown import to_markdown
from advisor.report.sarif import to_sarif
from tests.model.builders import captured, finding, price, report
from tests.report.test_gate import findings_gate
from tests.report.test_gate_outputs import assert_sarif, broken


def undecided() -> tuple[GateResult, GateResult]:
    """Two reports of which no graph and no matrix product is known; the same where that may be."""
    allowed = replace(findings_gate(max=99), comparison=ComparisonLimit(allow_unknown=True))
    same = report(), report()
    return judge(findings_gate(max=99), *same), judge(allowed, *same)


def test_what_cannot_be_compared_does_not_pass_unless_allowed() -> None:
    strict, allowed = undecided()
    assert (strict.status, allowed.status) == ("unknown", "passed")
    assert [check.name for check in strict.unknown] == ["same work as the baseline"]
    assert "not known of both: graph hash, work" in strict.unknown[0].text
    assert strict.checks == allowed.checks
    named = replace(findings_gate(max=99), comparison=ComparisonLimit(accept=("graph_hash",)))
    assert judge(named, report(), report()).unknown[0].text.endswith("of both: work")
    named = replace(named, comparison=ComparisonLimit(accept=("graph_hash", "work")))
    assert judge(named, report(), report()).status == "passed"
    assert judge(findings_gate(max=0), report(), report()).status == "failed", "it outranks"
    assert judge(findings_gate(max=99), report()).status == "passed", "without a baseline"


@pytest.mark.parametrize(
    ("limit", "status"),
    [
        ({"kind": "regression"}, "unknown"),
        ({"rule": "over-fusion"}, "unknown"),
        ({"kind": "note"}, "unknown"),
        ({}, "unknown"),
        ({"kind": "opportunity"}, "passed"),
        ({"rule": "pointwise-chain"}, "passed"),
        ({"kind": "regression", "rule": "pointwise-chain"}, "passed"),
    ],
)
def test_limits_that_hidden_losses_would_count_against_are_unknown(
    limit: dict[str, Any], status: str
) -> None:
    gate = findings_gate(max=9, **limit)
    assert judge(gate, captured(), captured(), untold="no step").status == status
    assert judge(gate, captured(), captured()).status == "passed"


DEAR, CHEAP = (
    finding("dear", saving=price(1, 90_000, 99_000)),
    finding("cheap", saving=price(1, 2, 3)),
)
UNPRICED, LOSS = finding("unpriced"), finding("loss", kind="regression")
BOUNDED = finding("bounded", saving=price(0, 0, 60_000))
SMALL = finding("small", saving=price(0, 0, 50_000))
NOTE = replace(finding("note", kind="note"), evidence=())
OPEN_NOTE = finding("open-note", kind="note")


@pytest.mark.parametrize(
    ("findings", "limit", "status", "counted"),
    [
        # Nobody can tell what it saves, and it would be one too many.
        ([UNPRICED], {}, "unknown", ["unpriced"]),
        ([LOSS], {"kind": "regression"}, "unknown", ["loss"]),
        ([OPEN_NOTE], {}, "unknown", ["open-note"]),
        ([BOUNDED], {}, "unknown", ["bounded"]),
        ([DEAR, UNPRICED], {"max": 1}, "unknown", ["dear", "unpriced"]),
        # What is known decides.
        ([DEAR, UNPRICED], {}, "failed", ["dear"]),
        ([UNPRICED], {"max": 1}, "passed", []),
        ([CHEAP, SMALL, NOTE], {}, "passed", []),
        ([UNPRICED], {"kind": "note"}, "passed", []),
        # Whoever writes the limit decides.
        ([CHEAP, UNPRICED], {"unpriced": "count"}, "failed", ["unpriced"]),
        ([DEAR, BOUNDED], {"unpriced": "count", "max": 1}, "failed", ["dear", "bounded"]),
        ([UNPRICED, CHEAP], {"unpriced": "count", "max": 1}, "passed", ["unpriced"]),
        ([UNPRICED, OPEN_NOTE], {"unpriced": "ignore"}, "passed", []),
        ([DEAR, UNPRICED], {"unpriced": "ignore"}, "failed", ["dear"]),
    ],
)
def test_findings_whose_saving_nobody_can_tell(
    findings: list[Finding], limit: dict[str, Any], status: str, counted: list[str]
) -> None:
    """A gate passed however much they may save."""
    subject = replace(report(), findings=tuple(findings))
    config = findings_gate(**{"max": 0, "saving_above_ns": 50_000, **limit})
    check = judge(config, subject).checks[-1]
    assert (check.status, list(check.findings)) == (status, counted)
    untold = [f for f in findings if f in (UNPRICED, BOUNDED, LOSS, OPEN_NOTE)]
    if limit.get("unpriced") != "count" and limit.get("kind") != "note":
        assert all(f.id in check.text for f in untold), "named in the text"
    if limit.get("unpriced") == "count" and untold:
        assert "(1 of them may save less)" in check.text, "what is counted is not known to save it"
    if status == "unknown":
        allowed = replace(config, comparison=ComparisonLimit(allow_unknown=True))
        assert judge(config, subject).status == "unknown"
        assert judge(allowed, subject).status == "passed"


def test_a_result_that_contradicts_its_checks_is_refused() -> None:
    strict, allowed = undecided()
    for wrong in (
        replace(strict, status="passed"),
        replace(allowed, allow_unknown=False),
        replace(strict, checks=strict.checks[:1]),
        replace(broken()[0], status="unknown"),
    ):
        with pytest.raises(InvalidRecordError):
            wrong.check()


def test_every_output_tells_what_is_unknown() -> None:
    strict, allowed = undecided()
    assert "error title=Gate%3A same work" in to_annotations(strict, report())
    assert "warning title=Gate%3A same work" in to_annotations(allowed, report())
    for result, element, code in ((strict, "error", 4), (allowed, "skipped", 0)):
        suite = ET.fromstring(to_junit(result, ""))[0]
        assert [case.get("name") for case in suite if case.find(element) is not None] == [
            "same work as the baseline"
        ]
        counts = (suite.get("errors"), suite.get("skipped"), suite.get("failures"))
        assert counts == (("1", "0", "0") if code else ("0", "1", "0"))
        log = to_sarif(result, report())
        assert (assert_sarif(log)[0]["kind"], assert_sarif(log)[0]["level"]) == ("open", "none")
        assert json.loads(log)["runs"][0]["invocations"][0]["exitCode"] == code
    markdown = to_markdown(gate_document(strict))
    assert markdown.startswith("# Gate undecided")
    assert "allow_unknown = true" in markdown
    assert to_markdown(gate_document(allowed)).startswith("# Gate passed as far as is known")
