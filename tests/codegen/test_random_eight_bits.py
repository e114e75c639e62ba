"""Dropout drawn from a seed, and rows quantised to eight bits: what kernels give, in every scheme.

Triton's interpreter draws as a GPU does, but rounds to eight bits otherwise: there kernels compute
the bits as PyTorch does, so what a GPU's own instruction gives is shown on GPUs only (`tests/gpu`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.apply.kernels import write_source
from advisor.codegen import render
from advisor.codegen.gradient import gradient
from advisor.errors import InvalidRecordError
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import encode
from advisor.model.configs import candidate_configs, schemes_of
from advisor.model.launch import Scheme
from advisor.model.plan import FusionPlan
from advisor.model.spaces import Space
from advisor.model.tolerance import steps
from advisor.pipeline.candidates import requests
from advisor.verify.interpret import evaluate
from advisor.verify.philox import uniform
from advisor.verify.resources import resources_of
from tests.builders.plan import PlanBuilder
from tests.builders.quantised import LIMITS, rounded
from tests.builders.verified import verify_numerics
from tests.codegen.interpreter import Interpreter
from tests.codegen.test_column_sums import config_of as column_config_of
from tests.codegen.test_schemes import config_of, run

EIGHT = ("float8_e4m3fn", "float8_e5m2")
ONE = (False, False)


def dropped(make: PlanBuilder, value: str, dtype: str, share: float = 0.25) -> tuple[str, str]:
    """(value with a share of its elements dropped, the mask), as Inductor writes it."""
    seed = make.input("int64", (False,) * (make.row_axes + 1))
    mask = make.op("gt", make.cast(make.random(seed), dtype), share)
    return make.op("mul", make.op("mul", mask, value, dtype=dtype), 1 / (1 - share)), mask


def residual(dtype: str, *, dense: bool = True) -> FusionPlan:
    make = PlanBuilder()
    x, r = make.input(dtype, dense=dense), make.input(dtype)
    kept, mask = dropped(make, x, dtype)
    return make.plan(make.op("add", r, kept), mask, title="dropout, residual")


def norm(dtype: str, *, dense: bool = True) -> FusionPlan:
    make = PlanBuilder()
    x, r = make.input(dtype, dense=dense), make.input(dtype)
    w = make.input(dtype, (False, True))
    kept, mask = dropped(make, x, dtype)
    wide = make.cast(make.op("add", r, kept), "float32")
    spread = make.op("add", make.op("var", wide, correction=0.0), 1e-5)
    scaled = make.op("mul", make.op("sub", wide, make.op("mean", wide)), make.op("rsqrt", spread))
    return make.plan(make.op("mul", make.cast(scaled, dtype), w), mask, title="dropout, norm")


def softmax(dtype: str, *, dense: bool = True) -> FusionPlan:
    make = PlanBuilder(row_axes=2)
    wide = make.cast(make.input(dtype, dense=dense), "float32")
    power = make.op("exp", make.op("sub", wide, make.op("amax", wide)))
    share = make.cast(make.op("div", power, make.op("sum", power)), dtype)
    return make.plan(*dropped(make, share, dtype), title="softmax, dropout")


def backward(dtype: str, *, dense: bool = True) -> FusionPlan:
    """The mask of the forward pass drawn again, and the gradient of a bias summed over the rows."""
    make = PlanBuilder()
    kept, _ = dropped(make, make.input(dtype, dense=dense), dtype)
    total = make.over_rows("sum", make.cast(kept, "float32"))
    return make.plan(kept, total, title="dropout backward")


def quantised(dtype: str, target: str, *, dense: bool = True, clamp: bool = True) -> FusionPlan:
    """`(x / s)` rounded to eight bits, s = max |x| / limit: of every row, or of a block of one."""
    make = PlanBuilder()
    small, scale = rounded(make, dtype, target, dense=dense, clamp=clamp)
    return make.plan(small, scale, title=f"quantised to {target}")


def dequantised(dtype: str, source: str) -> FusionPlan:
    """An RMS norm of what eight bits and a scale hold, and its result in eight bits again."""
    make = PlanBuilder()
    q, scale, w = make.input(source), make.input("float32", (True, False)), make.input(dtype)
    wide = make.op("mul", make.cast(q, "float32"), scale)
    mean = make.op("add", make.op("mean", make.op("mul", wide, wide)), 1e-5)
    scaled = make.op("mul", make.op("mul", wide, make.op("rsqrt", mean)), make.cast(w, "float32"))
    stored = make.cast(scaled, "float8_e5m2")
    again = make.cast(make.cast(stored, "float32"), dtype)
    return make.plan(make.cast(scaled, dtype), stored, again, title="dequantised")


def inputs_of(plan: FusionPlan, rows: tuple[int, ...], columns: int, number: int = 0):  # type: ignore[no-untyped-def]
    """Random inputs; seeds use all 64 bits, what is not dense is cut out of wider rows."""
    generator = torch.Generator().manual_seed(number)
    found = []
    for item in plan.inputs:
        shape = [n if s else 1 for n, s in zip((*rows, columns), item.spans, strict=True)]
        if item.dtype == "int64":
            found.append(torch.randint(2**63 - 1, shape, generator=generator))
            continue
        stored = shape if item.dense else [*shape[:-1], shape[-1] + 3]
        values = torch.randn(stored, generator=generator).to(getattr(torch, item.dtype))
        found.append(values[..., : shape[-1]])
    return found


def assert_same(
    plan: FusionPlan, got: tuple[torch.Tensor, ...], inputs: list[torch.Tensor]
) -> None:
    """Masks and rounded integers equal PyTorch's, floats to the coarsest type on their way."""
    kinds = [op.dtype for op in plan.ops if op.op == "cast"]
    for output, mine, own in zip(plan.outputs, got, evaluate(plan, inputs, "native"), strict=True):
        want = own.expand(mine.shape)
        assert mine.dtype == want.dtype
        if output.dtype == "bool":
            assert torch.equal(mine, want)
        elif steps(plan, output.value):
            apart = (mine.int() - want.int()).abs()
            assert int(apart.sum()) <= 1 + apart.numel() // 500
        elif mine.numel():
            floats = [torch.finfo(getattr(torch, k)).eps for k in kinds if "float" in k]
            size = want.float().abs().amax().clamp(min=1.0)
            error = (mine.float() - want.float()).abs().amax() / size
            assert float(error) <= 2 * max(floats), output.value


