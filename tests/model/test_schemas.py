"""Every record survives encode and decode, fits its schema file, and the files equal the types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from advisor.errors import InvalidRecordError, UsageError
from advisor.model.base import Record, decode, encode
from advisor.model.comparison import ReportComparison
from advisor.model.forward import Forwards
from advisor.model.gate import GateResult
from advisor.model.resources import Cliff, ResourceTable
from advisor.model.run import Progress, RunInfo
from advisor.model.schemas import DIRECTORY, RECORDS, schema_of, schema_text, write_schemas
from advisor.model.scores import Scores
from advisor.model.step_record import StepRecord
from tests.model import builders, judged, strategies

NAMES = [name for name, _, _ in RECORDS]
VALIDATORS = {name: Draft202012Validator(schema_of(name)) for name in NAMES}
KINDS = {name: kind for name, kind, _ in RECORDS}
EXAMPLES: dict[str, Any] = {
    "report": builders.report,
    "plan": builders.plan,
    "graph": builders.graph,
    "applied": builders.applied,
    "run": builders.run_info,
    "progress": builders.progress,
    "comparison": judged.report_comparison,
    "gate": judged.gate_config,
    "verdict": judged.gate_result,
    "scores": judged.scores,
    "resources": judged.resource_table,
    "step": builders.step_record,
    "cliff": judged.cliff,
    "forwards": builders.forwards,
}
ANY_RECORD: dict[str, st.SearchStrategy[Any]] = {
    "report": strategies.reports(),
    "plan": strategies.plans(),
    "graph": strategies.graphs(),
    "applied": strategies.applications(),
    "run": strategies.records(RunInfo),
    "progress": strategies.records(Progress),
    "comparison": strategies.records(
        ReportComparison,
        comparability=strategies.comparability(),
        regressions=st.just(()),
        bisection=st.none(),
    ),
    "gate": strategies.gate_configs(),
    "verdict": strategies.records(
        GateResult, status=st.just("failed"), comparability=st.none() | strategies.comparability()
    ),
    "scores": strategies.records(Scores),
    "resources": strategies.records(ResourceTable),
    "step": strategies.records(
        StepRecord,
        launches=st.just(builders.step_record().launches),
        busy_ns=st.just(builders.step_record().busy_ns),
        span_ns=st.just(builders.step_record().span_ns),
    ),
    "forwards": strategies.records(Forwards, plans=st.just(builders.forwards().plans)),
    "cliff": strategies.records(Cliff, points=st.just(()), falls_at=st.none()),
}


def assert_round_trip(name: str, record: Record) -> None:
    data = encode(record)
    again = decode(data, KINDS[name])
    assert again == record
    assert encode(again) == data
    VALIDATORS[name].validate(json.loads(data))


@pytest.mark.parametrize("name", NAMES)
def test_files_equal_the_types(name: str) -> None:
    stored = (DIRECTORY / f"{name}.json").read_text(encoding="utf-8")
    assert stored == schema_text(name), "run `make schemas`"


def test_no_stale_schema_file() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.json")} == set(NAMES)


def test_writing_again_changes_nothing(tmp_path: Any) -> None:
    assert [p.read_text() for p in write_schemas(tmp_path)] == [schema_text(n) for n in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_valid_and_closed(name: str) -> None:
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    assert all(part["additionalProperties"] is False for part in schema["$defs"].values())


@pytest.mark.parametrize("name", NAMES)
def test_examples_round_trip(name: str) -> None:
    assert_round_trip(name, EXAMPLES[name]())


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_record_round_trips(name: str, data: st.DataObject) -> None:
    assert_round_trip(name, data.draw(ANY_RECORD[name]))


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_field_is_refused_by_type_and_schema(name: str) -> None:
    body = json.loads(encode(EXAMPLES[name]()))
    body["surprise"] = 1
    assert not VALIDATORS[name].is_valid(body)
    with pytest.raises(InvalidRecordError, match="surprise"):
        decode(json.dumps(body).encode(), KINDS[name])


def test_an_unknown_schema_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="report, plan, graph"):
        schema_of("nothing")
