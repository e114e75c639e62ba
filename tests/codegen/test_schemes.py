"""Every scheme computes what its plan says: random programs, named ones, awkward sizes and values.

`FUSION_ADVISOR_MATRIX=1` runs every program × dtype × size × scheme instead of a selection;
`FUSION_ADVISOR_EXAMPLES=1000` draws more random programs.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from advisor.codegen import abi, render
from advisor.codegen.families import site_launches
from advisor.codegen.launches import launches
from advisor.errors import IllegalFusionError, InvalidRecordError
from advisor.model.applied import PlanVerdict
from advisor.model.base import decode, encode
from advisor.model.configs import candidate_configs, scheme_schedule, schemes_of
from advisor.model.launch import LaunchConfig, Scheme, unsuitable
from advisor.model.optable import FLOAT_DTYPES
from advisor.model.passes import can_split, has_online_form, schedule
from advisor.model.plan import FusionPlan
from advisor.verify.interpret import evaluate
from tests.builders.plan import PlanBuilder, rms_norm
from tests.codegen import plans
from tests.codegen.interpreter import Interpreter, ways_of
from tests.codegen.programs import FLOATS, Program, magnitude, pointwise_programs, programs

EXAMPLES = int(os.environ.get("FUSION_ADVISOR_EXAMPLES", "20"))
WHOLE_MATRIX = bool(os.environ.get("FUSION_ADVISOR_MATRIX"))
SCHEMES: tuple[Scheme, ...] = ("registers", "looped", "online", "split")
SIZES = (1, 7, 128, 1000, 4097, 32000)
NAMED: dict[str, Callable[..., FusionPlan]] = {
    "norm": plans.norm,
    "log-softmax": plans.log_softmax,
    "layer norm": plans.layer_norm,
    "loss gradient": plans.loss_gradient,
    "rows only": plans.rows_only,
    "log-sum-exp": plans.log_sum_exp,
    "three levels": plans.three_levels,
    "strided": plans.strided,
}
GOLDEN = Path(__file__).parent / "golden"


def config_of(scheme: Scheme, block: int, *, rows: int = 1, splits: int = 3) -> LaunchConfig:
    """A configuration of a scheme, blocks of `block` columns where it streams."""
    return LaunchConfig(
        scheme=scheme,
        block_rows=rows,
        block_columns=None if scheme == "registers" else block,
        splits=splits if scheme == "split" else None,
    )


def run(
    interpreter: Interpreter, plan: FusionPlan, inputs: list[torch.Tensor], config: LaunchConfig
) -> tuple[torch.Tensor, ...]:
    """The kernel's outputs in the interpreter."""
    full = torch.broadcast_shapes(*(tensor.shape for tensor in inputs))
    rows, columns = full[: plan.row_axes], full[plan.row_axes :]
    shapes = [(o.shape(rows, columns), getattr(torch, o.dtype)) for o in plan.outputs]
    options = config.options()
    del options["num_warps"]
    text = render(plan, config.scheme).text
    return interpreter.run(text, inputs, shapes, strided=ways_of(plan), **options)


def assert_right(
    plan: FusionPlan, inputs: list[torch.Tensor], got: tuple[torch.Tensor, ...], size: float
) -> None:
    """Each output within the roundings of its plan of the exact one, for values up to `size`."""
    narrow = [op.dtype for op in plan.ops if op.op == "cast" and op.dtype in FLOAT_DTYPES]
    for output, mine, exact in zip(plan.outputs, got, evaluate(plan, inputs, "exact"), strict=True):
        coarsest = max(
            torch.finfo(getattr(torch, d)).eps for d in (*narrow, output.dtype, "float32")
        )
        assert mine.dtype == getattr(torch, output.dtype)
        if mine.numel() == 0:
            continue
        error = (mine.double() - exact.double().expand(mine.shape)).abs().max()
        allowed = coarsest * size * size * (1 + len(plan.ops))
        assert float(error) <= allowed, f"{output.value}: {float(error):.2e} > {allowed:.2e}"


@given(program=programs(), data=st.data())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_random_programs_in_every_scheme(
    program: Program, data: st.DataObject, interpreter: Interpreter
) -> None:
    inputs = program.inputs()
    size = magnitude(program, inputs)
    assume(size < 1e4)
    block = data.draw(st.sampled_from((4, 16, 32)))
    splits = data.draw(st.integers(1, 5))
    scheme = data.draw(st.sampled_from(schemes_of(program.plan)[1:]))
    in_tiles = scheme == "split" and program.plan.in_tiles
    config = config_of(scheme, block, rows=1 if in_tiles else program.block_rows, splits=splits)
    assert_right(program.plan, inputs, run(interpreter, program.plan, inputs, config), size)


