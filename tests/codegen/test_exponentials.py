"""Special functions that cost less where they stand: as exact as they must be, at the ends too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("triton", reason="kernels need triton")

import torch

from advisor.codegen import render
from advisor.codegen.exponentials import (
    divided_by_exponentials,
    erfs_beside_numbers,
    exponentials_told_from_0,
)
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.verify.interpret import evaluate
from tests.builders.plan import PlanBuilder
from tests.codegen.interpreter import Interpreter
from tests.codegen.test_schemes import run

INF, NAN = float("inf"), float("nan")
ENDS = (0.0, -0.0, INF, -INF, NAN, 88.0, -88.0, 90.0, -90.0, 1e30, -1e30, 1e-30, 4.0, -4.0)


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    with Interpreter(tmp_path_factory.mktemp("interpreter")) as child:
        yield child


def silu(make: PlanBuilder, x: str) -> str:
    return make.op("div", x, make.op("add", make.op("exp", make.op("neg", x)), 1))


def written_sigmoid(make: PlanBuilder, x: str) -> str:
    return make.op("reciprocal", make.op("add", make.op("exp", make.op("neg", x)), 1))


def sigmoid(make: PlanBuilder, x: str) -> str:
    return make.op("sigmoid", x)


def softmax(make: PlanBuilder, x: str) -> str:
    power = make.op("exp", make.op("sub", x, make.op("amax", x)))
    return make.op("div", power, make.op("sum", power))


def gelu(make: PlanBuilder, x: str) -> str:
    beside = make.op("add", make.op("erf", make.op("mul", x, 0.7071067811865476)), 1)
    return make.op("mul", make.op("mul", x, 0.5), beside)


def plan_of(write: Callable[[PlanBuilder, str], str]) -> FusionPlan:
    make = PlanBuilder()
    return make.plan(write(make, make.input()), sizes=(3,), columns=64)


def given() -> torch.Tensor:
    """Ordinary numbers, then ends: a row of softmax is finite, one is not."""
    x = 6 * torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    x[1, : len(ENDS)] = torch.tensor(ENDS)
    x[2] = -INF
    return x


# Beside the exact result: of its own size, and of the size of what is added up on the way.
LIMITS = {
    silu: (2e-6, 0.0),
    written_sigmoid: (2e-6, 0.0),
    sigmoid: (2e-6, 0.0),
    softmax: (4e-6, 0.0),
    gelu: (1e-6, 6e-7),
}


@pytest.mark.parametrize("write", LIMITS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("scheme", ["registers", "looped"])
def test_they_are_what_they_stand_for(
    write: Callable[[PlanBuilder, str], str], scheme: str, interpreter: Interpreter
) -> None:
    plan, x = plan_of(write), given()
    assert divided_by_exponentials(plan.ops) | erfs_beside_numbers(plan) or write is sigmoid
    block = 16 if scheme == "looped" else None
    config = LaunchConfig(scheme=scheme, block_columns=block)  # type: ignore[arg-type]
    (got,) = run(interpreter, plan, [x], config)
    (native,) = evaluate(plan, [x], "native")
    (exact,) = evaluate(plan, [x], "exact")
    assert torch.equal(got.isnan(), native.isnan())
    assert torch.equal(got.isinf(), native.isinf())
    relative, absolute = LIMITS[write]
    finite = torch.isfinite(native)
    # A reciprocal below the smallest normal number may become 0, whatever multiplies it.
    allowed = relative * exact.abs() + absolute + torch.finfo(torch.float32).tiny * x.abs().clamp(1)
    assert bool(((got.double() - exact).abs() <= allowed)[finite].all())


def test_only_what_cannot_be_negative_is_inverted_by_a_root() -> None:
    make = PlanBuilder()
    x = make.input()
    power = make.op("exp", x)
    shifted = make.op("sub", power, 1)
    over_shifted = make.op("div", x, shifted)
    over_input = make.op("div", x, x)
    lowered = make.op("add", power, -0.5)
    over_lowered = make.op("div", x, lowered)
    widened = make.cast(make.op("add", make.op("mul", power, 2.0), 0.5), "float32")
    over_power = make.op("div", x, widened)
    total = over_shifted
    for one in (over_input, over_lowered, over_power):
        total = make.op("add", total, one)
    plan = make.plan(total)
    assert divided_by_exponentials(plan.ops) == {over_power}
    assert render(plan).text.count("inverse(") == 2  # its definition, and one call


def naive(make: PlanBuilder, x: str) -> str:
    """A softmax that nothing keeps from growing, or from next to nothing."""
    power = make.op("exp", x)
    return make.op("div", power, make.op("sum", power))


def temperate(make: PlanBuilder, x: str) -> str:
    power = make.op("exp", make.op("mul", make.op("sub", x, make.op("amax", x)), 0.5))
    return make.op("div", power, make.op("sum", power))


@pytest.mark.parametrize(
    ("write", "told"),
    [
        (naive, True),
        (lambda make, x: make.op("log", naive(make, x)), True),
        (lambda make, x: make.op("log", softmax(make, x)), True),
        (lambda make, x: make.op("log", make.op("sum", make.op("exp", x))), True),
        (lambda make, x: make.op("gt", make.op("exp", x), 0.0), True),
        (lambda make, x: make.op("gt", make.op("exp", x), 0.5), False),
        (lambda make, x: make.op("log", make.op("add", make.op("exp", x), 1)), False),
        (softmax, False),
        (temperate, False),
        (silu, False),
    ],
)
def test_who_tells_the_tiniest_exponential_from_0_gets_it(
    write: Callable[[PlanBuilder, str], str], told: bool
) -> None:
    """2^x gives 0 for what is below the smallest normal number, and its root has no reciprocal."""
    plan = plan_of(write)
    assert bool(exponentials_told_from_0(plan.ops)) == told
    assert ("= tl.exp(" in render(plan).text) == told
    assert bool(divided_by_exponentials(plan.ops)) == (write in (softmax, temperate, silu)) or told


def test_shares_of_next_to_nothing_are_shares(interpreter: Interpreter) -> None:
    plan = plan_of(naive)
    (got,) = run(interpreter, plan, [torch.full((3, 64), -95.0)], LaunchConfig(scheme="registers"))
    torch.testing.assert_close(got, torch.full((3, 64), 1 / 64))


def test_an_erf_by_itself_keeps_its_digits() -> None:
    """Near 0 it is as small as its operand: only a sum hides what is lost there."""
    for write in (
        lambda make, x: make.op("erf", x),
        lambda make, x: make.op("mul", make.op("erf", x), 3.0),
        lambda make, x: make.op("add", make.op("erf", x), 0.01),
        lambda make, x: make.op("add", make.op("erf", x), x),
    ):
        plan = plan_of(write)
        assert not erfs_beside_numbers(plan)
        assert "erf_beside" not in render(plan).text
    make = PlanBuilder()
    one = make.op("erf", make.input())
    both = make.plan(make.op("add", one, 1), one)
    assert not erfs_beside_numbers(both)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_tanh_of_16_bits_is_within_a_last_place(dtype: str, interpreter: Interpreter) -> None:
    """Of every number of the type: the series for small ones is left out."""
    kind: torch.dtype = getattr(torch, dtype)
    make = PlanBuilder()
    plan = make.plan(make.op("tanh", make.input(dtype)), sizes=(64,), columns=1024)
    source = render(plan, "blocks").text
    assert "tanh_16(" in source
    assert "def tanh(" not in source
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(kind).view(64, 1024)
    (got,) = run(interpreter, plan, [x], LaunchConfig(scheme="blocks", block_columns=1024))
    want = torch.tanh(x.double())
    assert torch.equal(got.isnan(), want.isnan())
    last = torch.nextafter(want.to(kind).abs(), torch.full_like(got, INF)) - want.to(kind).abs()
    # What is no normal float32 may be taken for 0.
    tried = ~want.isnan() & ((want.abs() >= torch.finfo(torch.float32).tiny) | (want == 0))
    assert bool(((got.double() - want).abs() <= last.double())[tried].all())


def test_what_divides_a_row_is_inverted_once(interpreter: Interpreter) -> None:
    """Nothing over- or underflows on the way that the quotient does not; ends are those of `/`."""
    ends = [0.0, -0.0, INF, -INF, NAN, 1e-45, 1e-38, 3e38, -3e38, 1e-31, 1e31, 1.0, -3.0, 1e-30]
    make = PlanBuilder()
    x, row = make.input("float32"), make.input("float32", spans=(True, False))
    plan = make.plan(make.op("div", x, row), sizes=(len(ends),), columns=len(ends))
    assert "divided(" in render(plan, "blocks").text
    given = [torch.tensor([ends] * len(ends)), torch.tensor(ends)[:, None]]
    (got,) = run(interpreter, plan, given, LaunchConfig(scheme="blocks", block_columns=16))
    want = given[0] / given[1]
    exact = given[0].double() / given[1].double()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())
    other = PlanBuilder()
    y, by = other.input("float32"), other.input("float32", spans=(True, False))
    rounded = other.plan(other.op("round", other.op("div", y, by)), sizes=(3,), columns=16)
    assert "divided(" not in render(rounded, "blocks").text
    sized = torch.isfinite(want)
    allowed = 2.5e-7 * exact.abs() + torch.finfo(torch.float32).tiny
    assert bool(((got.double() - exact).abs() <= allowed)[sized].all())


def test_scaling_takes_no_quotient_out_of_range(interpreter: Interpreter) -> None:
    """Divisors on both sides of where both are scaled; quotients at the ends of float32."""
    by = torch.tensor(
        [2.0**power * part for power in (-100, 100) for part in (0.51, 0.99, 1.0, 1.2)]
    )
    ends = torch.tensor([1.2e-38, 1.0, 3.3e38], dtype=torch.float64)
    x = (by.double()[:, None] * ends).float()
    sized = torch.isfinite(x) & (x >= torch.finfo(torch.float32).tiny)
    make = PlanBuilder()
    values, row = make.input("float32"), make.input("float32", spans=(True, False))
    plan = make.plan(make.op("div", values, row), sizes=(len(by),), columns=len(ends))
    given = [x, by[:, None].contiguous()]
    (got,) = run(interpreter, plan, given, LaunchConfig(scheme="blocks", block_columns=4))
    want = x.double() / by.double()[:, None]
    torch.testing.assert_close(got.double()[sized], want[sized], rtol=3e-7, atol=0.0)


def test_a_maximum_that_is_written_is_of_exact_quotients() -> None:
    """A backward kernel divides again and gives the gradient to what equals the maximum."""
    for written in (True, False):
        make = PlanBuilder()
        quotient = make.op("div", make.input(), make.input(spans=(True, False)))
        peak = make.op("amax", quotient)
        outputs = (make.op("sub", quotient, peak), *((peak,) if written else ()))
        assert ("divided(" in render(make.plan(*outputs), "registers").text) != written
