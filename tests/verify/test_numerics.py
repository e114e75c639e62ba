"""Wrong kernels must fail, each with the reason a person needs; right ones pass everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="interpreting kernels needs triton")

from advisor.codegen import render
from advisor.model import base
from advisor.model.applied import Numerics
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.model.tolerance import roundings
from advisor.verify._numerics_worker import compared, error_ulps, tolerance, unit_of
from advisor.verify.cases import Case, make_inputs
from advisor.verify.interpret import evaluate
from advisor.verify.numerics import NumericsProcess
from tests.builders.gemm_plans import biased_gelu
from tests.builders.plan import PlanBuilder, rms_norm
from tests.builders.verified import verify_numerics

CONFIG = LaunchConfig(block_rows=2, num_warps=4)

FLOAT32, BFLOAT16 = torch.finfo(torch.float32).eps, torch.finfo(torch.bfloat16).eps


@pytest.fixture(scope="module")
def process() -> Iterator[NumericsProcess]:
    """Verifies one kernel after the other."""
    with NumericsProcess("cpu") as held:
        yield held


def quickly(
    process: NumericsProcess, plan: FusionPlan, folder: Path, *edits: tuple[str, str]
) -> Numerics:
    """The verdict of a process that imported what it needs before."""
    plan_path, kernel_path = written(plan, folder, edits)
    return process.verify(plan_path, kernel_path, CONFIG)


def verdict(
    plan: FusionPlan, folder: Path, *edits: tuple[str, str], timeout_s: float = 60.0
) -> Numerics:
    """Verify the plan against its kernel after each of `edits` was made in the text, once."""
    plan_path, kernel_path = written(plan, folder, edits)
    return verify_numerics(plan_path, kernel_path, device="cpu", config=CONFIG, timeout_s=timeout_s)


def written(plan: FusionPlan, folder: Path, edits: Sequence[tuple[str, str]]) -> tuple[Path, Path]:
    """The files of a plan and of its edited kernel."""
    text = render(plan).text
    for old, new in edits:
        assert text.count(old) >= 1, f"{old!r} is not in the kernel"
        text = text.replace(old, new)
    plan_path, kernel_path = folder / "plan.json", folder / f"{plan.id}.py"
    plan_path.write_bytes(base.encode(plan))
    kernel_path.write_text(text)
    return plan_path, kernel_path


def failures(found: Numerics) -> dict[str, str]:
    assert not found.passed
    return {case.name: case.detail for case in found.cases if not case.passed}


def difference() -> FusionPlan:
    """Rows of the first input, cut out of wider storage, minus the second."""
    make = PlanBuilder()
    wide, narrow = make.input(dense=False), make.input(spans=(False, True))
    return make.plan(make.op("sub", wide, narrow), title="difference", columns=40)


def peak() -> FusionPlan:
    """The largest value of each row, and whether the row is above zero."""
    make = PlanBuilder()
    x = make.input()
    top = make.op("amax", x)
    return make.plan(top, make.op("gt", top, 0.0), title="peak", columns=40)


def test_a_wrong_constant_shows_beside_small_values(
    tmp_path: Path, process: NumericsProcess
) -> None:
    found = failures(quickly(process, rms_norm(dtype="float32"), tmp_path, ("1e-06", "1.01e-06")))
    assert "small values" in found
    assert "ulps, at most" in found["small values"]
    assert found["small values"].startswith("v")


def test_an_unwritten_column_keeps_its_poison(tmp_path: Path) -> None:
    edit = ("mask=row_ok & column_ok)", "mask=row_ok & (columns < n_columns - 1))")
    found = failures(verdict(rms_norm(), tmp_path, edit))
    assert any(name.startswith("columns") for name in found)
    assert all("ulps" in detail for name, detail in found.items() if name.startswith("columns"))


def test_a_wrong_row_stride(tmp_path: Path, process: NumericsProcess) -> None:
    found = failures(quickly(process, difference(), tmp_path, ("* in0_stride_0", "* n_columns")))
    assert "one row" not in found
    assert "columns 40" in found


def test_swapped_operands(tmp_path: Path, process: NumericsProcess) -> None:
    found = failures(
        quickly(process, difference(), tmp_path, ("in0_value - in1_value", "in1_value - in0_value"))
    )
    assert "zeros values" not in found
    assert {"columns 40", "one row", "small values"} <= set(found)


def test_nan_must_come_through(tmp_path: Path, process: NumericsProcess) -> None:
    # The interpreter's own maximum lets NaN through whatever it is told.
    edit = ("tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)", "tl.where(a > b, a, b)")
    found = failures(quickly(process, peak(), tmp_path, edit))
    assert set(found) == {"special values"}
    assert "non-finite where eager's are not" in found["special values"]


def test_another_test_is_another_program(tmp_path: Path, process: NumericsProcess) -> None:
    found = failures(quickly(process, peak(), tmp_path, ("v1 = v0 > 0.0", "v1 = v0 >= 0.0")))
    assert set(found) == {"zeros values"}
    assert "integer results differ" in found["zeros values"]


def test_an_input_may_not_be_written(tmp_path: Path, process: NumericsProcess) -> None:
    line = "    tl.store(out0 + row_start + columns"
    edit = (line, "    tl.store(in0 + row_start + columns, 0.0, mask=row_ok & column_ok)\n" + line)
    found = failures(quickly(process, rms_norm(), tmp_path, edit))
    assert set(found.values()) == {"an input was overwritten"}


def test_a_crash_is_told_with_its_status_and_last_words(tmp_path: Path) -> None:
    crash = ("    return out", "    raise ArithmeticError('planted')")
    found = verdict(rms_norm(), tmp_path, crash)
    assert found.cases[0].detail.endswith("status 1: ArithmeticError: planted")
    killed = ("import torch\n", "import os, torch\nos.abort()\n")
    found = verdict(rms_norm(), tmp_path, killed)
    assert "was killed by signal 6 (SIGABRT)" in found.cases[0].detail


def test_a_hang_is_ended(tmp_path: Path) -> None:
    hang = ("import torch\n", "import time, torch\ntime.sleep(600)\n")
    found = verdict(rms_norm(), tmp_path, hang, timeout_s=4)
    assert failures(found) == {"run": "it has no end within 4 s"}


def test_silence_is_no_verdict(tmp_path: Path) -> None:
    mute = ("import torch\n", "import os, torch\nos._exit(0)\n")
    found = verdict(rms_norm(), tmp_path, mute)
    assert failures(found) == {"run": "the kernel's process ended with status 0"}


def test_what_one_kernel_does_to_the_process_costs_no_other(tmp_path: Path) -> None:
    crash = ("import torch\n", "import os, torch\nos.abort()\n")
    (tmp_path / "bad").mkdir()
    (tmp_path / "good").mkdir()
    with NumericsProcess("cpu") as held:
        assert "SIGABRT" in failures(quickly(held, rms_norm(), tmp_path / "bad", crash))["run"]
        assert quickly(held, rms_norm(), tmp_path / "good").passed


def test_a_right_kernel_passes(tmp_path: Path) -> None:
    found = verdict(rms_norm(dtype="float16"), tmp_path)
    assert failures_or_none(found) == {}
    assert found.executed_on == "interpreter"
    assert {"no rows", "ragged rows", "special values"} <= {case.name for case in found.cases}


def failures_or_none(found: Numerics) -> dict[str, str]:
    return {case.name: case.detail for case in found.cases if not case.passed}


def test_many_outputs_axes_and_strides_pass(tmp_path: Path, process: NumericsProcess) -> None:
    make = PlanBuilder(row_axes=3)
    x = make.input("bfloat16", dense=False)
    mask = make.input("bool", (True, False, False, True), dense=False, unit_stride=False)
    scale = make.input("float32", (False, True, True, False), dense=False)
    wide = make.op("mul", make.cast(x, "float32"), scale)
    kept = make.op("where", mask, wide, "-inf")
    top = make.op("amax", kept)
    safe = make.op("where", make.op("isinf", top), 0.0, top)
    powers = make.op("exp", make.op("sub", kept, safe))
    total = make.op("add", make.op("sum", powers), 1e-9)
    out = make.cast(make.op("div", powers, total), "bfloat16")
    plan = make.plan(
        out, top, make.op("gt", total, 1.0), title="mixed", sizes=(2, 3, 4), columns=24
    )
    assert failures_or_none(quickly(process, plan, tmp_path)) == {}


def test_errors_are_counted_in_last_places() -> None:
    truth = torch.tensor([[1.0, 1.0, 1e-3]], dtype=torch.float64)
    value = truth.float()
    assert error_ulps(value, truth, True, FLOAT32) < 0.01
    value[0, 0] += 3 * 2**-23
    assert error_ulps(value, truth, True, FLOAT32) == pytest.approx(3, abs=0.01)
    # A small element is measured by the largest of its row.
    value = truth.float()
    value[0, 2] += 2**-23
    assert error_ulps(value, truth, True, FLOAT32) == pytest.approx(1, abs=0.01)
    assert error_ulps(torch.full((1, 3), torch.nan), truth, True, FLOAT32) == 0.0


def test_rows_are_judged_by_their_own_size() -> None:
    truth = torch.tensor([[1e6, 1.0], [1e-6, 1e-6]], dtype=torch.float64)
    value = truth.float()
    value[1, 0] *= 1 + 2**-18
    assert error_ulps(value, truth, True, FLOAT32) > 20
    assert error_ulps(value, truth, False, FLOAT32) < 1e-4


@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_as_right_as_eager_passes_in_a_lone_column(
    dtype: str, turned: tuple[bool, bool]
) -> None:
    """Sums that vanish there, and an operand of one element with the strides of a matrix."""
    plan = biased_gelu((512, 1024, 768), dtype, turned=turned, both=True)
    case = Case("", (128, 1), (1,), "normal")
    inputs = make_inputs(plan, case, torch.device("cpu"), seed=1)
    before = [tensor.clone() for tensor in inputs]
    found = compared(plan, case, before, inputs, evaluate(plan, inputs, "native"))
    assert found.passed, found.detail
    wrong = [1.05 * tensor for tensor in evaluate(plan, inputs, "native")]
    assert "ulps" in compared(plan, case, before, inputs, wrong).detail
    inputs[1][...] += 1
    now = evaluate(plan, inputs, "native")
    assert compared(plan, case, before, inputs, now).detail == "an input was overwritten"


def test_tolerance_grows_with_what_the_plan_asks_for() -> None:
    plan = rms_norm()
    out = plan.outputs[0].value
    before_cast = next(op.name for op in plan.ops if op.op == "rsqrt")
    short, long = (tolerance(plan, before_cast, FLOAT32, n, 0.0) for n in (64, 4096))
    assert long == short + 6
    assert tolerance(plan, out, BFLOAT16, 64, 0.0) == 3
    # Eager's own error stretches the allowance, but only so far.
    assert tolerance(plan, out, BFLOAT16, 64, 4.0) == 8
    assert tolerance(plan, out, BFLOAT16, 64, 1e9) == 12
    assert tolerance(plan, before_cast, FLOAT32, 64, 1e9) == 64


def test_errors_are_counted_in_the_coarsest_type_on_the_way() -> None:
    plan = rms_norm()
    out = plan.outputs[0].value
    assert roundings(plan, out) == ("bfloat16",)
    assert roundings(plan, plan.ops[0].name) == ()
    assert unit_of(torch.float32, roundings(plan, out)) == BFLOAT16
    assert unit_of(torch.float32, ()) == FLOAT32


def silu_gradient(dtype: str = "bfloat16") -> FusionPlan:
    """silu'(x w) for rows x and their weights: rounded on the way, and far below zero x w e^(x w),
    in which an error of x w is x w times as large.
    """
    make = PlanBuilder()
    x, w = make.input(), make.input(spans=(True, False))
    inner = make.cast(make.cast(make.op("mul", x, w), dtype), "float32")
    gate = make.op("sigmoid", inner)
    slope = make.op("add", make.op("mul", inner, make.op("sub", 1, gate)), 1)
    return make.plan(make.op("mul", gate, slope), title="silu gradient", columns=40)


def far_below_zero(plan: FusionPlan) -> tuple[Case, list[torch.Tensor]]:
    """Rows of which the plan's cast alone moves results by more than 16 of its last places."""
    case = Case("", (8,), (40,), "normal", block_rows=2)
    x, w = make_inputs(plan, case, torch.device("cpu"), seed=0)
    return case, [x.abs() + 30, -(w.abs() + 1.5)]