NAMED: dict[str, Callable[..., FusionPlan]] = {
    "residual": residual, "norm": norm, "softmax": softmax, "backward": backward,
}  # fmt: skip
SIZES = (1, 7, 128, 1000, 4097)
DTYPES = ("bfloat16", "float16", "float32")


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("number", range(len(SIZES)), ids=[str(size) for size in SIZES])
def test_dropout_draws_the_mask_of_its_seed(
    name: str, number: int, interpreter: Interpreter
) -> None:
    """Every scheme in turn, with every size, layout and dtype beside each other."""
    dtype = DTYPES[(number + len(name)) % 3]
    plan = NAMED[name](dtype, dense=number % 2 == 0)
    rows = (2, 2) if plan.row_axes == 2 else (4,)
    inputs = inputs_of(plan, rows, SIZES[number], number)
    for scheme in schemes_of(plan)[number % 2 :: 2]:
        block = 32 if SIZES[number] < 1000 else 512
        if scheme in ("column_sums", "column_walk"):
            config = column_config_of(plan, scheme, rows=2, block=block)
        else:
            config = config_of(scheme, block, rows=2)
        assert_same(plan, run(interpreter, plan, inputs, config), inputs)


def test_no_rows_draw_nothing(interpreter: Interpreter) -> None:
    plan = norm("bfloat16")
    out, mask = run(interpreter, plan, inputs_of(plan, (0,), 7), config_of("registers", 8))
    assert out.shape == mask.shape == (0, 7)


