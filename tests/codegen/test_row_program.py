"""Generated source: deterministic, safe against hostile text, and what the plan says."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from advisor.codegen import render
from advisor.codegen.launches import launches
from advisor.errors import IllegalFusionError, InvalidRecordError
from advisor.model.launch import LaunchConfig
from advisor.model.optable import FLOAT_DTYPES, OPS, RANDOM
from advisor.model.plan import FusionPlan
from advisor.verify.interpret import evaluate
from advisor.verify.kernel_module import load_module
from tests.builders.plan import PlanBuilder, rms_norm
from tests.codegen.interpreter import Interpreter, ways_of
from tests.codegen.programs import Program, magnitude, programs

# `FUSION_ADVISOR_EXAMPLES=1000` searches for longer.
EXAMPLES = int(os.environ.get("FUSION_ADVISOR_EXAMPLES", "40"))
RELAXED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def loaded(plan: FusionPlan, folder: Path) -> ModuleType:
    path = folder / f"{plan.id}.py"
    path.write_text(render(plan).text)
    return load_module(path)


def test_the_same_plan_gives_the_same_bytes() -> None:
    plan = rms_norm()
    again = msgspec.json.decode(msgspec.json.encode(plan), type=FusionPlan)
    assert render(plan).text == render(again).text
    moved = msgspec.structs.replace(plan, sites=())
    assert render(moved).text == render(plan).text, "sites do not enter the source"


def test_the_text_is_something_a_person_reads() -> None:
    text = render(rms_norm()).text
    assert len(text.splitlines()) < 115
    assert max(map(len, text.splitlines())) <= 120
    module = ast.parse(text)
    names = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    assert names[0] == "to_bfloat16"
    assert names[2:] == ["fused", "reference"]
    assert ast.get_docstring(module)


@given(st.text())
@settings(max_examples=50, deadline=None)
def test_a_title_cannot_leave_its_docstring(title: str) -> None:
    plan = msgspec.structs.replace(rms_norm(), title=title)
    assert _without_docstrings(render(plan).text) == _without_docstrings(render(rms_norm()).text)


@pytest.mark.parametrize("title", ['"""\nimport os\n"""', "\\", 'x"""', "a\u2028import os", "\0"])
def test_titles_that_attack_the_docstring(title: str) -> None:
    test_a_title_cannot_leave_its_docstring.hypothesis.inner_test(title)  # type: ignore[attr-defined]


def _without_docstrings(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            del body[0]
    return ast.dump(tree)


def test_a_dtype_without_a_spelling_is_refused() -> None:
    make = PlanBuilder()
    with pytest.raises(IllegalFusionError, match="float64"):
        render(make.plan(make.op("exp", make.input("float64"))))


def test_an_op_of_literals_alone_is_no_plan() -> None:
    make = PlanBuilder()
    x = make.input()
    constant = make.op("add", 1.0, 2.0)
    with pytest.raises(InvalidRecordError, match="reads no value"):
        make.plan(make.op("mul", x, constant))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "spec",
    [op for op in OPS if op.kind in ("pointwise", "reduction") and op.name != RANDOM],
    ids=lambda spec: spec.name,
)
def test_the_reference_is_the_plan(spec: object, dtype: str, tmp_path: Path) -> None:
    assert spec.kind in ("pointwise", "reduction")  # type: ignore[attr-defined]
    name, arity = spec.name, spec.arity  # type: ignore[attr-defined]
    make = PlanBuilder()
    args: list[str | float] = [make.input(dtype) for _ in range(arity)]
    if name == "where":
        args[0] = make.op("gt", args[0], 0.0)
    attributes = {"correction": 1.0} if name == "var" else {}
    cast = name == "cast"
    outputs = [make.cast(args[0], "float16") if cast else make.op(name, *args, **attributes)]
    if arity == 2:
        outputs += [make.op(name, args[0], 0.5), make.op(name, 0.5, args[1])]
    if name == "where":
        outputs += [
            make.op(name, args[0], args[1], 0.5),
            make.op(name, args[0], 1.0, -0.5, dtype=dtype),
        ]
    _assert_reference(
        make.plan(*outputs),
        [torch.randn(6, 9).to(getattr(torch, dtype)) for _ in range(arity)],
        tmp_path,
    )


def test_the_reference_keeps_the_dtype_of_narrow_ops_with_wide_scalars(tmp_path: Path) -> None:
    """A 0-dimensional float32 tensor does not promote a bfloat16 one; here it has dimensions."""
    make = PlanBuilder()
    x, scale = make.input("bfloat16"), make.input("float32", (False, False))
    plan = make.plan(make.op("mul", x, scale, dtype="bfloat16"))
    _assert_reference(plan, [torch.randn(4, 5).bfloat16(), torch.randn(1, 1)], tmp_path)


def _assert_reference(plan: FusionPlan, inputs: list[torch.Tensor], folder: Path) -> None:
    pytest.importorskip("triton", reason="generated modules import triton")
    theirs = loaded(plan, folder).reference(*inputs)
    ours = evaluate(plan, inputs, "native")
    assert len(theirs) == len(ours)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other) or torch.allclose(
            mine, other, rtol=0, atol=0, equal_nan=True
        )


