"""Plans, graphs and reports come from strangers: planted faults meet the one error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from advisor.errors import InvalidRecordError
from advisor.model.applied import Applied
from advisor.model.base import MAX_RECORD_BYTES, decode, encode
from advisor.model.cures import Retuned
from advisor.model.graph import Graph, is_value, literal_value
from advisor.model.optable import BY_NAME, DTYPES
from advisor.model.plan import FusionPlan
from advisor.model.plan_checks import MAX_OPS, MAX_SITES, MAX_SIZE
from advisor.model.report import Report
from tests.builders.scan_plans import decayed
from tests.model import builders

Json = Any
Fault = Callable[[Json], object]
NEWLINE_NAME = "v0\nimport os"


def _set(*path: str | int, to: Json) -> Fault:
    """An edit that puts `to` at `path`."""

    def edit(body: Json) -> None:
        for key in path[:-1]:
            body = body[key]
        body[path[-1]] = to

    return edit


RUN_TIME = {"row_sizes": [], "column_sizes": [{"coefficient": 1}], "input_strides": []}
PLAN_FAULTS: dict[str, Fault] = {
    "newline in an op name": _set("ops", 0, "name", to=NEWLINE_NAME),
    "newline after an op name": _set("ops", 0, "name", to="v0\n"),
    "newline in an input name": _set("inputs", 0, "name", to="in0\n"),
    "other digits in a name": _set("ops", 1, "name", to="v\u0661"),
    "name out of order": _set("ops", 1, "name", to="v2"),
    "newline in an output": _set("outputs", 0, "value", to="v7\n"),
    "an input as output": _set("outputs", 0, "value", to="in0"),
    "output twice": lambda body: body["outputs"].append(body["outputs"][0]),
    "no outputs": _set("outputs", to=[]),
    "output in another dtype": _set("outputs", 0, "dtype", to="float32"),
    "output in another space": _set("outputs", 0, "space", to="row"),
    "unknown op": _set("ops", 1, "op", to="system"),
    "view op": _set("ops", 1, "op", to="reshape"),
    "opaque op": _set("ops", 1, "op", to="opaque"),
    "use before definition": _set("ops", 1, "args", to=["v0", "v5"]),
    "use of itself": _set("ops", 1, "args", to=["v0", "v1"]),
    "code as an argument": _set("ops", 1, "args", to=["v0", "__import__('os')"]),
    "None as an argument": _set("ops", 1, "args", to=["v0", None]),
    "too few arguments": _set("ops", 1, "args", to=["v0"]),
    "unknown dtype": _set("ops", 1, "dtype", to="float7"),
    "code as a dtype": _set("inputs", 0, "dtype", to="float32)\nos.system("),
    "cast to another dtype": _set("ops", 0, "attributes", "dtype", to="float16"),
    "attribute that does not belong": _set("ops", 1, "attributes", to={"axis": 1}),
    "attribute missing": _set("ops", 0, "attributes", to={}),
    "wrong space": _set("ops", 2, "space", to="tile"),
    "unknown space": _set("ops", 2, "space", to="warp"),
    "id with a path": _set("id", to="../../etc/passwd"),
    "id with a newline": _set("id", to="0123456789abcdef\n"),
    "backward id with a path": _set("backward_plan", to="../x"),
    "negative size": _set("sites", 0, "columns", to=-1),
    "huge size": _set("sites", 0, "columns", to=MAX_SIZE + 1),
    "huge stride": _set("sites", 0, "input_strides", 0, 0, to=MAX_SIZE + 1),
    "size beyond 64 bits": _set("sites", 0, "columns", to=2**80),
    "too many rows axes": _set("row_axes", to=7),
    "too many column axes": _set("column_axes", to=5),
    "no column axis": _set("column_axes", to=0),
    "column axes without sizes": _set("column_axes", to=2),
    "sizes of column axes that there are not": _set("sites", 0, "column_sizes", to=[1, 2048]),
    "segments of a single column axis": _set("inputs", 1, "segments", to=[True]),
    "a strided output without strides": _set("outputs", 0, "strided", to=True),
    "strides of an output without any": _set("sites", 0, "output_strides", to=[[1, 1]]),
    "rank that does not fit": _set("inputs", 0, "spans", to=[True]),
    "site without strides": _set("sites", 0, "input_strides", to=[]),
    "unlike sizes at run time": _set("sites", 0, "run_time", to=RUN_TIME),
    "site with another rank": _set("sites", 0, "row_sizes", to=[1, 2]),
    "site without inputs": _set("sites", 0, "inputs", to=[]),
    "too many sites": lambda body: body.update(sites=body["sites"][:1] * (MAX_SITES + 1)),
    "too many ops": lambda body: body.update(ops=body["ops"] * MAX_OPS),
    "range out of order": _set("prediction", "saving_ns", "low", to=10**9),
    "negative traffic": _set("prediction", "bytes_before", to=-1),
    "negative executions": _set("sites", 0, "executions", to=-1.0),
    "another schema version": _set("schema_version", to=2),
    "another family": _set("family", to="gemm"),
    "number where a name is due": _set("ops", 0, "op", to=3),
}

GRAPH_FAULTS: dict[str, Fault] = {
    "duplicate node": _set("nodes", 1, "id", to="x"),
    "cycle": _set("nodes", 1, "args", to=["%total", "%x"]),
    "use of itself": _set("nodes", 1, "args", to=["%square", "%x"]),
    "unknown value": _set("nodes", 1, "args", to=["%nowhere", "%x"]),
    "output that is no number": _set("nodes", 1, "args", to=["%x#first", "%x"]),
    "output beyond the outputs": _set("nodes", 1, "args", to=["%x#7", "%x"]),
    "mutation of nothing": _set("nodes", 1, "mutates", to=["%nowhere"]),
    "mutation without a sign": _set("nodes", 1, "mutates", to=["x"]),
    "alias of nothing": _set("nodes", 1, "alias_of", to="%nowhere"),
    "graph output of nothing": _set("outputs", 0, to="%nowhere"),
    "graph output without a sign": _set("outputs", 0, to="total"),
    "graph input of nothing": _set("inputs", 0, to="nowhere"),
    "unknown op": _set("nodes", 1, "op", to="launch_missiles"),
    "wrong arity": _set("nodes", 1, "args", to=["%x"]),
    "unknown dtype": _set("nodes", 1, "outputs", 0, "dtype", to="float7"),
    "negative size": _set("nodes", 1, "outputs", 0, "shape", 0, to=-4),
    "rank that does not fit": _set("nodes", 1, "outputs", 0, "strides", to=[1]),
    "empty id": _set("nodes", 1, "id", to=""),
    "id that looks like a value": _set("nodes", 3, "id", to="%two"),
}

REPORT_FAULTS: dict[str, Fault] = {
    "finding twice": lambda body: body["findings"].append(body["findings"][0]),
    "plan twice": lambda body: body["plans"].append(body["plans"][0]),
    "unknown plan": _set("findings", 0, "plan_id", to="f" * 16),
    "unknown plan in an alternative": _set(
        "findings", 0, "alternatives", 0, "plan_ids", to=["f" * 16]
    ),
    "recommended but absent": _set("recommended", "order", to=["nothing"]),
    "finding id with a path": _set("findings", 0, "id", to="../x"),
    "finding id with a newline": _set("findings", 0, "id", to="row-program.0\n"),
    "plan id with a path": _set("plans", 0, "id", to="../../x"),
    "saving out of order": _set("findings", 0, "exposed_saving_ns", "low", to=10**9),
    "set saving out of order": _set("recommended", "set_saving_ns", "low", to=10**9),
    "unpriced without a reason": _set("findings", 0, "exposed_saving_ns", to=None),
    "unknown kind": _set("findings", 0, "kind", to="rumour"),
    "another schema version": _set("schema_version", to=99),
}

APPLIED_FAULTS: dict[str, Fault] = {
    "set keeps a reverted plan": _set("plans", 0, "verdict", to="reverted"),
    "gain out of order": _set("plans", 0, "measured", "gain_low_ns", to=10**12),
    "timing out of order": _set("set", "against_eager", "before", "low_ns", to=10**12),
    "no samples": _set("plans", 0, "timings", 0, "kernel", "samples", to=0),
    "prediction out of order": _set("plans", 0, "predicted_ns", "low", to=10**12),
    "another schema version": _set("schema_version", to=99),
}

CASES = [
    *((FusionPlan, builders.plan, name, fault) for name, fault in PLAN_FAULTS.items()),
    *((Graph, builders.graph, name, fault) for name, fault in GRAPH_FAULTS.items()),
    *((Report, builders.report, name, fault) for name, fault in REPORT_FAULTS.items()),
    *((Applied, builders.applied, name, fault) for name, fault in APPLIED_FAULTS.items()),
]


@pytest.mark.parametrize(
    ("kind", "build", "fault"),
    [pytest.param(k, b, f, id=f"{k.__name__}: {name}") for k, b, name, f in CASES],
)
def test_planted_faults_are_refused(kind: Any, build: Any, fault: Fault) -> None:
    body = json.loads(encode(build()))
    decode(json.dumps(body).encode(), kind)
    fault(body)
    with pytest.raises(InvalidRecordError) as caught:
        decode(json.dumps(body).encode(), kind, "stranger.json")
    assert "\n" not in caught.value.line()


HOSTILE_VALUES: list[Json] = [
    "", "\n", "v0\n", "in0", "%x#", "%#", "%x#-1", "%x#999999999999999999999", "../..", "é" * 300,
    "nan", "inf",
    -1, 0, 2**40 + 1, 2**63, 2**200, -(2**63), 1e308, 0.5, True, None, [], {}, [[[]]], {"a": 1},
]  # fmt: skip


def _places(body: Json, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every path in a JSON document below its root."""
    items: Any = ()
    if isinstance(body, dict):
        items = body.items()
    elif isinstance(body, list):
        items = enumerate(body)
    return [p for key, value in items for p in ((*path, key), *_places(value, (*path, key)))]