@pytest.mark.parametrize(("space", "shape"), [("row", (6, 1)), ("column", (1, 40))])
def test_numbers_for_rows_or_columns_alone(
    space: Space, shape: tuple[int, int], interpreter: Interpreter
) -> None:
    """Stochastic depth drops rows, dropout of channels columns: the index is theirs."""
    make = PlanBuilder()
    x, seed = make.input(), make.input("int64", ONE)
    plan = make.plan(make.op("mul", x, make.random(seed, space)), title=f"of {space}s")
    inputs = [torch.ones(6, 40), torch.tensor([[2**62 + 12345]])]
    (got,) = run(interpreter, plan, inputs, config_of("registers", 64, rows=2))
    assert torch.equal(got, uniform(inputs[1], shape).expand(6, 40))


@given(
    seed=st.integers(-(2**63), 2**63 - 1),
    rows=st.integers(1, 6),
    columns=st.integers(1, 70),
    scheme=st.sampled_from(("blocks", "registers", "looped")),
)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_seed_and_shape(
    seed: int, rows: int, columns: int, scheme: Scheme, interpreter: Interpreter
) -> None:
    make = PlanBuilder()
    x, key = make.input(), make.input("int64", ONE)
    plan = make.plan(make.op("add", x, make.random(key)), title="any seed")
    inputs = [torch.zeros(rows, columns), torch.tensor([[seed]])]
    (got,) = run(interpreter, plan, inputs, config_of(scheme, 16, rows=2))
    assert torch.equal(got, uniform(inputs[1], (rows, columns)))


def test_numbers_are_philox_and_uniform() -> None:
    """The known answer of Philox-4x32-10 for a zero key and counter; then their distribution."""
    first = float(uniform(torch.tensor([0]), (1,)))
    assert first == pytest.approx(0x6627E8D5 / 2**31, abs=1e-7)
    found = uniform(torch.tensor([977]), (1 << 16,))
    assert float(found.min()) >= 0.0
    assert float(found.max()) < 1.0
    assert float(found.mean()) == pytest.approx(0.5, abs=0.01)
    assert len(found.unique()) > 0.99 * found.numel()


def test_the_written_reference_draws_the_same() -> None:
    """The PyTorch text beside a kernel is what the kernel is verified against."""
    for plan in (residual("bfloat16"), softmax("float32"), backward("float16")):
        text = render(plan, schemes_of(plan)[0]).text
        module: dict[str, object] = {}
        exec("import torch\n\ndef uniform" + text.partition("def uniform")[2], module)
        inputs = inputs_of(plan, (2, 3)[: plan.row_axes], 33)
        mine = module["reference"](*inputs)  # type: ignore[operator]
        for one, other in zip(mine, evaluate(plan, inputs, "native"), strict=True):
            assert torch.equal(one, other)


def test_a_gradient_draws_the_mask_again() -> None:
    """It reads the seed in place of a mask: one number for a byte an element."""
    make = PlanBuilder()
    kept, _ = dropped(make, make.input(), "float32")
    found = gradient(make.plan(kept, title="dropout"))
    assert found.plan.ops[0].op == "random"
    seed, arriving = torch.tensor([[2**61 + 7]]), torch.randn(4, 64)
    (mine,) = evaluate(found.plan, [seed, arriving], "native")
    mask = uniform(seed, (4, 64)) > 0.25
    torch.testing.assert_close(mine, mask * arriving / 0.75)


