"""Scans in Triton's interpreter beside float64: every scheme, dtype, length; random recurrences."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.codegen import render
from advisor.codegen.standalone import Standalone, render_standalone
from advisor.errors import InvalidRecordError
from advisor.hardware.gpus import gpu_by_key
from advisor.model.configs import candidate_configs, schemes_of
from advisor.model.launch import UNROLLED, LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.model.scan import linear_path
from advisor.pipeline.sizing import requests, spills
from advisor.verify.cases import Case, make_inputs
from advisor.verify.interpret import evaluate
from advisor.verify.resources import resources_of
from tests.builders.scan_plans import ScanBuilder, decayed, gated, selective
from tests.codegen.interpreter import Interpreter

OPTIONS: dict[Scheme, dict[str, int]] = {
    "scan_steps": {"num_stages": 1},
    "scan_blocks": {"block_steps": 16},
    "scan_chunks": {"splits": 3},
}
WHOLE = "FUSION_ADVISOR_MATRIX"
LENGTHS = (0, 1, 7, 128, 1000)
DTYPES = ("float32", "bfloat16", "float16")


def launched(
    interpreter: Interpreter, plan: FusionPlan, scheme: Scheme, case: Case, **more: int
) -> tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]:
    """(the inputs of a case, what the kernel writes)."""
    inputs = make_inputs(plan, case, torch.device("cpu"), seed=3)
    shapes = [
        (output.shape(case.row_sizes, case.column_sizes), getattr(torch, output.dtype))
        for output in plan.outputs
    ]
    source = render(plan, scheme).text
    options: dict[str, Any] = OPTIONS[scheme] | more
    return inputs, interpreter.run(source, inputs, shapes, case.block_rows, **options)


def check(interpreter: Interpreter, plan: FusionPlan, scheme: Scheme, case: Case) -> None:
    """Right, and the same bit for bit however many steps a turn takes."""
    inputs, found = launched(interpreter, plan, scheme, case)
    for output, mine, truth in zip(
        plan.outputs, found, evaluate(plan, inputs, "exact"), strict=True
    ):
        near = 2e-2 if output.dtype != "float32" else 2e-4
        wanted = truth.expand(mine.shape)
        torch.testing.assert_close(mine.double(), wanted, rtol=near, atol=near)
    if scheme in UNROLLED and case.row_sizes[-1]:
        _, by_turns = launched(interpreter, plan, scheme, case, unroll=4)
        assert all(map(torch.equal, by_turns, found))


@pytest.mark.parametrize(
    ("scheme", "dtype", "steps"),
    [
        ("scan_steps", "float32", 0), ("scan_steps", "bfloat16", 7), ("scan_steps", "float16", 128),
        ("scan_steps", "float32", 1000), ("scan_blocks", "bfloat16", 0),
        ("scan_blocks", "float16", 1), ("scan_blocks", "float32", 7),
        ("scan_blocks", "bfloat16", 128), ("scan_chunks", "float16", 0),
        ("scan_chunks", "bfloat16", 1), ("scan_chunks", "float32", 128),
        ("scan_chunks", "float16", 7),
    ],
)  # fmt: skip
def test_pairs_of_scheme_dtype_and_length(
    interpreter: Interpreter, scheme: Scheme, dtype: str, steps: int
) -> None:
    columns = 5 if steps in (7, 1) else 2
    plan = selective((3, max(steps, 1), columns), dtype)
    lanes = 1 if steps > 128 else 3
    check(interpreter, plan, scheme, Case("", (lanes, steps), (columns,), "normal", 2))


@pytest.mark.skipif(not os.environ.get(WHOLE), reason=f"{WHOLE}=1 runs the whole matrix")
@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", list(OPTIONS))
def test_the_whole_matrix(interpreter: Interpreter, scheme: Scheme, dtype: str, steps: int) -> None:
    plan = selective((3, max(steps, 1), 5), dtype)
    check(interpreter, plan, scheme, Case("", (3, steps), (5,), "normal", 2))


@pytest.mark.parametrize("scheme", list(OPTIONS))
@pytest.mark.parametrize("back", [False, True])
def test_either_direction_from_a_state_that_is_given(
    interpreter: Interpreter, scheme: Scheme, back: bool
) -> None:
    plan = decayed((4, 20, 1), back=back, given=True)
    check(interpreter, plan, scheme, Case("", (5, 21), (1,), "normal", 4))


def test_steps_that_are_not_linear_are_taken_one_by_one(interpreter: Interpreter) -> None:
    plan = gated((3, 9, 1))
    assert linear_path(plan) is None
    assert schemes_of(plan) == ("scan_steps",)
    check(interpreter, plan, "scan_steps", Case("", (3, 9), (1,), "normal", 2))


@st.composite
def recurrences(draw: st.DrawFn) -> FusionPlan:
    """A legal step: a few ops on inputs, a state that decays, what is read out of it."""
    columns = draw(st.sampled_from((1, 3)))
    made = ScanBuilder((3, 6, columns))
    wide = columns > 1
    spans = st.tuples(st.booleans(), st.booleans(), st.just(wide))
    whole = made.input((True, True, wide), reverse=draw(st.booleans()))
    known = [whole, *(made.input(draw(spans)) for _ in range(draw(st.integers(0, 2))))]
    known = [name for name in known if made.spaces[name] != "scalar"]
    for _ in range(draw(st.integers(0, 4))):
        op = draw(st.sampled_from(("add", "mul", "sub", "tanh", "maximum", "sigmoid", "where")))
        args: list[Any] = [draw(st.sampled_from(known)) for _ in range(2)]
        if op == "where":
            known.append(made.op("where", made.op("gt", args[0], 0.1), *args))
        else:
            known.append(made.op(op, *args[: 1 if op in ("tanh", "sigmoid") else 2]))
    state = made.state(tile=wide)
    factor = made.op("tanh", draw(st.sampled_from(known)))
    kind = draw(st.sampled_from(("linear", "twice", "negative", "divided", "fused", "bounded")))
    old = made.op("neg", state) if kind == "negative" else state
    if kind == "divided":
        old = made.op("div", old, 1.5)
    term = draw(st.sampled_from(known))
    if kind == "fused":
        new = made.op("fma", factor, old, term)
    else:
        new = made.op("add", made.op("mul", factor, old), term)
    if kind == "twice":  # s' = f s + x - s / 4: the state is read twice
        new = made.op("sub", new, made.op("mul", 0.25, state))
    if kind == "bounded":
        new = made.op("tanh", new)
    if made.spaces[new] != made.spaces[state]:
        new = made.op("add", new, made.op("mul", whole, 0.0))
    made.keep(state, new, draw(st.sampled_from((0.0, -0.5))))
    if wide:
        made.output(made.op(draw(st.sampled_from(("sum", "mean"))), made.op("mul", new, whole)))
    else:
        made.output(new, reverse=draw(st.booleans()))
    if draw(st.booleans()):
        made.output(new, last=True)
    return made.plan()


@settings(max_examples=14, deadline=None, suppress_health_check=list(HealthCheck))
@given(recurrences(), st.integers(1, 9))
def test_random_recurrences(interpreter: Interpreter, plan: FusionPlan, steps: int) -> None:
    columns = (plan.sites[0].columns,)
    for scheme in schemes_of(plan):
        check(interpreter, plan, scheme, Case("", (3, steps), columns, "normal", 2))


@given(recurrences())
@settings(max_examples=40, deadline=None)
def test_every_scheme_has_a_source_and_a_launch(plan: FusionPlan) -> None:
    for scheme in schemes_of(plan):
        assert render(plan, scheme).text == render(plan, scheme).text
        compile(render(plan, scheme).text, "kernel", "exec")
    configs = candidate_configs(plan, plan.sites[0])
    assert configs
    text = render_standalone(Standalone(plan, configs[0], "not timed"))
    compile(text, "kernel", "exec")


def test_few_lanes_with_many_steps_share_them_and_many_lanes_do_not() -> None:
    few = candidate_configs(selective((8, 1 << 16, 16)), selective((8, 1 << 16, 16)).sites[0])
    many = selective((1 << 16, 64, 16))
    assert few[0].scheme == "scan_chunks"
    assert all(c.scheme != "scan_chunks" for c in candidate_configs(many, many.sites[0]))


@pytest.mark.usefixtures("forked_compilers")
def test_nothing_spills_on_the_card_it_is_chosen_for(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = selective((1536, 64, 16), "bfloat16")
    first: dict[Scheme, LaunchConfig] = {}
    for config in candidate_configs(plan, plan.sites[0]):
        first.setdefault(config.scheme, config)
    wanted = [request for config in first.values() for request in requests(plan, config)]
    rows = resources_of(wanted, [gpu_by_key("h200")])
    assert [row[0].error for row in rows] == [None] * len(wanted)
    assert not any(spills(row[0]) for row in rows)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"states": ()}, "0 states"),
        ({"family": "row_program"}, "1 states"),
        ({"initial": "in0"}, "not the same in all steps"),
        ({"name": "s1"}, "not named s0"),
        ({"value": "v99"}, "nothing makes it"),
        ({"dtype": "int32"}, "another dtype"),
        ({"initial": "open('x')"}, "not a literal"),
    ],
)
def test_hostile_states_are_refused(change: dict[str, Any], what: str) -> None:
    plan = selective((3, 4, 5))
    own = {name: value for name, value in change.items() if name in ("states", "family")}
    state = {name: value for name, value in change.items() if name not in own}
    states = (msgspec.structs.replace(plan.states[0], **state),)
    with pytest.raises(InvalidRecordError, match=what):
        msgspec.structs.replace(plan, **({"states": states} | own)).check()


@pytest.mark.parametrize("scheme", ["scan_steps", "scan_blocks", "scan_chunks"])
def test_inputs_of_eight_bits_are_widened_where_they_are_read(
    interpreter: Interpreter, scheme: Scheme
) -> None:
    made = ScanBuilder((3, 20, 1))
    a = made.input((True, True, False))
    b = made.input((True, True, False), "float8_e5m2")
    state = made.state(tile=False)
    wide = made.op("cast", b, dtype="float32")
    value = made.op("add", made.op("mul", made.op("sigmoid", a), state), wide)
    made.keep(state, value)
    made.output(value)
    check(interpreter, made.plan(), scheme, Case("eight bits", (3, 20), (1,), "normal"))