@pytest.mark.parametrize(
    ("kind", "build"),
    [
        (FusionPlan, builders.plan),
        (Graph, builders.graph),
        (Report, builders.report),
        (Applied, builders.applied),
    ],
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_edit_is_refused_or_harmless(kind: Any, build: Any, data: st.DataObject) -> None:
    body = json.loads(encode(build()))
    place = data.draw(st.sampled_from(_places(body)))
    _set(*place, to=data.draw(st.sampled_from(HOSTILE_VALUES)))(body)
    try:
        record = decode(json.dumps(body).encode(), kind)
    except InvalidRecordError:
        return
    if isinstance(record, FusionPlan):
        assert_only_table_words(record)


def assert_only_table_words(plan: FusionPlan) -> None:
    """What code generation reads of a plan is generated names, table words and numbers."""
    names = {item.name for item in plan.inputs} | {op.name for op in plan.ops}
    assert all(re.fullmatch(r"(in|v)[0-9]{1,4}", name, re.ASCII) for name in names)
    for op in plan.ops:
        assert op.op in BY_NAME
        assert op.dtype in DTYPES
        for arg in op.args:
            assert arg in names or isinstance(literal_value(arg), (int, float))
    assert {output.value for output in plan.outputs} <= names


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"id": "\\ud800"}', b"1e999"],
)
def test_bytes_that_are_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="not a valid FusionPlan"):
        decode(data, FusionPlan)