@pytest.mark.parametrize("target", [*EIGHT, "int8"])
@pytest.mark.parametrize("number", range(len(SIZES)), ids=[str(size) for size in SIZES])
def test_rows_are_quantised(target: str, number: int, interpreter: Interpreter) -> None:
    plan = quantised(DTYPES[number % 3], target, dense=number % 2 == 1)
    inputs = inputs_of(plan, (5 if number < 3 else 2,), SIZES[number], number)
    inputs[0][1:2] = 0.0
    for scheme in schemes_of(plan)[number % 2 :: 2]:
        block = 32 if SIZES[number] < 1000 else 512
        got = run(interpreter, plan, inputs, config_of(scheme, block, rows=2))
        assert_same(plan, got, inputs)


@given(
    target=st.sampled_from([*EIGHT, "int8"]),
    dtype=st.sampled_from(DTYPES),
    rows=st.integers(0, 5),
    columns=st.integers(1, 70),
    size=st.sampled_from((1e-20, 1e-3, 1.0, 3e4)),
    clamp=st.booleans(),
    scheme=st.sampled_from(("registers", "looped", "split")),
    seed=st.integers(0, 99),
)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_rows_are_quantised(
    target: str, dtype: str, rows: int, columns: int, size: float, clamp: bool, scheme: Scheme,
    seed: int, interpreter: Interpreter,
) -> None:  # fmt: skip
    """Every finite row comes back, in steps of its scale, near where it was."""
    plan = quantised(dtype, target, clamp=clamp)
    (x,) = inputs_of(plan, (rows,), columns, seed)
    x = (x.double() * size).clamp(-6e4, 6e4).to(x.dtype)
    got, scale = run(interpreter, plan, [x], config_of(scheme, 16, rows=2))
    largest = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-12)
    torch.testing.assert_close(scale, largest / LIMITS[target], rtol=1e-6, atol=0)
    step = largest / 254 if target == "int8" else largest * torch.finfo(got.dtype).eps / 2
    assert bool(((got.float() * scale - x.float()).abs() <= 1.001 * step).all())


@pytest.mark.parametrize("source", EIGHT)
@pytest.mark.parametrize("columns", [1, 7, 1000])
def test_eight_bits_are_read_and_written(
    source: str, columns: int, interpreter: Interpreter
) -> None:
    plan = dequantised("bfloat16", source)
    inputs = inputs_of(plan, (5,), columns, columns)
    for scheme in ("registers", "looped"):
        got = run(interpreter, plan, inputs, config_of(scheme, 64, rows=2))
        assert_same(plan, got, inputs)


@pytest.mark.parametrize("target", [*EIGHT, "int8"])
def test_both_orders_come_from_one_tile(target: str, interpreter: Interpreter) -> None:
    """The second is a copy of the first, stored with the strides of its transpose."""
    make = PlanBuilder()
    value = make.op("mul", make.cast(make.input("bfloat16"), "float32"), make.input(spans=ONE))
    first = make.cast(value, target)
    plan = make.plan(first, make.cast(first, target), title="both orders", strided=("v3",),
                     unit_stride=False)  # fmt: skip
    inputs = [torch.randn(37, 50).bfloat16(), torch.tensor([[20.0]])]
    got, turned = run(interpreter, plan, inputs, config_of("blocks", 16, rows=16))
    want, _ = evaluate(plan, inputs, "native")
    assert torch.equal(got.float(), want.float())
    assert torch.equal(turned.float(), want.float())
    assert turned.stride()[0] == 1