@given(program=pointwise_programs(), block=st.sampled_from((4, 16, 32)))
@settings(max_examples=2 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs_without_reductions(
    program: Program, block: int, interpreter: Interpreter
) -> None:
    inputs = program.inputs()
    size = magnitude(program, inputs)
    assume(size < 1e4)
    assert schemes_of(program.plan)[0] == "blocks"
    config = config_of("blocks", block, rows=program.block_rows)
    assert_right(program.plan, inputs, run(interpreter, program.plan, inputs, config), size)


def matrix() -> list[tuple[str, str, int, Scheme]]:
    """All combinations, or a selection in which nearly every pair of factors occurs."""
    every = [
        (name, dtype, columns, scheme)
        for name, make in NAMED.items()
        for scheme in schemes_of(make())
        for dtype in FLOATS
        for columns in SIZES
    ]
    if WHOLE_MATRIX:
        return every
    found: list[tuple[str, str, int, Scheme]] = []
    seen: set[tuple[int, object, int, object]] = set()
    for case in every:
        pairs = {
            (i, case[i], j, case[j]) for i in range(len(case)) for j in range(i + 1, len(case))
        }
        if len(pairs - seen) >= 3:
            seen |= pairs
            found.append(case)
    return found


@pytest.mark.parametrize(("name", "dtype", "columns", "scheme"), matrix())
def test_named_programs(
    name: str, dtype: str, columns: int, scheme: Scheme, interpreter: Interpreter
) -> None:
    plan = NAMED[name](dtype, columns=columns)
    program = Program(plan, plan.sites[0].row_sizes, columns, 1, seed=columns)
    inputs = program.inputs()
    if name == "loss gradient":
        inputs = loss_inputs(plan, columns)
    config = config_of(scheme, 4096 if columns > 1000 else 64, rows=2, splits=4)
    got = run(interpreter, plan, inputs, config)
    # Relative exponentials: the largest intermediate value is a sum of `columns` of them.
    assert_right(plan, inputs, got, 8.0)


IN_PARTS: dict[str, Callable[..., FusionPlan]] = {
    "group norm": plans.group_norm,
    "group norm, channels last": partial(plans.group_norm, channels_last=True),
    "batch norm": plans.batch_norm,
}


AXES = ((1, 1), (3, 7), (5, 64), (64, 5))
# One type a shape, all of them with FUSION_ADVISOR_MATRIX=1.
TYPED = [
    (dtype, sizes)
    for place, sizes in enumerate(AXES)
    for dtype in (FLOATS if WHOLE_MATRIX else (FLOATS[place % len(FLOATS)],))
]


@pytest.mark.parametrize(("dtype", "columns"), TYPED)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", IN_PARTS)
def test_programs_of_several_column_axes(
    name: str, scheme: Scheme, dtype: str, columns: tuple[int, ...], interpreter: Interpreter
) -> None:
    """Blocks of 32 columns: inside a segment of 64, or over several segments."""
    plan = IN_PARTS[name](dtype, columns=columns)
    inner = columns[1:]
    program = Program(plan, plan.sites[0].row_sizes, columns[0], 1, seed=7, inner=inner)
    inputs = program.inputs()
    got = run(interpreter, plan, inputs, config_of(scheme, 32, rows=2, splits=2))
    assert_right(plan, inputs, got, 8.0)


def loss_inputs(plan: FusionPlan, columns: int) -> list[torch.Tensor]:
    """Logits with their own statistics, labels of which one is to be ignored."""
    (rows,) = plan.sites[0].row_sizes
    generator = torch.Generator().manual_seed(columns)
    kind = getattr(torch, plan.inputs[0].dtype)
    other, logits = (torch.randn(rows, columns, generator=generator).to(kind) for _ in range(2))
    labels = torch.randint(0, columns, (rows, 1), generator=generator)
    labels[1] = -100
    peak = logits.float().amax(-1, keepdim=True)
    total = (logits.float() - peak).exp().sum(-1, keepdim=True).log()
    index = torch.arange(columns).reshape(1, -1)
    return [other, labels, index, torch.full((1, 1), 0.25), logits, peak, total]


# --- structure ------------------------------------------------------------------------------------


def passes(plan: FusionPlan, scheme: Scheme) -> int:
    return len(scheme_schedule(plan, scheme).passes)


def test_passes_follow_from_the_dataflow() -> None:
    assert [passes(plans.log_softmax(), s) for s in ("looped", "online")] == [3, 2]
    assert [passes(plans.layer_norm(), s) for s in ("looped", "online")] == [3, 2]
    assert [passes(plans.layer_norm(written_out=True), s) for s in ("looped", "online")] == [3, 2]
    assert [passes(plans.three_levels(), s) for s in ("looped", "online")] == [4, 3]
    assert [passes(plans.rows_only(), s) for s in ("looped", "online")] == [2, 1]
    assert [passes(plans.log_sum_exp(), s) for s in ("looped", "online")] == [2, 1]
    assert passes(rms_norm(), "looped") == 2
    assert schemes_of(rms_norm()) == ("registers", "looped", "split")
    assert not can_split(plans.three_levels())


@pytest.mark.parametrize(("factor", "power"), [(0.125, "exp"), (1.0, "exp2"), (2.0, "exp2")])
def test_scaled_exponentials_and_those_of_base_two_are_online(
    factor: float, power: str, interpreter: Interpreter
) -> None:
    plan = plans.log_softmax("float32", columns=40, factor=factor, power=power)
    assert has_online_form(plan)
    inputs = Program(plan, (4,), 40, 1, seed=1).inputs()
    for scheme in schemes_of(plan)[1:]:
        assert_right(plan, inputs, run(interpreter, plan, inputs, config_of(scheme, 8)), 8.0)


def test_what_only_looks_like_an_online_form_is_none() -> None:
    """A negative factor, another maximum, a rounding in between, a mean of something else."""
    for wrong in ("factor", "maximum", "rounded", "mean"):
        make = PlanBuilder()
        x, y = make.input("float32"), make.input("float32")
        if wrong == "mean":
            apart = make.op("sub", x, make.op("mean", y))
            total = make.op("sum", make.op("mul", apart, apart))
        else:
            peak = make.op("amax", y if wrong == "maximum" else x)
            apart = make.op("sub", x, peak)
            if wrong == "factor":
                apart = make.op("mul", apart, -1.0)
            power = make.op("exp", apart)
            power = make.cast(power, "bfloat16") if wrong == "rounded" else power
            total = make.op("sum", make.cast(power, "float32"))
        assert not has_online_form(make.plan(total)), wrong


def test_an_output_is_written_in_the_first_pass_that_knows_it() -> None:
    found = schedule(plans.layer_norm(), online=True)
    assert [one.writes for one in found.passes] == [(1,), (0,)]
    assert found.last_read("in0") == 1


@pytest.mark.parametrize(("columns", "aligned"), [(8192, True), (50256, True), (50257, False)])
def test_lanes_are_of_one_column_where_rows_are_not_aligned(columns: int, aligned: bool) -> None:
    """A thread has no columns side by side to fold: each would have to be exchanged."""
    plan = plans.log_softmax(columns=columns)
    config = config_of("online", 4096)
    (launch,) = site_launches(plan, config, plan.sites[0])
    assert launch.constants["ALIGNED_COLUMNS"] is aligned
    assert "ALIGNED_COLUMNS else 1" in render(plan, "online").text


def test_hints_follow_who_reads_again() -> None:
    text = render(plans.layer_norm(), "online").text
    loads = [line for line in re.sub(r"\n {16,}", " ", text).splitlines() if "tl.load(" in line]
    hints = [
        ("in0" in load or "in1" in load, "evict_first" in load, "evict_last" in load)
        for load in loads
    ]
    assert (
        hints == [(True, False, True)] * 2 + [(True, True, False)] * 2 + [(False, False, True)] * 2
    )


def test_a_scheme_that_cannot_compute_a_plan_is_refused() -> None:
    with pytest.raises(IllegalFusionError, match="no split form"):
        render(plans.three_levels(), "split")
    with pytest.raises(IllegalFusionError, match="no online form"):
        render(rms_norm(), "online")


@pytest.mark.parametrize("scheme", SCHEMES[1:])
def test_the_same_plan_and_scheme_give_the_same_bytes(scheme: Scheme) -> None:
    plan = plans.log_softmax()
    again = msgspec.json.decode(msgspec.json.encode(plan), type=FusionPlan)
    assert render(plan, scheme).text == render(again, scheme).text
    assert max(map(len, render(plan, scheme).text.splitlines())) <= 100


@pytest.mark.parametrize("name", ["norm", "log-softmax", "layer norm"])
def test_golden_sources(name: str) -> None:
    """What people review: `FUSION_ADVISOR_WRITE_GOLDEN=1` writes the files anew."""
    plan = NAMED[name]()
    for scheme in schemes_of(plan):
        path = GOLDEN / f"{name.replace(' ', '_').replace('-', '_')}_{scheme}.txt"
        if os.environ.get("FUSION_ADVISOR_WRITE_GOLDEN"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(render(plan, scheme).text)
        assert path.read_text() == render(plan, scheme).text, path.name


@given(program=programs(), data=st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_launches_name_every_parameter_once(program: Program, data: st.DataObject) -> None:
    plan = program.plan
    scheme = data.draw(st.sampled_from(schemes_of(plan)))
    functions = {
        node.name: [argument.arg for argument in node.args.args]
        for node in ast.parse(render(plan, scheme).text).body
        if isinstance(node, ast.FunctionDef)
    }
    strides = [tensor.stride() for tensor in program.inputs()]
    config = config_of(scheme, 16)
    written = plan.sites[0].output_strides
    calls = launches(plan, config, program.sizes, program.column_sizes, strides, written)
    assert tuple(call.kernel.name for call in calls) == render(plan, scheme).kernels
    known = {item.name for item in plan.inputs}
    for call in calls:
        assert functions[call.kernel.name] == [*call.types, *call.constants]
        assert known >= set(call.kernel.reads)
        known |= set(call.kernel.writes)
    assert set(abi.output_names(plan)) <= known


# --- configurations -------------------------------------------------------------------------------


def test_the_model_orders_the_schemes() -> None:
    """Long rows are streamed, few long ones split, short ones put together, others held."""
    cases = {
        "registers": rms_norm(columns=2048),
        "online": plans.log_softmax(sizes=(4096,), columns=32000),
        "split": plans.loss_gradient(sizes=(8,), columns=128_000),
    }
    for scheme, plan in cases.items():
        assert candidate_configs(plan, plan.sites[0])[0].scheme == scheme
    short = plans.log_softmax(sizes=(1 << 20,), columns=16)
    assert candidate_configs(short, short.sites[0])[0].block_rows >= 16


@given(
    rows=st.integers(0, 1 << 24), columns=st.integers(0, 1 << 22), name=st.sampled_from(list(NAMED))
)
@settings(max_examples=60, deadline=None)
def test_every_candidate_suits_its_own_rows(rows: int, columns: int, name: str) -> None:
    plan = NAMED[name]()
    site = msgspec.structs.replace(
        plan.sites[0], row_sizes=(rows,) + (1,) * (plan.row_axes - 1), columns=columns
    )
    configs = candidate_configs(plan, site)
    assert configs
    assert len({config.label() for config in configs}) == len(configs)
    for config in configs:
        config.check()
        assert config.scheme in schemes_of(plan)
        if len(configs) > 1:
            assert unsuitable(config, columns) is None, config.label()


def test_a_configuration_of_a_stored_record_is_checked() -> None:
    for wrong in (
        LaunchConfig(block_rows=3),
        LaunchConfig(num_warps=64),
        LaunchConfig(scheme="looped"),
        LaunchConfig(block_columns=64),
        LaunchConfig(scheme="split", block_columns=64),
        LaunchConfig(scheme="split", block_columns=64, splits=10**6),
        LaunchConfig(scheme="online", block_columns=64, num_stages=99),
    ):
        with pytest.raises(InvalidRecordError):
            wrong.check()


def test_labels_tell_configurations_apart() -> None:
    assert config_of("registers", 1).label() == "rows=1 warps=4"
    assert config_of("looped", 4096).label() == "looped cols=4096 warps=4"
    assert config_of("split", 64, rows=2).label() == "split over 3 cols=64 rows=2 warps=4"


def test_the_record_of_an_application_keeps_the_scheme_and_reads_earlier_ones() -> None:
    plain = {
        "plan_id": "0" * 16,
        "title": "t",
        "verdict": "kept",
        "reason": "",
        "sites_expected": 1,
    }
    config = config_of("split", 2048, splits=8)
    verdict = msgspec.convert(plain, PlanVerdict)
    kept = decode(encode(msgspec.structs.replace(verdict, launch=config)), PlanVerdict)
    assert kept.configuration == config
    earlier = decode(
        encode(msgspec.structs.replace(verdict, block_rows=4, num_warps=8)), PlanVerdict
    )
    assert earlier.configuration == LaunchConfig(block_rows=4, num_warps=8)
    with pytest.raises(InvalidRecordError):
        decode(
            encode(msgspec.structs.replace(verdict, launch=LaunchConfig(num_warps=3))), PlanVerdict
        )
