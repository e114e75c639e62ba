"""On the GPU: Inductor's own masks, casts to eight bits by its instruction, compiled steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.kernels import load_kernel, write_source
from advisor.hardware.gpus import gpu_by_key
from advisor.model import base
from advisor.model.configs import candidate_configs, default_config, schemes_of
from advisor.model.launch import SHARED, LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.pipeline.backend import SwapLog, plan_backend
from advisor.pipeline.candidates import without_spills
from advisor.verify.interpret import evaluate
from advisor.verify.kernel_module import load_module
from advisor.verify.philox import uniform
from advisor.verify.timing import site_inputs, site_outputs
from collectors.live import draws
from collectors.live.capture import capture, no_compile_caches
from collectors.live.workload import Workload
from tests.apply.test_random_swaps import Dropped
from tests.builders import captured as models
from tests.builders.plan import PlanBuilder
from tests.builders.quantised import AXES, LIMITS, Form, both_orders, round_trip
from tests.builders.verified import verify_numerics
from tests.codegen import test_random_eight_bits as programs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
NARROW = programs.EIGHT if torch.cuda.is_available() and (
    torch.cuda.get_device_capability() >= (8, 9)
) else ("float8_e5m2",)  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with no_compile_caches():
        yield


def plans() -> list[FusionPlan]:
    dropouts = [make("bfloat16") for make in programs.NAMED.values()]
    quantised = [programs.quantised("bfloat16", kind) for kind in (*NARROW, "int8")]
    loose = [programs.quantised("float32", kind, clamp=False) for kind in NARROW]
    read = [
        make(kind)
        for kind in NARROW
        for make in (partial(programs.dequantised, "bfloat16"), round_trip)
    ]
    return [*dropouts, *quantised, *loose, *read]


@pytest.mark.parametrize("plan", plans(), ids=lambda plan: plan.title)
def test_every_scheme_is_right(plan: FusionPlan, tmp_path: Path) -> None:
    """All cases of `verify`, in a configuration of each scheme that the model would choose."""
    path = tmp_path / "plan.json"
    path.write_bytes(base.encode(plan))
    chosen = {c.scheme: c for c in reversed(candidate_configs(plan, plan.sites[0]))}
    for scheme in schemes_of(plan):
        held = scheme == "registers"
        config = chosen.get(
            scheme,
            LaunchConfig(
                scheme=scheme,
                block_columns=None if held else 256,
                splits=3 if scheme in SHARED else None,
            ),
        )
        _, kernel = write_source(plan, tmp_path, scheme, name=scheme)
        found = verify_numerics(path, kernel, device="cuda:0", config=config)
        assert found.passed, [case for case in found.cases if not case.passed]


@pytest.mark.parametrize("target", NARROW)
def test_the_instruction_rounds_as_pytorch_does(target: str, tmp_path: Path) -> None:
    """All float32 numbers of a range of sizes, bit for bit; what is too large as compiled."""
    make = PlanBuilder()
    plan = make.plan(make.cast(make.input(), target), title=f"cast to {target}")
    largest = LIMITS[target]
    exponents = torch.arange(-20, 17, device=CUDA).float().exp2()
    steps = 1 + torch.arange(4096, device=CUDA) / 4096
    x = (exponents[:, None] * steps).reshape(-1)
    x = torch.cat([x, -x, torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0], device=CUDA)])
    _, path = write_source(plan, tmp_path)
    (got,) = load_module(path).fused(x[None].contiguous().reshape(4, -1), block_rows=1)
    bounded = x.clamp(-largest, largest) if target == "float8_e4m3fn" else x
    want = bounded.to(getattr(torch, target)).float().reshape(got.shape)
    assert torch.equal(got.float().nan_to_num(7.0, 1e9, -1e9), want.nan_to_num(7.0, 1e9, -1e9))


def test_numbers_are_those_that_inductor_draws() -> None:
    """The same seeds, the same index: the mask of a compiled step, bit for bit.

    From PyTorch 2.13 on 1-D kernels draw others: there a reduction beside makes the kernel 2-D.
    """

    def drawn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.rand_like(x)
        return numbers, (numbers + x).sum(-1)

    x = torch.zeros(64, 300, device=CUDA)
    torch.manual_seed(11)
    theirs, _ = torch.compile(drawn)(x)
    torch.manual_seed(11)
    seed = torch.empty(1, dtype=torch.int64, device=CUDA)
    torch.ops.aten.randint.low_out(-(2**63), 2**63 - 1, [1], out=seed)
    assert torch.equal(theirs, uniform(seed, (64, 300)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_compiled_step_keeps_its_mask(dtype: torch.dtype, tmp_path: Path) -> None:
    """With and without our kernels, from one state of the generator: mask, results, gradients."""
    width = 512
    weight = torch.rand(width, device=CUDA, dtype=dtype, requires_grad=True)

    def part(x: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = functional.dropout(x, 0.2)
        return functional.layer_norm(r + kept, (width,), weight), kept

    x = torch.ones(2048, width, device=CUDA, dtype=dtype, requires_grad=True)
    r = torch.randn(2048, width, device=CUDA).to(dtype).requires_grad_()
    work = Workload(
        "dropout", "training", CUDA, part, loss=lambda f: f(x, r)[0].float().square().sum(),
        optimizer=torch.optim.SGD([weight], lr=0.0),
    )  # fmt: skip
    graphs = capture(work, generate_code=False)[0].graphs
    found = [plan for item in graphs for plan in models.plans_of(item.lowered)]
    assert any(op.op == "random" for plan in found for op in plan.ops)
    kernels = [load_kernel(p, tmp_path, default_config(p, p.sites[0])) for p in found]
    log = SwapLog()
    results = []
    for backend in (plan_backend(kernels, log), "inductor"):
        torch._dynamo.reset()
        torch.manual_seed(5)
        x.grad = r.grad = weight.grad = None
        out, kept = torch.compile(part, backend=backend)(x, r)
        out.float().square().sum().backward()
        results.append([out.detach(), x.grad, r.grad, weight.grad, kept.detach()])
    assert {outcome.refused for outcome in log.outcomes} == {None}
    mine, theirs = results
    assert torch.equal(mine[1] == 0, mine[4] == 0)
    assert float((mine[4] == 0).float().mean()) == pytest.approx(0.2, abs=0.01)
    if not draws.TWO_STREAMS:
        assert torch.equal(mine[4], theirs[4])
        error = 1e-3 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(mine[:4], theirs[:4], rtol=error, atol=error)


@pytest.mark.skipif(draws.TWO_STREAMS, reason="Inductor draws two kinds of numbers of one seed")
def test_a_mask_that_is_drawn_again_is_the_same(tmp_path: Path) -> None:
    """Whichever of the two passes is ours: both, the forward one, the backward one."""
    model = Dropped(again=True).to(CUDA)
    x = torch.randn(128, 48, device=CUDA, requires_grad=True)
    work = Workload(
        "drawn again", "training", CUDA, model, loss=lambda f: f(x).sin().sum(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
    )  # fmt: skip
    graphs = capture(work, generate_code=False)[0].graphs
    found = [plan for item in graphs for plan in models.plans_of(item.lowered)]
    kernels = [load_kernel(p, tmp_path, default_config(p, p.sites[0])) for p in found]
    for phases in (("forward", "backward"), ("forward",), ("backward",)):
        torch._dynamo.reset()
        log = SwapLog()
        ours = [kernel for kernel in kernels if kernel.plan.phase in phases]
        x.grad = None
        out = torch.compile(model, backend=plan_backend(ours, log))(x)
        out.sin().sum().backward()
        assert {outcome.refused for outcome in log.outcomes} == {None}
        assert x.grad is not None
        assert torch.equal(out == 0, x.grad == 0), phases


@pytest.mark.parametrize("whole", [False, True], ids=["rows", "tensor"])
@pytest.mark.skipif(len(NARROW) < 2, reason="this GPU has no e4m3fn")
def test_a_compiled_quantiser(whole: bool, tmp_path: Path) -> None:
    """Scales of rows, and one of the whole tensor: two launches that Inductor puts in order."""

    def quantiser(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        peak = x.abs().max() if whole else x.abs().amax(-1, keepdim=True)
        scale = peak.float().clamp(min=1e-12) / 448
        return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale

    x = torch.randn(1024, 4096, device=CUDA).bfloat16()
    work = Workload("quantise", "inference", CUDA, quantiser, inputs=(x,))
    graphs = capture(work, generate_code=False)[0].graphs
    found = [plan for item in graphs for plan in models.plans_of(item.lowered)]
    kernels = [load_kernel(p, tmp_path, default_config(p, p.sites[0])) for p in found]
    assert [kernel.config.scheme == "split" for kernel in kernels] == [whole]
    log = SwapLog()
    stored, scale = torch.compile(quantiser, backend=plan_backend(kernels, log))(x)
    assert [outcome.refused for outcome in log.outcomes] == [None]
    want, right = quantiser(x)
    torch.testing.assert_close(scale, right)
    apart = (stored.float() - want.float()).abs() > 0
    assert float(apart.float().mean()) < 1e-3  # halfway between two of them


@pytest.mark.parametrize("form", AXES)
@pytest.mark.parametrize("target", [*NARROW, "int8"])
def test_a_transposed_copy_beside_its_scale(target: str, form: Form, tmp_path: Path) -> None:
    """The likeliest launches, odd sizes too: the copy is the result in the other order."""
    for rows, columns in ((512, 1024), (1000, 4097) if form in ("rows", "all") else (384, 896)):
        plan = both_orders(form, rows, columns, target=target)
        (site,) = plan.sites
        (x,) = site_inputs(plan, site, CUDA)
        want, scales, _ = evaluate(plan, [x], "native")
        for config in candidate_configs(plan, site)[:6]:
            _, path = write_source(plan, tmp_path, config.scheme)
            out = site_outputs(plan, site, CUDA)
            assert out is not None
            small, scale, copy = load_module(path).fused(x, out=out, **config.options())
            torch.testing.assert_close(scale, scales.expand(scale.shape))
            assert torch.equal(copy.float(), small.float()), config.label()
            apart = (small.float() - want.float()).abs() > 0
            assert float(apart.float().mean()) < 1e-2, config.label()


@pytest.mark.parametrize("target", [*NARROW, "int8"])
def test_both_orders_in_a_compiled_step(target: str, tmp_path: Path) -> None:
    """A given scale: the transpose is written from the same tile, and read by what follows."""
    kind = getattr(torch, target)

    def quantiser(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        small = torch.round(x.float() * scale).clamp(-128, 127).to(kind)
        return small, small.t().contiguous()

    x, scale = torch.randn(1000, 768, device=CUDA).bfloat16(), torch.tensor(20.0, device=CUDA)
    work = Workload("both orders", "inference", CUDA, quantiser, inputs=(x, scale))
    graphs = capture(work, generate_code=False)[0].graphs
    found = [plan for item in graphs for plan in models.plans_of(item.lowered)]
    kernels = [load_kernel(p, tmp_path, default_config(p, p.sites[0])) for p in found]
    log = SwapLog()
    results = torch.compile(quantiser, backend=plan_backend(kernels, log))(x, scale)
    assert [outcome.refused for outcome in log.outcomes] == [None]
    for mine, want in zip(results, quantiser(x, scale), strict=True):
        assert mine.stride() == want.stride()
        assert torch.equal(mine.float(), want.float())


def test_nothing_spills_here() -> None:
    for plan in plans():
        assert without_spills(plan, gpu_by_key("h200"))