@pytest.mark.parametrize("target", EIGHT)
def test_a_cast_to_eight_bits_is_pytorchs(target: str, interpreter: Interpreter) -> None:
    """Bit for bit over all sizes, ties, what is too large, NaN; and back."""
    make = PlanBuilder()
    stored = make.cast(make.input(), target)
    plan = make.plan(stored, make.cast(stored, "float32"), title=f"cast to {target}")
    kind = getattr(torch, target)
    every = torch.arange(256, dtype=torch.uint8).view(kind).float()
    every = every[every.isfinite()].sort().values
    ties = (every[1:] + every[:-1]) / 2
    near = torch.cat([ties, ties * (1 + 2**-20), ties * (1 - 2**-20)])
    odd = torch.tensor(
        [464.0, 464.1, 61439.9, 61440.0, 65536.0, 1e9, 1e-30, float("inf"), torch.nan]
    )
    x = torch.cat([every, near, odd, -odd]).reshape(1, -1)
    got, back = run(interpreter, plan, [x], config_of("registers", 0, rows=1))
    # What is too large: PyTorch's e4m3fn made it NaN before 2.13.
    want = (x.clamp(-448.0, 448.0) if target == "float8_e4m3fn" else x).to(kind)
    assert torch.equal(
        got.float().nan_to_num(7.0, 9.0, -9.0), want.float().nan_to_num(7.0, 9.0, -9.0)
    )
    assert torch.equal(back.nan_to_num(7.0, 9.0, -9.0), want.float().nan_to_num(7.0, 9.0, -9.0))


@pytest.mark.parametrize("clamp", [True, False])
def test_only_what_the_program_bounds_is_cast_by_the_bare_instruction(clamp: bool) -> None:
    text = render(quantised("bfloat16", "float8_e5m2", clamp=clamp)).text
    assert f"to_float8_e5m2(v{7 if clamp else 5}, {clamp})" in text


@pytest.mark.parametrize(
    "spoil",
    [
        lambda make: make.op("add", make.input("float8_e5m2"), 1.0, dtype="float8_e5m2"),
        lambda make: make.random(make.input("int64")),
        lambda make: make.random(make.input("float32", ONE)),
        lambda make: make.random(make.input("int64", ONE)),
    ],
    ids=["arithmetic", "many seeds", "no seed", "no size"],
)
def test_what_no_kernel_computes_is_no_plan(spoil: Callable[[PlanBuilder], str]) -> None:
    make = PlanBuilder()
    with pytest.raises(InvalidRecordError):
        make.plan(spoil(make))


def wide(plan: FusionPlan, rows: int = 512, columns: int = 4096) -> FusionPlan:
    """The plan at a site of the size of real ones."""
    strides = tuple((columns * row, int(column)) for row, column in (i.spans for i in plan.inputs))
    site = msgspec.structs.replace(
        plan.sites[0], row_sizes=(rows,), columns=columns, input_strides=strides
    )
    return msgspec.structs.replace(plan, sites=(site,))


def test_nothing_spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's first choices, compiled for GPUs that are not here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = [norm("bfloat16"), residual("bfloat16"), quantised("bfloat16", "float8_e4m3fn")]
    asked = [
        request
        for plan in map(wide, made)
        for request in requests(plan, candidate_configs(plan, plan.sites[0])[0])
    ]
    for rows in resources_of(asked, (gpu_by_key("h200"), gpu_by_key("mi300x"))):
        for row in rows:
            assert row.error is None, row
            assert (row.spill_store_bytes, row.spill_load_bytes) in ((0, 0), (0, None)), row


def test_the_verifier_compares_under_one_mask(tmp_path: Path) -> None:
    """All cases in a child: a dropout, and what is left of it in three kinds of eight bits."""
    make = PlanBuilder()
    kept, mask = dropped(make, make.input("bfloat16"), "bfloat16")
    wide = make.cast(kept, "float32")
    scale = make.op("maximum", make.op("amax", make.op("abs", wide)), 1e-12)
    whole = make.op("round", make.op("mul", make.op("div", wide, scale), 127.0))
    stored = [make.cast(make.op("div", wide, scale), kind) for kind in EIGHT]
    plan = make.plan(make.cast(whole, "int8"), *stored, mask, title="one mask")
    path = tmp_path / "plan.json"
    path.write_bytes(encode(plan))
    _, kernel = write_source(plan, tmp_path)
    found = verify_numerics(path, kernel, device="cpu", config=config_of("registers", 0, rows=2))
    assert found.passed, [case for case in found.cases if not case.passed]
