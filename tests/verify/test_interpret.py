"""A plan run by PyTorch: eager's own dtypes, or float64 without rounding."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from advisor.model.optable import FLOAT_DTYPES
from advisor.model.plan import PlanOutput
from advisor.verify.interpret import evaluate
from tests.builders.plan import PlanBuilder, rms_norm
from tests.codegen.programs import Program, programs


def test_native_is_eager_bit_for_bit() -> None:
    x, weight = torch.randn(5, 64).bfloat16(), torch.randn(1, 64).bfloat16()
    wide = x.float()
    want = (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)).bfloat16() * weight
    (got,) = evaluate(rms_norm(), [x, weight], "native")
    assert torch.equal(got, want)


def test_exact_does_not_round() -> None:
    make = PlanBuilder()
    plan = make.plan(make.cast(make.op("div", make.input(), 3.0), "bfloat16"))
    x = torch.ones(1, 4)
    (got,) = evaluate(plan, [x], "exact")
    assert got.dtype == torch.float64
    assert torch.equal(got, torch.full((1, 4), 1 / 3, dtype=torch.float64))


def test_casts_to_integers_happen_in_either_precision() -> None:
    make = PlanBuilder()
    whole = make.cast(make.input(), "int32")
    plan = make.plan(make.op("mul", make.cast(whole, "float32"), 0.5))
    x = torch.tensor([[1.9, -1.9]])
    for precision in ("native", "exact"):
        (got,) = evaluate(plan, [x], precision)  # type: ignore[arg-type]
        assert got.tolist() == [[0.5, -0.5]]


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_a_literal_may_stand_on_either_side(name: str) -> None:
    make = PlanBuilder()
    x = make.input()
    plan = make.plan(make.op(name, 0.5, x), make.op(name, x, 0.5))
    values = torch.tensor([[0.0, 0.5, 1.0]])
    left, right = evaluate(plan, [values], "native")
    function = getattr(torch, name)
    assert torch.equal(left, function(torch.full_like(values, 0.5), values))
    assert torch.equal(right, function(values, 0.5))


@given(program=programs())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_values_have_the_dtype_and_the_axes_that_the_plan_says(program: Program) -> None:
    plan = program.plan
    every = tuple(PlanOutput(value=op.name, dtype=op.dtype, space=op.space) for op in plan.ops)
    plan = msgspec.structs.replace(plan, outputs=every)
    inputs = program.inputs()
    native, exact = evaluate(plan, inputs, "native"), evaluate(plan, inputs, "exact")
    for op, narrow, wide in zip(plan.ops, native, exact, strict=True):
        assert str(narrow.dtype) == f"torch.{op.dtype}"
        assert wide.dtype == (torch.float64 if op.dtype in FLOAT_DTYPES else narrow.dtype)
        assert narrow.shape == wide.shape
        rows, columns = narrow.shape[: plan.row_axes], narrow.shape[plan.row_axes :]
        assert op.space in ("tile", "column") or set(columns) == {1}
        assert op.space in ("tile", "row") or set(rows) == {1}
