"""Products with what follows in Triton's interpreter beside float64: dtypes, odd sizes, layouts,
random epilogues; compiled for real GPUs without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.apply.kernels import write_source
from advisor.codegen import abi, render
from advisor.codegen.standalone import Standalone, render_standalone
from advisor.errors import InvalidRecordError
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import encode
from advisor.model.configs import candidate_configs, default_config
from advisor.model.gemm import PRODUCT, product_flops, product_rows
from advisor.model.halves import halves
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan, PlanOp
from advisor.model.prefix import prefix
from advisor.model.site_work import site_arithmetic, site_bytes
from advisor.model.tolerance import roundings
from advisor.pipeline.sizing import requests, spills
from advisor.verify.cases import Case, make_inputs
from advisor.verify.interpret import evaluate
from advisor.verify.resources import resources_of
from tests.builders.forked import Forked
from tests.builders.gemm_plans import GemmBuilder, biased_gelu, gated
from tests.builders.verified import verify_numerics
from tests.codegen.interpreter import Interpreter

SMALL = {"block_columns": 32, "block_steps": 16, "num_stages": 1}
DTYPES = ("float32", "bfloat16", "float16")
WAYS = ((False, False), (False, True), (True, False), (True, True))


def check(interpreter: Interpreter, plan: FusionPlan, case: Case) -> None:
    """What the kernel writes for a case, with short blocks, is near the plan in float64."""
    inputs = make_inputs(plan, case, torch.device("cpu"), seed=3)
    shapes = [
        (output.shape(case.row_sizes, case.column_sizes), getattr(torch, output.dtype))
        for output in plan.outputs
    ]
    ways = ["unit"] * len(shapes)
    source = render(plan, "gemm").text
    found = interpreter.run(source, inputs, shapes, case.block_rows, strided=ways, **SMALL)
    exact = evaluate(plan, inputs, "exact")
    for output, mine, truth in zip(plan.outputs, found, exact, strict=True):
        near = 4e-2 if output.dtype == "bfloat16" else 2e-2 if output.dtype == "float16" else 1e-4
        wanted = truth.expand(mine.shape)
        torch.testing.assert_close(mine.double(), wanted, rtol=near, atol=near)


def case_of(*sizes: int) -> Case:
    return Case("", sizes[:-1], sizes[-1:], "normal", 16)


@pytest.mark.parametrize(
    ("dtype", "turned", "sizes"),
    [
        ("float32", WAYS[0], (17, 33, 65)), ("float32", WAYS[3], (1, 7, 1)),
        ("float32", WAYS[1], (128, 1, 33)), ("float32", WAYS[2], (5, 0, 40)),
        ("bfloat16", WAYS[0], (0, 7, 5)), ("bfloat16", WAYS[1], (33, 100, 31)),
        ("bfloat16", WAYS[2], (16, 16, 32)), ("bfloat16", WAYS[3], (7, 128, 1)),
        ("float16", WAYS[0], (1, 1, 128)), ("float16", WAYS[1], (16, 48, 64)),
        ("float16", WAYS[2], (40, 17, 97)), ("float16", WAYS[3], (65, 33, 17)),
    ],
)  # fmt: skip
def test_pairs_of_dtype_layout_and_size(
    interpreter: Interpreter, dtype: str, turned: tuple[bool, bool], sizes: tuple[int, ...]
) -> None:
    plan = biased_gelu((40, 48, 64), dtype, turned=turned)
    check(interpreter, plan, case_of(*sizes))


def test_rows_of_several_axes_and_more_than_one_group_of_tiles(interpreter: Interpreter) -> None:
    """Nine blocks of rows are more than programs that share columns; the last group is short."""
    plan = biased_gelu((3, 48, 20, 40), "float32", both=True)
    check(interpreter, plan, case_of(3, 48, 20, 40))
    assert abi.needs_axes(plan)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_other_half_of_a_gated_mlp(interpreter: Interpreter, dtype: str) -> None:
    check(interpreter, gated((20, 24, 40), dtype), case_of(20, 24, 40))


def test_a_matrix_that_has_no_axis_without_gaps(interpreter: Interpreter) -> None:
    plan = biased_gelu((20, 24, 40), "float32")
    assert plan.product is not None
    loose = msgspec.structs.replace(plan.product, left_unit=None, right_unit=None)
    check(interpreter, msgspec.structs.replace(plan, product=loose), case_of(20, 24, 40))


_UNARY = ("relu", "tanh", "sigmoid", "neg", "abs")
_BINARY = ("add", "mul", "sub", "maximum")


@st.composite
def epilogues(draw: st.DrawFn) -> FusionPlan:
    """A legal epilogue: a few ops on the product, vectors, scalars and tensors beside it."""
    dtype = draw(st.sampled_from(DTYPES))
    sizes = (2, 9, 20, 33) if draw(st.booleans()) else (18, 20, 33)
    made = GemmBuilder(sizes, dtype, draw(st.sampled_from(WAYS)))
    rows = len(sizes) - 2
    span = st.tuples(*(st.booleans() for _ in range(rows)), st.just(False), st.booleans())
    others = [made.input(draw(span)) for _ in range(draw(st.integers(0, 3)))]
    known = [made.op("cast", PRODUCT), *others]
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            known.append(made.op(draw(st.sampled_from(_UNARY)), draw(st.sampled_from(known))))
            continue
        other: Any = draw(st.sampled_from([*known, 0.5, -2.0]))
        known.append(made.op(draw(st.sampled_from(_BINARY)), draw(st.sampled_from(known)), other))
    last = made.op("add", known[0], known[-1])
    wide = [op.name for op in made.ops if op.space == "tile"]
    more = draw(st.lists(st.sampled_from(wide), max_size=1, unique=True))
    return made.plan(*(name for name in more if name != last), last)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(epilogues(), st.integers(1, 20))
def test_random_epilogues(interpreter: Interpreter, plan: FusionPlan, rows: int) -> None:
    outer = plan.sites[0].row_sizes[1:-1]
    check(interpreter, plan, case_of(rows, *outer, 17, 35))


@settings(max_examples=40, deadline=None)
@given(epilogues())
def test_every_epilogue_has_a_source_a_launch_and_its_first_ops(plan: FusionPlan) -> None:
    text = render(plan, "gemm").text
    assert text == render(plan, "gemm").text
    config = default_config(plan, plan.sites[0])
    compile(render_standalone(Standalone(plan, config, "not timed")), "kernel", "exec")
    assert halves(plan, 1) is None  # apart, the product is the library's
    for count in range(1, len(plan.ops) + 1):
        part = prefix(plan, count)
        assert part is None or part.product is not None
        assert part is not None or PRODUCT not in {a for op in plan.ops[:count] for a in op.args}


# --- the numbers of a plan ------------------------------------------------------------------------


def test_operations_and_bytes_are_those_of_the_product() -> None:
    plan = biased_gelu((2, 50, 30, 70), "bfloat16")
    site = plan.sites[0]
    assert product_rows(site) == 100
    assert product_flops(site) == 2 * 100 * 30 * 70
    flops, special = site_arithmetic(plan, site)
    assert product_flops(site) < flops < product_flops(site) + 100 * 100 * 70
    assert special < 10 * 100 * 70
    assert site_bytes(plan, site) == 2 * (100 * 30 + 30 * 70 + 70 + 2 * 100 * 70)


def test_errors_of_tf32_are_counted_in_the_bits_it_keeps() -> None:
    last = "v9"
    assert roundings(biased_gelu((8, 8, 8), "float32"), last) == ()
    assert roundings(biased_gelu((8, 8, 8), "float32", tf32=True), last) == ("float16",)


def test_tiles_suit_the_product() -> None:
    large = biased_gelu((8192, 4096, 8192))
    assert max(c.block_rows * (c.block_columns or 1) for c in _configs(large)) == 128 * 256
    few = _configs(biased_gelu((9, 4096, 4096)))
    assert {config.block_rows for config in few} == {16}
    tiny = _configs(biased_gelu((2, 3, 5)))
    assert {(c.block_rows, c.block_columns, c.block_steps) for c in tiny} == {(16, 32, 16)}
    # On the vector units, steps are short; what is launched untimed fits into 99 KiB.
    for plan in (large, biased_gelu((4096, 4096, 4096), "float32")):
        first = _configs(plan)[0]
        width = 2 if plan.inputs[0].dtype == "bfloat16" else 4
        lines = first.block_rows + (first.block_columns or 0)
        assert lines * (first.block_steps or 0) * first.num_stages * width <= 99 << 10


def _configs(plan: FusionPlan) -> tuple[LaunchConfig, ...]:
    return candidate_configs(plan, plan.sites[0])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"family": "row_program"}, "with a product"),
        ({"product": None}, "without a product"),
        ({"left": "in9"}, "not two of the inputs"),
        ({"left": "in1"}, "not two of the inputs"),
        ({"left": "in3"}, "spans rows and depth"),
        ({"right": "in2"}, "spans depth and columns"),
        ({"tf32": True}, "tf32 of bfloat16"),
        ({"op": "sum"}, "does not follow a product"),
        ({"args": ("in0",)}, "read an operand"),
        ({"row_axes": 2**62}, "does not say of every axis"),
        ({"spans": ()}, "does not say of every axis"),
    ],
)
def test_hostile_products_are_refused(change: dict[str, Any], what: str) -> None:
    plan = biased_gelu((8, 9, 10))
    assert plan.product is not None
    own = {n: v for n, v in change.items() if n in ("family", "product", "row_axes")}
    product = {n: v for n, v in change.items() if n in ("left", "right", "tf32")}
    if product:
        own["product"] = msgspec.structs.replace(plan.product, **product)
    first, last = plan.ops[0], plan.inputs[-1]
    if "spans" in change:
        own["inputs"] = (*plan.inputs[:-1], msgspec.structs.replace(last, spans=change["spans"]))
    if "op" in change:
        bad = PlanOp(name="v0", op="sum", args=(PRODUCT,), dtype="float32", space="row")
        own["ops"] = (bad, *plan.ops[1:])
    if "args" in change:
        own["ops"] = (msgspec.structs.replace(first, args=change["args"]), *plan.ops[1:])
    with pytest.raises(InvalidRecordError, match=what):
        msgspec.structs.replace(plan, **own).check()


# --- as a file, verified, compiled ----------------------------------------------------------------


def test_the_file_of_a_kernel_checks_itself(tmp_path: Path, interpreting: Forked) -> None:
    plan = biased_gelu((4, 16, 20, 40), "float32", both=True)
    path = tmp_path / "kernel.py"
    path.write_text(render_standalone(Standalone(plan, _configs(plan)[0], "not timed")))
    found = interpreting.run(str(path), cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("passed") == 4


def test_apply_verifies_it_on_odd_sizes_none_and_values_that_overflow(tmp_path: Path) -> None:
    plan = biased_gelu((40, 60, 70), "float16", turned=(True, False))
    _, kernel = write_source(plan, tmp_path, "gemm")
    stored = tmp_path / "plan.json"
    stored.write_bytes(encode(plan))
    found = verify_numerics(stored, kernel, device="cpu", config=_configs(plan)[0])
    assert found.passed, [case for case in found.cases if not case.passed]
    names = " ".join(case.name for case in found.cases)
    assert all(word in names for word in ("odd", "one row", "no depth", "no rows", "special"))


def test_a_kernel_that_forgets_the_end_of_the_depth_is_found_out(tmp_path: Path) -> None:
    plan = biased_gelu((20, 40, 40), "float32")
    _, kernel = write_source(plan, tmp_path, "gemm")
    text = kernel.read_text()
    assert "(start + in0_steps < n_depth) | EVEN_STEPS" in text
    kernel.write_text(text.replace("range(0, n_depth, BLOCK", "range(0, n_depth - 1, BLOCK"))
    stored = tmp_path / "plan.json"
    stored.write_bytes(encode(plan))
    found = verify_numerics(stored, kernel, device="cpu", config=_configs(plan)[0])
    assert not found.passed


@pytest.mark.usefixtures("forked_compilers")
@pytest.mark.parametrize(
    ("plan", "gpus"),
    [
        (biased_gelu((2048, 768, 3072)), ("h200", "a100", "mi300x")),
        (gated((4096, 4096, 11008), "float16"), ("h200",)),
        (biased_gelu((2048, 768, 3072), "float32", tf32=True, both=True), ("a100",)),
        (biased_gelu((2048, 768, 3072), "float32"), ("h200", "mi300x")),
    ],
    ids=["bf16", "gated", "tf32", "fp32"],
)
def test_what_is_launched_untimed_spills_nowhere(
    plan: FusionPlan, gpus: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = requests(plan, _configs(plan)[0])
    for (row,) in zip(*resources_of(wanted, [gpu_by_key(key) for key in gpus]), strict=True):
        assert row.error is None, row
        assert not spills(row), row
