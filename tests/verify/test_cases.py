"""What kernels are tried on: distinct axes, odd widths, values that break careless code."""

from __future__ import annotations

import math

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from advisor.verify.cases import cases, make_inputs, poisoned_outputs
from tests.builders.plan import PlanBuilder, rms_norm
from tests.codegen.plans import bias_gradient, column_statistics, group_norm, norm_gradient
from tests.codegen.programs import Program, programs

CPU = torch.device("cpu")


def test_the_neighbourhood_of_a_shape() -> None:
    found = {case.name: case for case in cases(rms_norm(columns=512), small=True, block_rows=4)}
    assert {f"columns {n}" for n in (512, 511, 257, 5)} <= set(found)
    assert found["no rows"].row_sizes == (0,)
    assert found["one row"].row_sizes == (1,)
    assert found["ragged rows"].row_sizes[0] % found["ragged rows"].block_rows
    assert {"small", "zeros", "large", "special"} <= {case.values for case in found.values()}


def test_few_and_many_rows_where_they_are_reduced() -> None:
    shapes = {(c.row_sizes, c.columns) for c in cases(norm_gradient(columns=512), small=False,
                                                      block_rows=4)}  # fmt: skip
    assert {((7,), 512), ((1000,), 512), ((1000,), 7), ((1,), 7), ((0,), 512)} <= shapes
    long = cases(bias_gradient(columns=1 << 22), small=False, block_rows=1)
    assert all(math.prod(case.row_sizes) * case.columns <= 3 << 24 for case in long)
    names = {case.name for case in cases(column_statistics(), small=True, block_rows=1)}
    assert "no rows" not in names  # nothing is largest


@pytest.mark.parametrize("kind", ["norm_gradient", "bias_gradient"])
def test_outputs_that_need_all_rows_are_poisoned_in_their_own_shape(kind: str) -> None:
    plan = {"norm_gradient": norm_gradient, "bias_gradient": bias_gradient}[kind](columns=64)
    case = next(iter(cases(plan, small=True, block_rows=1)))
    shapes = [tuple(t.shape) for t in poisoned_outputs(plan, case, CPU)]
    assert shapes[0] == (*case.row_sizes, case.columns)
    assert set(shapes[1:]) == {(1, case.columns)}


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_row_of_few_columns_has_no_empty_case(columns: int) -> None:
    widths = [c.columns for c in cases(rms_norm(columns=columns), small=True, block_rows=1)]
    assert min(widths) >= 1


def test_an_interpreter_gets_small_shapes_and_a_gpu_the_real_ones() -> None:
    plan = rms_norm(columns=8192)
    assert max(c.columns for c in cases(plan, small=True, block_rows=1)) == 1024
    assert max(c.columns for c in cases(plan, small=False, block_rows=1)) == 8192


def test_very_long_rows_are_few() -> None:
    for case in cases(rms_norm(columns=1 << 22), small=False, block_rows=1):
        assert math.prod(case.row_sizes) * case.columns <= 6 << 22


def test_sizes_of_neighbouring_axes_differ() -> None:
    make = PlanBuilder(row_axes=3)
    plan = make.plan(make.op("exp", make.input()))
    first = next(iter(cases(plan, small=True, block_rows=1)))
    assert all(a != b for a, b in zip(first.row_sizes, first.row_sizes[1:], strict=False))


@given(program=programs())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_inputs_are_what_the_plan_promises(program: Program) -> None:
    plan = program.plan
    for case in cases(plan, small=True, block_rows=program.block_rows):
        sizes = (*case.row_sizes, *case.column_sizes)
        for item, tensor in zip(plan.inputs, make_inputs(plan, case, CPU, 0), strict=True):
            along = plan.along(item)
            want = [size if span else 1 for size, span in zip(sizes, along, strict=True)]
            assert list(tensor.shape) == want
            assert str(tensor.dtype) == f"torch.{item.dtype}"
            assert not item.dense or tensor.is_contiguous()
            if item.unit_stride and tensor.shape[-1] > 1 and tensor.numel():
                assert tensor.stride(-1) == 1
            if not item.dense and along[-1] and tensor.shape[-2] > 1 and tensor.numel():
                assert not tensor.is_contiguous(), "strides must be seen to be used"
        again = make_inputs(plan, case, CPU, 0)
        assert all(
            torch.equal(torch.nan_to_num(a.float()), torch.nan_to_num(b.float()))
            for a, b in zip(make_inputs(plan, case, CPU, 0), again, strict=True)
        )


def test_channels_in_the_middle_stay_small_and_keep_their_axes() -> None:
    plan = group_norm(sizes=(8, 32), columns=(10, 4096))
    found = list(cases(plan, small=True, block_rows=1))
    assert all(len(case.column_sizes) == 2 and case.columns <= 1024 for case in found)
    assert {case.column_sizes for case in found} >= {(10, 102), (10, 101), (10, 52), (2, 2)}
    large = next(iter(cases(plan, small=False, block_rows=1)))
    assert large.column_sizes == (10, 4096)


def test_outputs_are_laid_out_as_at_the_site() -> None:
    plan = group_norm(channels_last=True, sizes=(2, 4), columns=(6, 5))
    strides = ((120, 5, 20, 1), (4, 1, 0, 0), (4, 1, 0, 0))
    site = msgspec.structs.replace(plan.sites[0], output_strides=strides)
    plan = msgspec.structs.replace(plan, sites=(site,))
    case = next(iter(cases(plan, small=True, block_rows=1)))
    out = poisoned_outputs(plan, case, CPU)[0]
    assert out.shape == (*case.row_sizes, *case.column_sizes)
    rows, groups, pixels, channels = out.stride()
    assert rows > pixels > groups > channels == 1


def test_special_values_are_all_there() -> None:
    plan = rms_norm(columns=64)
    case = next(c for c in cases(plan, small=True, block_rows=1) if c.values == "special")
    x = make_inputs(plan, case, CPU, 3)[0].float()
    assert x.isnan().any()
    assert x.isposinf().any()
    assert x.isneginf().any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "bool", "int8", "int64"])
def test_poison_fits_every_dtype(dtype: str) -> None:
    make = PlanBuilder()
    plan = make.plan(make.cast(make.input(), dtype))
    case = next(iter(cases(plan, small=True, block_rows=1)))
    (out,) = poisoned_outputs(plan, case, CPU)
    assert str(out.dtype) == f"torch.{dtype}"
    assert out.shape == (*case.row_sizes, case.columns)
    if out.is_floating_point():
        assert math.isfinite(float(out[0, 0])), "an infinite poison could be a result"
        assert float(out[0, 0]) > 1e4


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bits_are_filled_by_their_bits(dtype: str) -> None:
    """Poison is NaN there, since any number may be right; special values are what they are."""
    make = PlanBuilder()
    plan = make.plan(make.cast(make.cast(make.input(dtype), "float32"), dtype))
    case = next(c for c in cases(plan, small=True, block_rows=1) if c.values == "special")
    (given,) = make_inputs(plan, case, CPU, 0)
    assert bool(given.float().isnan().any())
    (out,) = poisoned_outputs(plan, case, CPU)
    assert bool(out.float().isnan().all())
