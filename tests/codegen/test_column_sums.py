"""Reductions over the rows, alone and beside reductions along them: what the kernels compute.

`FUSION_ADVISOR_MATRIX=1` runs every program × dtype × shape × scheme in place of a selection.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from advisor.codegen import abi, render
from advisor.codegen.launches import launches
from advisor.errors import IllegalFusionError, InvalidRecordError
from advisor.model.column_configs import workspace_bytes
from advisor.model.configs import candidate_configs, default_config, schemes_of
from advisor.model.launch import LaunchConfig, Scheme, grid_size, unsuitable
from advisor.model.plan import FusionPlan
from advisor.model.site_work import site_bytes
from advisor.model.spaces import OVER
from advisor.verify.interpret import evaluate
from tests.builders.plan import PlanBuilder
from tests.codegen import plans
from tests.codegen.interpreter import Interpreter
from tests.codegen.programs import FLOATS, Program, column_programs, magnitude
from tests.codegen.test_schemes import assert_right, run

EXAMPLES = int(os.environ.get("FUSION_ADVISOR_EXAMPLES", "20"))
WHOLE_MATRIX = bool(os.environ.get("FUSION_ADVISOR_MATRIX"))
ROWS, COLUMNS = (1, 7, 1000), (1, 7, 128, 1000, 4097)
NAMED: dict[str, Callable[..., FusionPlan]] = {
    "norm gradient": plans.norm_gradient,
    "bias gradient": plans.bias_gradient,
    "column statistics": plans.column_statistics,
}


def config_of(
    plan: FusionPlan, scheme: Scheme, *, rows: int = 4, block: int = 64, splits: int = 3
) -> LaunchConfig:
    """A configuration of a scheme; whole rows where the plan needs them."""
    held = "column_walk" not in schemes_of(plan)
    return LaunchConfig(
        scheme=scheme,
        block_rows=rows,
        block_columns=None if held else block,
        splits=splits if scheme == "column_sums" else None,
    )


def matrix() -> list[tuple[str, Scheme, str, int, int]]:
    """All combinations, or a third of them in which every pair of factors occurs."""
    every = [
        (name, scheme, dtype, rows, columns)
        for name, make in NAMED.items()
        for scheme in schemes_of(make())
        for dtype in FLOATS
        for rows in ROWS
        for columns in COLUMNS
    ]
    if WHOLE_MATRIX:
        return every
    return [
        case
        for case in every
        if (FLOATS.index(case[2]) + ROWS.index(case[3]) + COLUMNS.index(case[4])) % 3 == 0
        and not (case[2] != "float32" and case[3] * case[4] > 100_000)
        # The interpreter calls a combiner once an element.
        and not (case[0] == "column statistics" and (case[3] * case[4] > 10_000 or case[4] > 1000))
    ]


@pytest.mark.parametrize(("name", "scheme", "dtype", "rows", "columns"), matrix())
def test_named_programs(
    name: str, scheme: Scheme, dtype: str, rows: int, columns: int, interpreter: Interpreter
) -> None:
    plan = NAMED[name](dtype, columns=columns)
    sizes = (rows,) if plan.row_axes == 1 else (rows // 2 or 1, 2)
    inputs = Program(plan, sizes, columns, 1, seed=rows + columns).inputs()
    block = 1024 if columns > 128 else 16
    config = config_of(plan, scheme, rows=2 if rows <= 7 else 16, block=block)
    # A sum of a thousand products of values up to 2.
    assert_right(plan, inputs, run(interpreter, plan, inputs, config), 4.0 * rows**0.5)


@given(program=column_programs(), data=st.data())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_random_programs(program: Program, data: st.DataObject, interpreter: Interpreter) -> None:
    inputs = program.inputs()
    size = magnitude(program, inputs)
    assume(size < 1e4)
    scheme = data.draw(st.sampled_from(schemes_of(program.plan)))
    config = config_of(
        program.plan,
        scheme,
        rows=program.block_rows,
        block=data.draw(st.sampled_from((4, 16, 32))),
        splits=data.draw(st.integers(1, 5)),
    )
    assert_right(program.plan, inputs, run(interpreter, program.plan, inputs, config), size)


@pytest.mark.parametrize("scheme", ["column_sums", "column_walk"])
def test_no_rows_have_the_sum_of_nothing(scheme: Scheme, interpreter: Interpreter) -> None:
    make = PlanBuilder()
    x = make.input()
    results = (make.over_rows("sum", x), make.over_rows("mean", x))
    plan = make.plan(*results, make.over_rows("var", x, correction=1.0), make.op("exp", x))
    inputs = [torch.zeros(0, 5)]
    got = run(interpreter, plan, inputs, config_of(plan, scheme))
    torch.testing.assert_close(got, evaluate(plan, inputs, "native"), equal_nan=True)


@pytest.mark.parametrize("scheme", ["column_sums", "column_walk"])
def test_values_that_are_no_numbers(scheme: Scheme, interpreter: Interpreter) -> None:
    """A column with NaN or an infinity has it in its result, and no other column has."""
    plan = plans.column_statistics("float32", columns=6)
    x = torch.arange(42, dtype=torch.float32).reshape(7, 1, 6)
    x[3, 0, 1], x[0, 0, 2], x[6, 0, 3] = float("nan"), float("inf"), float("-inf")
    x[:, 0, 4] = 1e15
    inputs = [x, torch.ones(7, 1, 1)]
    got = run(interpreter, plan, inputs, config_of(plan, scheme, rows=2, block=4))
    for mine, want in zip(got, evaluate(plan, inputs, "native"), strict=True):
        torch.testing.assert_close(mine, want, equal_nan=True)


def test_every_way_to_share_the_rows_gives_nearly_the_same_and_the_same_way_the_same_bits(
    interpreter: Interpreter,
) -> None:
    plan = plans.norm_gradient("float32", columns=96)
    inputs = Program(plan, (50,), 96, 1, seed=3).inputs()
    exact = evaluate(plan, inputs, "exact")
    for splits in (1, 2, 7, 50, 264):
        config = config_of(plan, "column_sums", rows=2, splits=splits)
        first, again = (run(interpreter, plan, inputs, config) for _ in range(2))
        for mine, other, truth in zip(first, again, exact, strict=True):
            assert torch.equal(mine, other)
            torch.testing.assert_close(mine, truth.float(), rtol=1e-4, atol=1e-5)


def test_a_value_that_repeats_along_a_row_axis_counts_as_often(interpreter: Interpreter) -> None:
    """`in1` varies along the first of two row axes: its sum over the rows counts every row."""
    make = PlanBuilder(row_axes=2)
    x, y = make.input(), make.input("float32", (True, False, True), dense=False)
    plan = make.plan(make.over_rows("sum", y), make.op("add", x, y), sizes=(2, 3), columns=5)
    inputs = [torch.zeros(2, 3, 5), torch.arange(10.0).reshape(2, 1, 5)]
    for scheme in schemes_of(plan):
        total, _ = run(interpreter, plan, inputs, config_of(plan, scheme))
        assert torch.equal(total.flatten(), 3 * inputs[1].sum((0, 1)))
        assert torch.equal(
            evaluate(plan, inputs, "exact")[0].flatten(), 3 * inputs[1].sum((0, 1)).double()
        )


# --- plans ----------------------------------------------------------------------------------------


def test_what_needs_all_rows_is_no_value_of_a_row() -> None:
    make = PlanBuilder()
    x = make.input()
    total = make.over_rows("sum", x)
    with pytest.raises(InvalidRecordError, match="second pass"):
        make.plan(make.op("sub", x, total))
    make = PlanBuilder()
    x = make.input()
    with pytest.raises(InvalidRecordError, match="second pass"):
        make.plan(make.op("sum", make.over_rows("sum", x)))
    make = PlanBuilder()
    vector, x = make.input("float32", (False, True)), make.input()
    with pytest.raises(InvalidRecordError, match="second pass"):
        make.plan(make.op("mul", make.over_rows("sum", x), make.op("sum", vector)))


@pytest.mark.parametrize("spans", [(True, False), (False, True), (False, False)])
def test_only_whole_values_are_reduced_over_the_rows(spans: tuple[bool, ...]) -> None:
    make = PlanBuilder()
    make.input()
    narrow = make.input("float32", spans)
    with pytest.raises(InvalidRecordError, match="spans the rows and columns"):
        make.plan(make.over_rows("sum", narrow))


def test_attributes_of_a_hostile_plan_are_refused() -> None:
    plan = plans.bias_gradient()
    for over in ("columns", 1, None, 'rows"; import os'):
        ops = tuple(
            msgspec.structs.replace(op, attributes={OVER: over}) if op.over_rows else op
            for op in plan.ops
        )
        with pytest.raises(InvalidRecordError):
            msgspec.structs.replace(plan, ops=ops).check()
    op = msgspec.structs.replace(plan.ops[1], attributes={OVER: "rows"})
    with pytest.raises(InvalidRecordError, match="do not fit"):
        msgspec.structs.replace(plan, ops=(plan.ops[0], op, *plan.ops[2:])).check()


def test_a_plan_without_sums_over_rows_has_the_signature_it_had() -> None:
    """Stored plans keep their ids: the attribute is there only where it says something."""
    assert OVER not in plans.layer_norm().signature()
    assert plans.norm_gradient().signature().count(f'"{OVER}":"rows"') == 2


# --- launches -------------------------------------------------------------------------------------


def test_schemes_follow_from_the_axes() -> None:
    assert schemes_of(plans.norm_gradient()) == ("column_sums",)
    assert schemes_of(plans.bias_gradient()) == ("column_sums", "column_walk")
    with pytest.raises(IllegalFusionError, match="no registers form"):
        render(plans.bias_gradient(), "registers")
    with pytest.raises(IllegalFusionError, match="no column_sums form"):
        render(plans.layer_norm(), "column_sums")


def test_launches_share_all_rows_and_name_what_the_kernels_take() -> None:
    for make in NAMED.values():
        plan = make(sizes=(100,) if make is not plans.column_statistics else (50, 2))
        strides = plan.sites[0].input_strides
        for scheme in schemes_of(plan):
            config = config_of(plan, scheme, splits=7)
            calls = launches(plan, config, plan.sites[0].row_sizes, (64,), strides)
            known = {item.name for item in plan.inputs}
            for call in calls:
                assert known >= set(call.kernel.reads)
                assert call.kernel.name in render(plan, scheme).kernels
                known |= set(call.kernel.writes)
            assert set(abi.output_names(plan)) <= known
            if scheme == "column_sums":
                first = calls[0]
                assert first.grid[0] == min(7, -(-100 // config.block_rows))
                assert set(first.workspace.values()) == {(first.grid[0], 64)}


@given(
    rows=st.integers(0, 1 << 24), columns=st.integers(0, 16_384), name=st.sampled_from(list(NAMED))
)
@settings(max_examples=60, deadline=None)
def test_every_candidate_suits_its_site(rows: int, columns: int, name: str) -> None:
    plan = NAMED[name]()
    sizes = (rows,) + (1,) * (plan.row_axes - 1)
    site = msgspec.structs.replace(plan.sites[0], row_sizes=sizes, columns=columns)
    configs = candidate_configs(plan, site)
    assert len({config.label() for config in configs}) == len(configs) > 0
    for config in configs:
        config.check()
        assert config.scheme in schemes_of(plan)
        if len(configs) > 1:
            assert unsuitable(config, columns) is None, config.label()


def test_the_model_fills_the_gpu_without_drowning_in_partial_sums() -> None:
    """16,384 rows of 4,096 in bf16: enough programs, and partial sums far below the data."""
    plan = plans.norm_gradient(sizes=(16_384,), columns=4096)
    site = plan.sites[0]
    config = default_config(plan, site)
    assert 100 <= grid_size(config, site.rows, site.columns) <= 528
    assert 2 * workspace_bytes(plan, config, site) < 0.1 * site_bytes(plan, site)
    few = plans.bias_gradient(sizes=(8,), columns=1 << 20)
    assert default_config(few, few.sites[0]).scheme == "column_walk"
    many = plans.bias_gradient(sizes=(1 << 17,), columns=768)
    assert default_config(many, many.sites[0]).scheme == "column_sums"


def test_labels_tell_configurations_apart() -> None:
    plan = plans.norm_gradient()
    assert config_of(plan, "column_sums").label() == "column sums over 3 rows=4 warps=4"
    other = config_of(plans.bias_gradient(), "column_walk")
    assert other.label() == "column walk cols=64 rows=4 warps=4"
    for wrong in (
        LaunchConfig(scheme="column_sums"),
        LaunchConfig(scheme="column_walk"),
        LaunchConfig(scheme="column_walk", block_columns=64, splits=2),
    ):
        with pytest.raises(InvalidRecordError):
            wrong.check()
