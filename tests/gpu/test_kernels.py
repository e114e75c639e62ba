"""Generated kernels on the GPU itself: every op, every wrong kernel, and time that makes sense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.kernels import write_source
from advisor.codegen import render
from advisor.hardware.gpus import gpu_by_key
from advisor.model import base
from advisor.model.applied import Numerics
from advisor.model.configs import candidate_configs
from advisor.model.launch import LaunchConfig
from advisor.model.optable import OpSpec
from advisor.model.plan import FusionPlan
from advisor.model.site_work import site_bytes
from advisor.pipeline.candidates import without_spills
from advisor.verify.interpret import evaluate
from advisor.verify.kernel_module import load_module
from advisor.verify.recording import gpu_recorder
from advisor.verify.timing import best_config, site_inputs, time_kernel
from tests.builders.plan import PlanBuilder, rms_norm
from tests.builders.verified import verify_numerics
from tests.codegen import plans
from tests.codegen.programs import Program
from tests.codegen.test_column_sums import NAMED as SUMMED
from tests.codegen.test_row_program import assert_rounded, rounded_to_bfloat16
from tests.codegen.test_schemes import IN_PARTS, NAMED
from tests.verify import test_op_table as table
from tests.verify.test_numerics import silu_gradient

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
H200 = gpu_by_key("h200")
# Approximate instructions: ex2 after a rounded product loses a place for every unit of |x|.
ULPS = {"exp": 16, "exp2": 4, "expm1": 16, "sigmoid": 16, "tanh": 8, "log1p": 8, "pow": 8, "log": 4,
        "log2": 4, "sin": 4, "cos": 4, "erf": 4, "rsqrt": 4, "div": 4, "reciprocal": 4}  # fmt: skip


def launched(
    plan: FusionPlan, inputs: list[torch.Tensor], folder: Path, block_rows: int = 2
) -> tuple[torch.Tensor, ...]:
    """The outputs of the compiled kernel, on the CPU."""
    _, path = write_source(plan, folder)
    results = load_module(path).fused(*(t.to(CUDA) for t in inputs), block_rows=block_rows)
    return tuple(result.cpu() for result in results)


@pytest.mark.parametrize("dtype", table.FLOATS)
@pytest.mark.parametrize("spec", table.POINTWISE, ids=lambda spec: spec.name)
def test_a_pointwise_op_is_pytorchs(spec: OpSpec, dtype: str, tmp_path: Path) -> None:
    plan, inputs = table.plan_of(spec, dtype), table.grid(spec.arity, dtype)
    (got,) = launched(plan, inputs, tmp_path)
    (want,) = evaluate(plan, inputs, "native")
    (truth,) = evaluate(plan, inputs, "exact")
    table.assert_close(got, want, truth, ULPS.get(spec.name, 0) if dtype == "float32" else 0.51)


@pytest.mark.parametrize("name", table.DENSE)
def test_helper_functions_over_their_range(name: str, tmp_path: Path) -> None:
    make = PlanBuilder()
    plan = make.plan(make.op(name, make.input()), title=name)
    x = table.DENSE[name].reshape(1, -1).float()
    (got,) = launched(plan, [x], tmp_path, block_rows=1)
    (truth,) = evaluate(plan, [x], "exact")
    # expm1 inherits the error of exp, which grows with the argument.
    table.assert_close(got, truth.float(), truth, 64 if name == "expm1" else 8)


def test_power_over_its_range(tmp_path: Path) -> None:
    make = PlanBuilder()
    plan = make.plan(make.op("pow", make.input(), make.input()), title="pow")
    generator = torch.Generator().manual_seed(0)
    base_ = torch.exp(torch.empty(200, 200).uniform_(-20, 20, generator=generator))
    exponent = torch.empty(200, 200).uniform_(-4, 4, generator=generator)
    exponent[:50] = torch.randint(-5, 6, (50, 200), generator=generator).float()
    base_[:25] *= -1
    (got,) = launched(plan, [base_, exponent], tmp_path)
    (truth,) = evaluate(plan, [base_, exponent], "exact")
    table.assert_close(got, torch.pow(base_, exponent), truth, 8)


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "minimum", "where", "logical_and"])
def test_booleans_do_not_wrap(name: str, tmp_path: Path) -> None:
    make = PlanBuilder()
    args = [make.input("bool") for _ in range(3 if name == "where" else 2)]
    plan = make.plan(make.op(name, *args), title=name)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.rand((8, 33), generator=generator) > 0.5 for _ in args]
    (got,) = launched(plan, inputs, tmp_path)
    assert torch.equal(got, evaluate(plan, inputs, "native")[0])


def verdict(plan: FusionPlan, folder: Path, *edits: tuple[str, str]) -> Numerics:
    """The worker's verdict on the kernel, edited."""
    text = render(plan).text
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    plan_path, kernel_path = folder / "plan.json", folder / f"{plan.id}.py"
    plan_path.write_bytes(base.encode(plan))
    kernel_path.write_text(text)
    config = LaunchConfig(num_warps=8)
    return verify_numerics(plan_path, kernel_path, device="cuda", config=config, timeout_s=120)


