"""Rows of nothing, of values that are no numbers, of values that cost digits, in every scheme."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from advisor.codegen import render
from advisor.codegen.standalone import Standalone, render_standalone
from advisor.hardware.gpus import gpu_by_key
from advisor.model.configs import schemes_of
from advisor.model.launch import Scheme
from advisor.pipeline.sizing import requests
from advisor.verify._resource_worker import compiled_kernel
from advisor.verify.interpret import evaluate
from advisor.verify.resources import job_of
from tests.builders.plan import PlanBuilder
from tests.codegen.interpreter import Interpreter
from tests.codegen.test_schemes import NAMED, SCHEMES, config_of, run


@pytest.mark.parametrize("scheme", ["registers", "looped", "split"])
@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_to_read(scheme: Scheme, rows: int, interpreter: Interpreter) -> None:
    """Rows without columns have the sums of nothing, as in PyTorch; no rows have no results."""
    make = PlanBuilder()
    x = make.input()
    plan = make.plan(make.op("sum", x), make.op("mean", x), make.op("exp", x), title="empty")
    empty = torch.zeros(rows, 0)
    got = run(interpreter, plan, [empty], config_of(scheme, 16))
    torch.testing.assert_close(got, evaluate(plan, [empty], "native"), equal_nan=True)


SPECIAL = (
    [0.5, -1.0, float("-inf"), 2.0] * 4,
    [float("-inf")] * 16,
    [float("-inf")] * 9 + [1.0] * 7,
    [1.0] * 3 + [float("inf")] + [0.0] * 12,
    [float("inf")] * 2 + [float("-inf")] * 14,
    [0.0] * 15 + [float("nan")],
    [float("nan")] + [float("inf")] * 15,
    [1e15, -1e15] * 8,
    [1e25, -1e25] * 8,
)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ["log-softmax", "log-sum-exp", "layer norm", "rows only"])
def test_values_that_are_no_numbers(name: str, scheme: Scheme, interpreter: Interpreter) -> None:
    plan = NAMED[name]("float32", columns=16)
    x = torch.tensor(SPECIAL)
    others = [torch.zeros(len(SPECIAL) if item.spans[0] else 1, 16) for item in plan.inputs[1:]]
    got = run(interpreter, plan, [x, *others], config_of(scheme, 4))
    for mine, want in zip(got, evaluate(plan, [x, *others], "native"), strict=True):
        torch.testing.assert_close(mine, want.expand(mine.shape), equal_nan=True)


@pytest.mark.parametrize("columns", [128, 121])
@pytest.mark.parametrize("name", ["log-softmax", "log-sum-exp", "layer norm"])
def test_values_that_are_no_numbers_in_lanes_of_several_columns(
    name: str, columns: int, interpreter: Interpreter
) -> None:
    """Of a row some lanes hold nothing else, some none; blocks have several lanes."""
    plan = NAMED[name]("float32", columns=columns)
    x = torch.tensor(SPECIAL).repeat_interleave(8, 1)[:, :columns].contiguous()
    others = [torch.zeros(len(x) if item.spans[0] else 1, columns) for item in plan.inputs[1:]]
    for scheme in schemes_of(plan)[1:]:
        got = run(interpreter, plan, [x, *others], config_of(scheme, 32, rows=2))
        for mine, want in zip(got, evaluate(plan, [x, *others], "native"), strict=True):
            torch.testing.assert_close(mine, want.expand(mine.shape), equal_nan=True)


def _hard_rows(columns: int) -> torch.Tensor:
    """Rows far from 0, or with lanes whose first value, the pivot, is far from the others."""
    noise = torch.randn(5, columns, generator=torch.Generator().manual_seed(0))
    place = torch.arange(columns)
    far = noise[0] + 1e4
    spike = torch.where(place == 0, 1e4, noise[1])  # the pivot of its lane
    every = torch.where(place % 8 == 0, 1e3, noise[2])  # all pivots are
    ramp = place / columns * 1e3 + noise[3]
    return torch.stack([far, spike, every, ramp, torch.full((columns,), 3.7)])


@pytest.mark.parametrize("columns", [4096, 4089])
@pytest.mark.parametrize("scheme", ["online", "split"])
def test_a_variance_keeps_its_digits(
    scheme: Scheme, columns: int, interpreter: Interpreter
) -> None:
    make = PlanBuilder()
    x = make.input("float32")
    found = make.op("var", x, correction=1.0), make.op("mean", x)
    plan = make.plan(*found, title="moments", sizes=(5,), columns=columns)
    rows = _hard_rows(columns)
    options: dict[str, Any] = {"block_columns": 512} | ({"splits": 3} if scheme == "split" else {})
    var, mean = interpreter.run(
        render(plan, scheme).text, [rows], [((5, 1), torch.float32)] * 2, **options
    )
    wanted = rows.double().var(1, keepdim=True)
    apart = (mean.double() - rows.double().mean(1, keepdim=True)).abs()
    eps = torch.finfo(torch.float32).eps
    assert torch.all(apart <= 4 * eps * (rows.double().mean(1, keepdim=True).abs() + wanted.sqrt()))
    # What a float32 mean of 1e4 leaves of deviations of 1; squares alone would leave nothing.
    torch.testing.assert_close(var.double(), wanted, rtol=1e-4, atol=1e-10)


NUMBERS = [0.1, 0.9, -0.3, 1 / 3, 257, 3.0, 1e-30, 65_519.0, 70_000.0, 3.4e38, float("inf"),
           float("nan"), 1e39, -1e300]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_numbers_are_compared_as_the_type_has_them(
    op: str, dtype: str, interpreter: Interpreter
) -> None:
    """PyTorch rounds them to it: 0.1 in bfloat16 is larger, and no value was equal to it."""
    torch_type = getattr(torch, dtype)
    near = torch.tensor(NUMBERS).to(torch_type)
    bits = near.view(torch.int32 if dtype == "float32" else torch.int16)
    x = torch.stack([(bits + step).view(torch_type) for step in (-1, 0, 1)])
    make = PlanBuilder()
    value = make.input(dtype)
    plan = make.plan(*(make.op(op, value, number, dtype="bool") for number in NUMBERS))
    got = run(interpreter, plan, [x], config_of("registers", 16))
    eager, exact = (evaluate(plan, [x], precision) for precision in ("native", "exact"))
    for mine, want, wide in zip(got, eager, exact, strict=True):
        assert torch.equal(mine, want)
        assert dtype == "float32" or torch.equal(mine, wide.bool()), "what kernels are judged by"


def test_an_exported_kernel_is_judged_by_numbers_of_its_type() -> None:
    make = PlanBuilder()
    x = make.input("bfloat16")
    plan = make.plan(make.op("where", make.op("gt", x, 0.3), x, 0.0), columns=64)
    text = render_standalone(Standalone(plan, config_of("registers", 16), "not timed"))
    assert "v0 = in0 > 0.30078125" in text


@pytest.mark.parametrize("number", [1e-40, -1e-45, 1e39, -1e300])
def test_numbers_beyond_float32_make_no_float64_of_it(
    number: float, interpreter: Interpreter
) -> None:
    """An epsilon of 1e-40, say: Triton makes such numbers float64, and all that they meet."""
    make = PlanBuilder()
    x = make.input("float32")
    values = [make.op(op, x, number) for op in ("add", "maximum", "minimum", "mul")]
    plan = make.plan(*values, make.op("where", make.op("gt", x, 0.0), x, number))
    given = torch.tensor([[0.0, 1e-45, -1e-45, 1e-40, 1.0, -2.0, 3e38, float("inf")]])
    got = run(interpreter, plan, [given], config_of("registers", 8))
    for mine, want in zip(got, evaluate(plan, [given], "native"), strict=True):
        torch.testing.assert_close(mine, want, rtol=0, atol=0, equal_nan=True)
    for request in requests(plan, config_of("registers", 64)):
        assert "f64" not in compiled_kernel(job_of(request, gpu_by_key("h200").target)).asm["ptx"]