@given(program=programs())
@RELAXED
def test_random_programs_equal_their_plan_in_float64(
    program: Program, interpreter: Interpreter
) -> None:
    inputs = program.inputs()
    size = magnitude(program, inputs)
    assume(size < 1e4)
    shapes = [
        (o.shape(program.sizes, program.column_sizes), getattr(torch, o.dtype))
        for o in program.plan.outputs
    ]
    text, ways = render(program.plan).text, ways_of(program.plan)
    got = interpreter.run(text, inputs, shapes, program.block_rows, strided=ways)
    narrow = [op.dtype for op in program.plan.ops if op.op == "cast" and op.dtype in FLOAT_DTYPES]
    truth = evaluate(program.plan, inputs, "exact")
    for output, mine, exact in zip(program.plan.outputs, got, truth, strict=True):
        coarsest = max(
            torch.finfo(getattr(torch, d)).eps for d in (*narrow, output.dtype, "float32")
        )
        error = (mine.double() - exact.double().expand(mine.shape)).abs().max()
        allowed = coarsest * size * size * (1 + len(program.plan.ops))
        assert float(error) <= allowed, f"{output.value}: {float(error):.2e} > {allowed:.2e}"


@given(program=programs())
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_reference_of_random_programs(
    program: Program, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _assert_reference(program.plan, program.inputs(), tmp_path_factory.mktemp("reference"))


@given(program=programs())
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_calling_convention_names_every_parameter_once(program: Program) -> None:
    plan = program.plan
    kernel = next(
        node
        for node in ast.parse(render(plan).text).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("row_program_")
    )
    strides = [tensor.stride() for tensor in program.inputs()]
    config = LaunchConfig(block_rows=2)
    written = plan.sites[0].output_strides
    (call,) = launches(plan, config, program.sizes, program.column_sizes, strides, written)
    parameters = [argument.arg for argument in kernel.args.args]
    assert parameters == [*call.types, *call.constants]
    assert list(call.types) == [*call.kernel.tensors, *call.scalars]


def test_codegen_imports_neither_torch_nor_triton() -> None:
    import subprocess

    code = "import sys, advisor.codegen; sys.exit(bool({'torch', 'triton'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_correction_beyond_the_row_divides_by_zero_as_torch_does(
    interpreter: Interpreter,
) -> None:
    make = PlanBuilder()
    plan = make.plan(make.op("var", make.input("float32"), correction=3.0), sizes=(3,), columns=2)
    x = torch.tensor([[1.0, 2.0], [4.0, 4.0], [0.0, -1.0]])
    (got,) = interpreter.run(render(plan).text, [x], [((3, 1), torch.float32)])
    torch.testing.assert_close(got, evaluate(plan, [x], "native")[0], equal_nan=True)
    assert torch.equal(got[0], torch.tensor([float("inf")]))


def test_integers_keep_all_their_bits(interpreter: Interpreter) -> None:
    make = PlanBuilder()
    x = make.input("int64")
    plan = make.plan(make.op("relu", x), make.op("maximum", x, 7), sizes=(1,), columns=4)
    numbers = torch.tensor([[2**40 + 1, -(2**40) - 1, 2**24 + 1, 0]])
    shapes = [((1, 4), torch.int64)] * 2
    for got, want in zip(
        interpreter.run(render(plan).text, [numbers], shapes),
        (torch.relu(numbers), numbers.clamp(min=7)),
        strict=True,
    ):
        assert torch.equal(got, want)


def rounded_to_bfloat16() -> tuple[FusionPlan, torch.Tensor]:
    """A cast in the middle; numbers around ties of all sizes, at the ends, infinite and NaN."""
    make = PlanBuilder()
    plan = make.plan(make.op("mul", make.cast(make.cast(make.input(), "bfloat16"), "float32"), 1.0))
    kept = torch.arange(0, 1 << 15, 61, dtype=torch.int32) << 16
    near = torch.cat([kept + 0x7FFF, kept + 0x8000, kept + 0x8001]).view(torch.float32)
    odd = torch.tensor([3.4e38, 3.39e38, 1e-45, 0.0, float("inf"), torch.nan])
    return plan, torch.cat([near, odd, -near, -odd]).reshape(1, -1)


def assert_rounded(got: torch.Tensor, x: torch.Tensor) -> None:
    """Bit for bit as PyTorch rounds, but for the bits of NaN."""
    assert torch.equal(got.nan_to_num(7.0), x.bfloat16().float().nan_to_num(7.0))
    assert torch.equal(got.signbit()[~got.isnan()], x.signbit()[~got.isnan()])


def test_a_cast_to_bfloat16_is_pytorchs(interpreter: Interpreter) -> None:
    plan, x = rounded_to_bfloat16()
    (got,) = interpreter.run(render(plan).text, [x], [(tuple(x.shape), torch.float32)])
    assert_rounded(got, x)


def test_an_integer_becomes_a_bfloat16(interpreter: Interpreter) -> None:
    make = PlanBuilder()
    plan = make.plan(make.op("mul", make.cast(make.input("int32"), "bfloat16"), 1.0))
    x = torch.arange(-1000, 1000, dtype=torch.int32).reshape(1, -1)
    (got,) = interpreter.run(render(plan).text, [x], [(tuple(x.shape), torch.bfloat16)])
    assert torch.equal(got.float(), x.bfloat16().float())