@pytest.mark.parametrize("dtype", table.FLOATS)
@pytest.mark.parametrize("columns", [96, 2048, 8192])
def test_a_right_kernel_passes(dtype: str, columns: int, tmp_path: Path) -> None:
    found = verdict(rms_norm(dtype=dtype, columns=columns), tmp_path)
    assert [(case.name, case.detail) for case in found.cases if not case.passed] == []
    assert found.executed_on == "gpu"


def test_a_lost_nan_is_seen(tmp_path: Path) -> None:
    make = PlanBuilder()
    plan = make.plan(make.op("amax", make.input()), title="peak", columns=512)
    edit = ("tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)", "tl.maximum(a, b)")
    failed = [case.name for case in verdict(plan, tmp_path, edit).cases if not case.passed]
    assert failed == ["special values"]


def test_a_wrong_constant_is_seen(tmp_path: Path) -> None:
    found = verdict(rms_norm(dtype="float32", columns=2048), tmp_path, ("1e-06", "1.01e-06"))
    assert not found.passed


def test_an_illegal_address_costs_the_child_alone(tmp_path: Path) -> None:
    edit = ("tl.store(out0 + row_start", "tl.store(out0 + (1 << 44) + row_start")
    found = verdict(rms_norm(columns=2048), tmp_path, edit)
    assert not found.passed
    assert "the kernel's process ended with status" in found.cases[0].detail
    assert torch.ones(4, device=CUDA).sum().item() == 4


def test_a_cast_to_bfloat16_is_pytorchs(tmp_path: Path) -> None:
    plan, x = rounded_to_bfloat16()
    (got,) = launched(plan, [x], tmp_path, block_rows=1)
    assert_rounded(got, x)


def test_what_the_casts_of_a_plan_cost_is_no_fault_of_its_kernel(tmp_path: Path) -> None:
    """The gradient of a SiLU, whose error far below zero is that of its rounded argument."""
    found = verdict(silu_gradient(), tmp_path)
    assert found.passed, [case for case in found.cases if not case.passed]


def test_time_stands_in_proportion_to_a_copy(tmp_path: Path) -> None:
    make = PlanBuilder()
    x, weight = make.input("bfloat16"), make.input("bfloat16", (False, True))
    wide = make.cast(x, "float32")
    scale = make.op("rsqrt", make.op("add", make.op("mean", make.op("mul", wide, wide)), 1e-6))
    out = make.op("mul", make.cast(make.op("mul", wide, scale), "bfloat16"), weight)
    plan = make.plan(out, title="norm", sizes=(32768,), columns=2048)
    usable = candidate_configs(plan, plan.sites[0])[:4]
    sources = {s: write_source(plan, tmp_path, s, s)[1] for s in {c.scheme for c in usable}}
    config = best_config(plan, sources, gpu_recorder, CUDA, usable)
    assert config in usable
    moved = site_bytes(plan, plan.sites[0])
    assert moved == pytest.approx(2 * 32768 * 2048 * 2, rel=0.01)
    found = time_kernel(plan, sources[config.scheme], config, gpu_recorder, CUDA, moved)
    assert found.config == config.label()
    assert found.copy_bandwidth_fraction is not None
    assert found.peak_copy_bandwidth_fraction is not None
    assert found.eager_bandwidth_fraction is not None
    assert 0.7 < found.copy_bandwidth_fraction < 1.2
    assert 0.6 < found.peak_copy_bandwidth_fraction < 1.2
    assert found.eager_bandwidth_fraction < 0.6 * found.peak_copy_bandwidth_fraction
    assert found.launch_ns is not None
    assert 1_000 < found.launch_ns < 1_000_000
    assert found.kernel.samples >= 20