def test_an_overlong_file_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(InvalidRecordError, match="more than"):
        decode(b" " * (MAX_RECORD_BYTES + 1), FusionPlan)


def test_values_and_literals_are_told_apart() -> None:
    assert is_value("%x")
    assert not is_value("nan")
    with pytest.raises(InvalidRecordError):
        literal_value("x")


def test_a_broken_invariant_names_the_file() -> None:
    body = json.loads(encode(builders.applied()))
    body["schema_version"] = 99
    with pytest.raises(InvalidRecordError, match=r"^run/applied\.json: applied\.json schema 99"):
        decode(json.dumps(body).encode(), Applied, "run/applied.json")


def test_a_scan_whose_tensor_has_no_strides_is_refused() -> None:
    plan = decayed((2, 9, 1))
    plan.check()
    (*rest, last) = plan.outputs
    bare = replace(plan, outputs=(*rest, replace(last, strided=False)))
    with pytest.raises(InvalidRecordError, match="strides"):
        bare.check()


def test_a_launch_gives_sizes_of_blocks_only() -> None:
    known = Retuned(kernel="k", source="0" * 64, blocks={"R0_BLOCK": 64}, num_warps=4, num_stages=1)
    known.check()
    for name in ("x, num_ctas=2, BLOCK", "\nBLOCK", "BLOCKS"):
        with pytest.raises(InvalidRecordError, match="block"):
            replace(known, blocks={name: 64}).check()
