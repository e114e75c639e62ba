"""Every op of the table as a kernel: against PyTorch at the values that break careless code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="interpreting kernels needs triton")

from advisor.codegen import render
from advisor.codegen.launches import launches
from advisor.hardware.gpus import gpu_by_key
from advisor.model.launch import LaunchConfig
from advisor.model.optable import OPS, RANDOM, OpSpec
from advisor.model.plan import FusionPlan
from advisor.verify.interpret import evaluate
from advisor.verify.resources import ResourceRequest, resources_of
from tests.builders.plan import PlanBuilder
from tests.codegen.interpreter import Interpreter

INF, NAN = math.inf, math.nan
EDGES = (
    NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 1e-3, -1e-3, 100.0,
    -100.0,
)  # fmt: skip
FLOATS = ("float32", "bfloat16", "float16")
# Random numbers have tests of their own: their operand is no number to compute with.
POINTWISE = tuple(op for op in OPS if op.kind == "pointwise" and op.name != RANDOM)
REDUCTIONS = tuple(op for op in OPS if op.kind == "reduction")
# float32 ulps of the element itself; what uses one correctly rounded operation gets none. e^x is a
# power of 2 of a product that is rounded: |x| / 2 ulps, here as on a GPU.
ULPS = {"tanh": 4, "expm1": 4, "log1p": 4, "sigmoid": 4, "pow": 4, "exp": 6, "exp2": 2, "log": 2,
        "log2": 2, "sin": 2, "cos": 2, "erf": 2, "rsqrt": 2, "div": 1, "reciprocal": 1,
        "fma": 1}  # fmt: skip


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    with Interpreter(tmp_path_factory.mktemp("interpreter")) as child:
        yield child


def grid(arity: int, dtype: str) -> list[torch.Tensor]:
    """All combinations of the edge values, `[rows, columns]` each, and some ordinary numbers."""
    edges = torch.tensor(EDGES)
    generator = torch.Generator().manual_seed(arity)
    columns = len(EDGES) ** max(arity - 1, 1)
    found = []
    for position in range(arity):
        shape = [1] * max(arity, 2)
        shape[position] = len(EDGES)
        full = [len(EDGES)] * max(arity, 2)
        values = edges.reshape(shape).expand(full).reshape(-1, columns)
        noise = 3 * torch.randn((2, columns), generator=generator)
        found.append(torch.cat((values, noise)).to(getattr(torch, dtype)))
    return found


def plan_of(spec: OpSpec, dtype: str) -> FusionPlan:
    """One op from inputs to output; a condition is made from its operand."""
    make = PlanBuilder()
    args = [make.input(dtype) for _ in range(spec.arity)]
    if spec.name == "where":
        args[0] = make.op("gt", args[0], 0.25)
    if spec.name == "cast":
        other = "float16" if dtype == "float32" else "float32"
        return make.plan(make.cast(args[0], other), title=f"cast {dtype}")
    return make.plan(make.op(spec.name, *args), title=f"{spec.name} {dtype}")


def launch(
    interpreter: Interpreter, plan: FusionPlan, inputs: list[torch.Tensor], block_rows: int = 2
) -> tuple[torch.Tensor, ...]:
    rows, columns = torch.broadcast_shapes(*(t.shape for t in inputs))
    shapes = [
        ((rows, columns if o.space == "tile" else 1), getattr(torch, o.dtype)) for o in plan.outputs
    ]
    return interpreter.run(render(plan).text, inputs, shapes, block_rows)


def assert_close(
    got: torch.Tensor,
    want: torch.Tensor,
    truth: torch.Tensor,
    ulps: float,
    scale: torch.Tensor | None = None,
) -> None:
    """Same NaNs, same infinities; finite elements within `ulps` of the truth, each by its own size.

    Results below the smallest normal number may be flushed to zero. `scale`, where given, is what
    the result was rounded at before terms cancelled.
    """
    assert got.dtype == want.dtype
    if not got.is_floating_point():
        assert torch.equal(got, want)
        return
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isposinf(), want.isposinf())
    assert torch.equal(got.isneginf(), want.isneginf())
    info = torch.finfo(torch.float32 if got.dtype == torch.bfloat16 else got.dtype)
    flushed = (truth.abs() < info.tiny) & (got.abs() <= info.tiny)
    normal = torch.isfinite(got) & ~flushed
    size = truth.double() if scale is None else scale.double()
    size = size.abs()[normal].clamp(min=info.tiny)
    unit = torch.exp2(torch.floor(torch.log2(size))) * torch.finfo(got.dtype).eps
    error = max(((got.double() - truth.double())[normal].abs() / unit).tolist(), default=0.0)
    assert error <= ulps + 0.5, f"{error:.1f} ulps"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spec", POINTWISE, ids=lambda spec: spec.name)
def test_a_pointwise_op_is_pytorchs(spec: OpSpec, dtype: str, interpreter: Interpreter) -> None:
    plan, inputs = plan_of(spec, dtype), grid(spec.arity, dtype)
    (got,) = launch(interpreter, plan, inputs)
    (want,) = evaluate(plan, inputs, "native")
    (truth,) = evaluate(plan, inputs, "exact")
    # Rounded once from float32: half an ulp, and a whole one where float32 fell on the other side.
    ulps = ULPS.get(spec.name, 0) if dtype == "float32" else 0.51
    # The interpreter multiplies and adds apart; a GPU has one instruction that rounds once.
    scale = (inputs[0] * inputs[1]).abs() + inputs[2].abs() if spec.name == "fma" else None
    assert_close(got, want, truth, ulps, scale)


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "uint8"])
@pytest.mark.parametrize(
    "name", ["add", "mul", "maximum", "minimum", "eq", "lt", "ge", "where", "logical_and",
             "logical_or", "logical_not"],
)  # fmt: skip
def test_integers_and_booleans(name: str, dtype: str, interpreter: Interpreter) -> None:
    spec = next(op for op in OPS if op.name == name)
    make = PlanBuilder()
    args = [make.input(dtype) for _ in range(spec.arity)]
    if name == "where":
        args[0] = make.op("eq", args[0], 1)
    plan = make.plan(make.op(name, *args), title=f"{name} {dtype}")
    generator = torch.Generator().manual_seed(0)
    high = 2 if dtype == "bool" else 9
    inputs = [
        torch.randint(0, high, (4, 33), generator=generator).to(getattr(torch, dtype))
        for _ in range(spec.arity)
    ]
    (got,) = launch(interpreter, plan, inputs)
    (want,) = evaluate(plan, inputs, "native")
    assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spec", REDUCTIONS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("columns", [1, 5, 64, 77])
def test_a_reduction_is_pytorchs(
    spec: OpSpec, dtype: str, columns: int, interpreter: Interpreter
) -> None:
    make = PlanBuilder()
    attributes = dict.fromkeys(spec.attributes, 1.0)
    plan = make.plan(make.op(spec.name, make.input(dtype), **attributes), title=spec.name)
    rows = torch.randn((7, columns), generator=torch.Generator().manual_seed(columns))
    rows[1, 0], rows[2, -1], rows[3, 0], rows[4] = NAN, INF, -INF, -3.0
    if columns > 1:
        rows[5, 0], rows[5, -1] = INF, -INF
    given = [rows.to(getattr(torch, dtype))]
    (got,) = launch(interpreter, plan, given, block_rows=4)
    (want,) = evaluate(plan, given, "native")
    (truth,) = evaluate(plan, given, "exact")
    assert_close(got, want, truth, 8 * math.log2(columns + 1) if dtype == "float32" else 1)


DENSE = {
    "tanh": torch.cat((torch.linspace(-12, 12, 20001), torch.logspace(-30, 1, 4000))),
    "expm1": torch.cat((torch.linspace(-110, 89, 20001), torch.logspace(-30, 1, 4000))),
    "log1p": torch.cat((torch.linspace(-0.999999, 50, 20001), torch.logspace(-30, 38.5, 4000))),
}


@pytest.mark.parametrize("name", DENSE)
def test_helper_functions_over_their_range(name: str, interpreter: Interpreter) -> None:
    make = PlanBuilder()
    plan = make.plan(make.op(name, make.input()), title=name)
    positive = DENSE[name]
    x = torch.cat((positive, -positive[-4000:])).reshape(1, -1).float()
    (got,) = launch(interpreter, plan, [x], block_rows=1)
    (truth,) = evaluate(plan, [x], "exact")
    assert_close(got, truth.float(), truth, 4)


def test_power_over_its_range(interpreter: Interpreter) -> None:
    make = PlanBuilder()
    plan = make.plan(make.op("pow", make.input(), make.input()), title="pow")
    generator = torch.Generator().manual_seed(0)
    base = torch.exp(torch.empty(200, 200).uniform_(-20, 20, generator=generator))
    exponent = torch.empty(200, 200).uniform_(-4, 4, generator=generator)
    exponent[:50] = torch.randint(-5, 6, (50, 200), generator=generator).float()
    base[:25] *= -1
    (got,) = launch(interpreter, plan, [base, exponent], block_rows=64)
    (truth,) = evaluate(plan, [base, exponent], "exact")
    assert_close(got, torch.pow(base, exponent), truth, 4)


@pytest.mark.parametrize("base", [2.0, 0.5, 1.0, -2.0])
def test_power_of_a_literal(base: float, interpreter: Interpreter) -> None:
    make = PlanBuilder()
    plan = make.plan(make.op("pow", base, make.input()), title=f"pow {base}")
    inputs = grid(1, "float32")
    (got,) = launch(interpreter, plan, inputs)
    assert_close(got, torch.pow(base, inputs[0]), evaluate(plan, inputs, "exact")[0], 4)


@pytest.mark.parametrize("exponent", [2.5, -1.5, 4, 0, -3, 0.25])
def test_power_to_a_literal(exponent: float, interpreter: Interpreter) -> None:
    make = PlanBuilder()
    plan = make.plan(make.op("pow", make.input(), exponent), title=f"pow {exponent}")
    inputs = grid(1, "float32")
    (got,) = launch(interpreter, plan, inputs)
    assert_close(got, torch.pow(inputs[0], exponent), evaluate(plan, inputs, "exact")[0], 4)


def everything(dtype: str) -> FusionPlan:
    """All ops of the table in one kernel, each result folded into one sum."""
    make = PlanBuilder()
    x, y = make.input(dtype), make.input(dtype)
    total = x
    for spec in POINTWISE:
        if spec.name == "cast":
            value = make.cast(make.cast(x, "float16"), "float32")
        elif spec.name == "where":
            value = make.op("where", make.op("lt", x, y), x, y)
        else:
            value = make.op(spec.name, *(x, y, x)[: spec.arity])
        if make.dtype(value) == "bool":
            value = make.cast(value, "float32")
        total = make.op("add", total, value)
    above, below = make.op("gt", x, 0.0), make.op("lt", x, y)
    for name in ("add", "mul", "maximum", "minimum", "where"):
        flag = make.op(name, above, below, *([above] if name == "where" else []))
        total = make.op("add", total, make.cast(flag, "float32"))
    for spec in REDUCTIONS:
        total = make.op("add", total, make.op(spec.name, x, **dict.fromkeys(spec.attributes, 1.0)))
    return make.plan(total, title=f"everything {dtype}", columns=256)


@pytest.mark.usefixtures("forked_compilers")
def test_every_op_compiles_for_nvidia_and_amd(tmp_path: Path) -> None:
    requests = []
    for dtype in ("float32", "bfloat16"):
        plan = everything(dtype)
        source, path = render(plan), tmp_path / f"{dtype}.py"
        strides = plan.sites[0].input_strides
        (call,) = launches(plan, LaunchConfig(block_rows=2), (64,), (256,), strides)
        path.write_text(source.text)
        requests.append(
            ResourceRequest(
                source=str(path),
                kernel=call.kernel.name,
                signature=call.types,
                constexprs=dict(call.constants),
                aligned=call.aligned,
            )
        )
    for rows in resources_of(
        requests, [gpu_by_key("h200"), gpu_by_key("mi300x")], timeout_s=60, cache=tmp_path
    ):
        assert [row.error for row in rows] == [None, None]