@pytest.mark.parametrize("name", list(NAMED))
def test_every_configuration_gives_the_same_result(name: str, tmp_path: Path) -> None:
    """The likeliest configurations of every scheme for few and for many long rows."""
    make = NAMED[name]
    for rows in (3, 300):
        plan = make(columns=20_011)
        site = msgspec.structs.replace(
            plan.sites[0], row_sizes=(rows,) + (1,) * (plan.row_axes - 1), columns=20_011
        )
        every = candidate_configs(plan, site)
        found = {c.scheme: [d for d in every if d.scheme == c.scheme][:3] for c in every}
        configs = [config for of_scheme in found.values() for config in of_scheme]
        given = [tensor.to(CUDA) for tensor in program_inputs(plan, (rows,), 20_011)]
        exact = evaluate(plan, given, "exact")
        for config in configs:
            _, path = write_source(plan, tmp_path, config.scheme, f"{plan.id}_{config.scheme}")
            got = load_module(path).fused(*given, **config.options())
            for mine, truth in zip(got, exact, strict=True):
                want = truth.to(mine.dtype).expand(mine.shape)
                torch.testing.assert_close(mine, want, rtol=2e-2, atol=2e-2, msg=config.label())


@pytest.mark.parametrize("dtype", table.FLOATS)
@pytest.mark.parametrize("name", list(SUMMED))
def test_sums_over_the_rows_in_every_configuration(name: str, dtype: str, tmp_path: Path) -> None:
    """Right in float64, the same bits in every launch, few rows and many; odd columns as well, of
    which no more than 4,096 fit into registers where rows are reduced too."""
    make = SUMMED[name]
    for rows, columns in ((1, 1), (7, 2049), (1000, 1000), (20_000, 96)):
        plan = make(dtype, columns=columns)
        site = msgspec.structs.replace(
            plan.sites[0], row_sizes=(rows,) + (1,) * (plan.row_axes - 1), columns=columns
        )
        given = [tensor.to(CUDA) for tensor in program_inputs(plan, (rows,), columns)]
        exact = evaluate(plan, given, "exact")
        fits = without_spills(msgspec.structs.replace(plan, sites=(site,)), H200)
        assert fits
        for config in fits[:5]:
            _, path = write_source(plan, tmp_path, config.scheme, f"{plan.id}_{config.scheme}")
            fused = load_module(path).fused
            got, again = (fused(*given, **config.options()) for _ in range(2))
            for mine, other, truth in zip(got, again, exact, strict=True):
                assert torch.equal(mine, other), config.label()
                near = 2e-2 if dtype != "float32" else 1e-4
                want = truth.to(mine.dtype).expand(mine.shape)
                torch.testing.assert_close(
                    mine, want, rtol=near, atol=near * rows**0.5, msg=config.label()
                )


@pytest.mark.parametrize("columns", [(10, 4096), (4096, 10), (3, 20_011), (64, 64)])
@pytest.mark.parametrize("name", list(IN_PARTS))
def test_rows_of_several_axes_in_every_configuration(
    name: str, columns: tuple[int, ...], tmp_path: Path
) -> None:
    """Groups and batches of channels, whole blocks in one segment and not, few rows and many."""
    for rows in (3, 300):
        made = IN_PARTS[name](columns=columns)
        sizes = (rows, 2)[: made.row_axes]
        plan = IN_PARTS[name](columns=columns, sizes=sizes)
        inputs = Program(plan, sizes, columns[0], 1, seed=1, inner=columns[1:]).inputs()
        given = [tensor.to(CUDA) for tensor in inputs]
        exact = evaluate(plan, given, "exact")
        fits = without_spills(plan, H200)
        assert fits
        for config in {c.scheme: c for c in fits}.values():
            _, path = write_source(plan, tmp_path, config.scheme, f"{plan.id}_{config.scheme}")
            got = load_module(path).fused(*given, **config.options())
            for mine, truth in zip(got, exact, strict=True):
                want = truth.to(mine.dtype).expand(mine.shape)
                torch.testing.assert_close(mine, want, rtol=2e-2, atol=2e-2, msg=config.label())


