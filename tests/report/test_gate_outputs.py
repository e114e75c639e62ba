"""What a gate found, in every form: SARIF, JUnit, annotations and documents say the same."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from advisor.model.base import Location, decode, encode
from advisor.model.gate import (
    GateConfig,
    GateResult,
    MetricLimit,
)
from advisor.model.report import Report
from advisor.model.schemas import schema_of
from advisor.report.annotations import to_annotations
from advisor.report.document import visible
from advisor.report.gate import judge
from advisor.report.gate_document import gate_document
from advisor.report.html import to_html
from advisor.report.junit import to_junit
from advisor.report.markdown import to_markdown
from advisor.report.sarif import to_sarif
from tests.model import strategies
from tests.model.builders import finding, price, report
from tests.report.test_forms import FORBIDDEN, HOSTILE, Page, assert_harmless, rendered
from tests.report.test_gate import findings_gate, metric_gate

# Every property that the SARIF 2.1.0 schema (OASIS) allows where we write.
SARIF: dict[str, set[str]] = {
    "log": {"$schema", "version", "runs", "inlineExternalProperties", "properties"},
    "run": {"tool", "invocations", "columnKind", "results", "artifacts", "originalUriBaseIds"},
    "driver": {"name", "version", "rules", "informationUri", "semanticVersion"},
    "rule": {"id", "name", "shortDescription", "fullDescription", "help", "helpUri"},
    "result": {
        "ruleId", "ruleIndex", "level", "kind", "message", "locations", "partialFingerprints",
        "properties",
    },
    "location": {"physicalLocation", "logicalLocations", "message", "id"},
    "physicalLocation": {"artifactLocation", "region", "contextRegion", "address"},
    "artifactLocation": {"uri", "uriBaseId", "index", "description"},
    "logicalLocation": {"name", "fullyQualifiedName", "kind", "index"},
}  # fmt: skip


def assert_sarif(text: str) -> list[dict[str, Any]]:
    """Closed property names, known words, resolvable indexes, absolute or based URIs."""
    log = json.loads(text)
    assert log.keys() <= SARIF["log"]
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert run.keys() <= SARIF["run"]
    driver = run["tool"]["driver"]
    assert driver.keys() <= SARIF["driver"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids))
    assert all(r.keys() <= SARIF["rule"] and r["shortDescription"]["text"] for r in driver["rules"])
    for result in run["results"]:
        assert result.keys() <= SARIF["result"]
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["level"] == "none" or result.get("kind", "fail") == "fail"
        assert result["message"]["text"]
        assert any("physicalLocation" in place for place in result["locations"])
        for place in result["locations"]:
            assert_place(place)
    found: list[dict[str, Any]] = run["results"]
    return found


def assert_place(place: dict[str, Any]) -> None:
    assert place.keys() <= SARIF["location"]
    for logical in place.get("logicalLocations", ()):
        assert logical.keys() <= SARIF["logicalLocation"]
    if "physicalLocation" in place:
        physical = place["physicalLocation"]
        assert physical.keys() <= SARIF["physicalLocation"]
        artifact = physical["artifactLocation"]
        assert artifact.keys() <= SARIF["artifactLocation"]
        assert artifact["uri"].startswith("file:///") != ("uriBaseId" in artifact)
        assert artifact["uri"].isascii()
        assert " " not in artifact["uri"]
        assert physical.get("region", {"startLine": 1})["startLine"] >= 1


def broken(
    title: str = "Spills", file: str | None = "/src/a model.py"
) -> tuple[GateResult, Report]:
    """A report with a regression that breaks the gate, and an opportunity that does not."""
    loss = replace(
        finding("loss", saving=price(1, 2, 3), kind="regression"),
        title=title,
        locations=(Location(module="m.layer", file=file, line=12),),
    )
    subject = replace(report(), findings=(loss, replace(finding("gain"), title="Gain")))
    return judge(findings_gate(max=0, kind="regression"), subject, labels=("r.json", "")), subject


def test_sarif_marks_what_broke_the_gate() -> None:
    result, subject = broken()
    check, loss, gain = assert_sarif(to_sarif(result, subject, "/src"))
    assert (check["ruleId"], check["level"]) == ("gate", "error")
    assert (loss["level"], gain["level"]) == ("error", "note")
    place = loss["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "a%20model.py", "uriBaseId": "%SRCROOT%"}
    assert place["region"] == {"startLine": 12}
    elsewhere = assert_sarif(to_sarif(result, subject, "/other"))[1]
    artifact = elsewhere["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "file:///src/a%20model.py"}
    assert loss["partialFingerprints"] == elsewhere["partialFingerprints"]


def test_a_finding_without_a_file_is_placed_at_the_report() -> None:
    result, subject = broken(file=None)
    loss = assert_sarif(to_sarif(result, subject))[1]
    assert loss["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "r.json"


def test_junit_counts_and_names_the_checks() -> None:
    result, subject = broken()
    suite = ET.fromstring(to_junit(result, subject.created))[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = [case for case in suite if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["regressions"]
    assert "Spills (loss)" in (failed[0].find("failure").text or "")  # type: ignore[union-attr]


def test_annotations_point_at_the_line() -> None:
    result, subject = broken(title="50% worse,\n::error::x", file="a,b:c.py")
    assert to_annotations(result, subject) == (
        "::error title=Gate%3A regressions,file=a%2Cb%3Ac.py,line=12::"
        "1 found, at most 0 allowed: 50%25 worse,\\n::error::x (loss)\n"
    )
    passing = judge(findings_gate(max=9), subject)
    assert to_annotations(passing, subject).startswith("::warning title=50%25 worse%2C\\n")


def test_no_more_annotations_than_are_shown() -> None:
    many = tuple(
        replace(finding(f"f{n}", saving=price(1, 2, 3), kind="regression"), locations=())
        for n in range(30)
    )
    subject = replace(report(), findings=many)
    lines = to_annotations(judge(findings_gate(max=99), subject), subject).splitlines()
    assert len(lines) == 10
    assert lines[-1] == "::notice title=Gate::and 21 more"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_titles_stay_text(text: str) -> None:
    result, subject = broken(title=text, file=text)
    assert_sarif(to_sarif(result, subject, "/src"))
    suite = ET.fromstring(to_junit(result, subject.created))
    assert any(visible(text) in (node.text or "") for node in suite.iter("failure"))
    annotations = to_annotations(result, subject)
    assert annotations.count("\n") == len(annotations.splitlines()) == 1
    document = gate_document(result)
    assert not rendered(to_markdown(document))[0] & FORBIDDEN
    assert_harmless(Page(to_html("t", document)))


CONFIGS = st.sampled_from(
    [
        findings_gate(max=0),
        findings_gate(max=9, kind="opportunity", saving_above_ns=5),
        metric_gate(max=5),
        GateConfig(metric=(MetricLimit(name="step_ns", max_increase=0.1),)),
    ]
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(config=CONFIGS, subject=strategies.reports(), baseline=strategies.reports())
def test_any_report_is_judged_and_written(
    config: GateConfig, subject: Report, baseline: Report
) -> None:
    result = judge(config, subject, baseline)
    data = encode(result)
    Draft202012Validator(schema_of("verdict")).validate(json.loads(data))
    assert decode(data, GateResult) == result
    assert (result.status == "passed") <= bool(subject.kernels and baseline.kernels)
    assert_sarif(to_sarif(result, subject))
    root = ET.fromstring(to_junit(result, subject.created))
    assert len(root.findall(".//failure")) == len(result.failed)
    assert to_annotations(result, subject).count("::error") >= bool(result.failed)
    assert len(root.findall(".//error")) == len(result.unknown)