def as_a_kernel(plan: FusionPlan, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(found.float() for found in evaluate(plan, inputs, "as_planned"))


def test_what_the_casts_of_a_plan_cost_is_no_fault_of_its_kernel() -> None:
    plan = silu_gradient()
    case, inputs = far_below_zero(plan)
    before = [tensor.clone() for tensor in inputs]
    found = compared(plan, case, before, inputs, as_a_kernel(plan, inputs))
    assert (found.max_error_ulps or 0) > 16, "nothing is shown"
    assert found.passed, found.detail


def test_what_is_near_neither_the_exact_nor_the_planned_results_is_wrong() -> None:
    plan = silu_gradient()
    case, inputs = far_below_zero(plan)
    before = [tensor.clone() for tensor in inputs]
    for factor in (0.5, 0.8, 1.2, 2.0):
        wrong = [factor * tensor for tensor in as_a_kernel(plan, inputs)]
        assert "ulps, at most" in compared(plan, case, before, inputs, wrong).detail
    cut = [tensor.clone() for tensor in inputs]
    cut[0] *= 1 - 2**-8  # as an x that was rounded to another number, always in one direction
    assert not compared(plan, case, before, inputs, as_a_kernel(plan, cut)).passed


def test_rounding_in_the_middle_is_to_the_nearest_also_interpreted(
    tmp_path: Path, process: NumericsProcess
) -> None:
    """Cut off, as Triton's interpreter does it, it is twice as far from the exact results."""
    found = quickly(process, silu_gradient(), tmp_path)
    assert failures_or_none(found) == {}
    for case in found.cases:
        assert (case.max_error_ulps or 0) <= (case.eager_error_ulps or 0) + 0.1, case.name
    cut = ("v1 = to_bfloat16(v0)", "v1 = v0.to(tl.bfloat16).to(tl.float32)")
    other = quickly(process, silu_gradient(), tmp_path, cut)
    assert worst_error(other) > 1.5 * worst_error(found), "the interpreter rounds by now"


def worst_error(found: Numerics) -> float:
    return max(case.max_error_ulps or 0 for case in found.cases)