@pytest.mark.parametrize("rows", [1, 63, 4096])
def test_what_reads_across_in_every_configuration(rows: int, tmp_path: Path) -> None:
    for columns in (1, 100, 4097):
        plan = plans.turned(sizes=(rows,), columns=columns)
        given = site_inputs(plan, plan.sites[0], CUDA)
        exact = evaluate(plan, given, "exact")
        fits = without_spills(plan, H200)
        assert fits
        _, path = write_source(plan, tmp_path, "blocks", f"{plan.id}_blocks")
        for config in fits:
            got = load_module(path).fused(*given, **config.options())
            for mine, truth in zip(got, exact, strict=True):
                want = truth.to(mine.dtype).expand(mine.shape)
                torch.testing.assert_close(mine, want, rtol=2e-2, atol=2e-2, msg=config.label())


@pytest.mark.parametrize("name", ["group norm", "turned"])
def test_what_is_read_in_parts_or_across_is_a_good_part_of_a_copy(
    name: str, tmp_path: Path
) -> None:
    """A UNet's group norm (8 images, 32 groups of 10 channels, 64 x 64 pixels) in float16; a matrix
    of 8192 x 8192 read across."""
    plan = plans.turned("float16", sizes=(8192,), columns=8192)
    if name == "group norm":
        plan = plans.group_norm("float16", sizes=(8, 32), columns=(10, 4096))
    fits = without_spills(plan, H200)
    sources = {s: write_source(plan, tmp_path, s, s)[1] for s in {c.scheme for c in fits}}
    config = best_config(plan, sources, gpu_recorder, CUDA, fits)
    moved = site_bytes(plan, plan.sites[0])
    found = time_kernel(plan, sources[config.scheme], config, gpu_recorder, CUDA, moved)
    assert found.copy_bandwidth_fraction is not None
    assert found.copy_bandwidth_fraction > 0.6, config.label()
    assert found.eager.median_ns > found.kernel.median_ns


@pytest.mark.parametrize(("name", "rows", "columns"),
                         [("norm gradient", 16_384, 4096), ("norm gradient", 65_536, 768),
                          ("bias gradient", 16_384, 4096)])  # fmt: skip
def test_one_pass_for_rows_and_columns_is_a_good_part_of_a_copy(
    name: str,
    rows: int,
    columns: int,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    plan = SUMMED[name](sizes=(rows,), columns=columns)
    usable = without_spills(plan, H200)[:8]
    sources = {s: write_source(plan, tmp_path, s, s)[1] for s in {c.scheme for c in usable}}
    config = best_config(plan, sources, gpu_recorder, CUDA, usable)
    moved = site_bytes(plan, plan.sites[0])
    found = time_kernel(plan, sources[config.scheme], config, gpu_recorder, CUDA, moved)
    share, other = found.copy_bandwidth_fraction, found.inductor
    figures = (
        f"{name} {rows}x{columns} {found.config}: {share} of a copy, {found.kernel.median_ns} ns, "
        f"Inductor {other.median_ns} ns, eager {found.eager.median_ns} ns"
    )
    record_property("figures", figures)
    assert share is not None
    assert share > 0.6, figures
    assert found.kernel.median_ns < 1.02 * other.median_ns, figures


def program_inputs(plan: FusionPlan, sizes: tuple[int, ...], columns: int) -> list[torch.Tensor]:
    """Random inputs of some sizes, further row axes of size 1."""
    sizes += (1,) * (plan.row_axes - len(sizes))
    return Program(plan, sizes, columns, 1, seed=1).inputs()
