"""Plans inside compiled steps on the GPU: every site swapped, results and gradients kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.judge import outputs_agree
from advisor.apply.kernels import ReadyKernel, load_kernel
from advisor.cli.main import run as command
from advisor.model.applied import Applied, PlanVerdict, SetVerdict
from advisor.model.configs import default_config, schemes_of
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.pipeline.backend import SwapLog, plan_backend
from advisor.pipeline.likeness import difference
from advisor.samples import resnet_block, transformer_block, unet_block
from advisor.store import RunDirectory
from collectors.live.capture import Capture, capture, no_compile_caches
from collectors.live.workload import Workload
from tests.builders import captured as models

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
EPSILON = torch.finfo(torch.bfloat16).eps
CUDA_GRAPHS = {"triton.cudagraphs": True}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with no_compile_caches():
        yield


def sample(kind: str) -> Workload:
    with CUDA:
        if kind == "inference":
            module, inputs = transformer_block.inference()
            return Workload("sample", "inference", CUDA, module.to(CUDA), inputs=inputs)
        model, optimizer, loss = transformer_block.train()
    return Workload("sample", "training", CUDA, model, optimizer=optimizer, loss=loss)


def kernels_of(found: Capture, folder: Path) -> list[ReadyKernel]:
    """A kernel for every plan of every graph; the longest programs claim their sites first."""
    plans = [plan for item in found.graphs for plan in models.plans_of(item.lowered)]
    plans.sort(key=lambda plan: -len(plan.ops))
    return [load_kernel(p, folder, default_config(p, p.sites[0])) for p in plans]


def streamed(plan: FusionPlan, scheme: Scheme) -> LaunchConfig:
    """A plan's configuration in one scheme, several blocks a row."""
    found: Scheme = scheme if scheme in schemes_of(plan) else "looped"
    splits = 3 if found == "split" else None
    return LaunchConfig(scheme=found, block_columns=256, splits=splits, num_warps=2)


@pytest.mark.parametrize("scheme", ["looped", "online", "split"])
@pytest.mark.parametrize("settings", [{}, CUDA_GRAPHS], ids=["plain", "cuda graphs"])
def test_rows_that_are_streamed(scheme: Scheme, settings: dict[str, Any], tmp_path: Path) -> None:
    """A split row is two kernels that Inductor schedules one after the other."""

    def module(x: torch.Tensor, m: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(x.float() * 0.5 + m, -1).to(x.dtype), torch.logsumexp(x.float(), -1)

    x, m = torch.randn(96, 5000, device=CUDA).bfloat16(), torch.randn(1, 5000, device=CUDA)
    work = Workload("streamed", "inference", CUDA, module, inputs=(x, m))
    graphs = capture(work, generate_code=False)[0].graphs
    plans = [plan for item in graphs for plan in models.plans_of(item.lowered)]
    kernels = [load_kernel(plan, tmp_path, streamed(plan, scheme)) for plan in plans]
    log = SwapLog()
    part = torch.compile(module, backend=plan_backend(kernels, log, **settings))
    for _ in range(3):
        ours = [t.clone() for t in work.results_of(lambda _: part)]
    assert_all_swapped(log, kernels)
    torch.testing.assert_close(ours, list(module(x, m)), rtol=1e-2, atol=1e-4)


def with_plans(
    work: Workload, folder: Path, **settings: Any
) -> tuple[Callable[..., Any], SwapLog, list[ReadyKernel]]:
    """The compiled part of a workload with every site swapped."""
    kernels = kernels_of(capture(work, generate_code=False)[0], folder)
    log = SwapLog()
    return torch.compile(work.part, backend=plan_backend(kernels, log, **settings)), log, kernels


def assert_all_swapped(log: SwapLog, kernels: list[ReadyKernel]) -> None:
    assert kernels
    for kernel in kernels:
        assert log.refusals(kernel.plan.id) == ()
        assert log.swapped(kernel.plan.id) == len(kernel.plan.sites)


def assert_agree(ours: list[torch.Tensor], work: Workload) -> None:
    """As close to eager as the compiler alone, which is compiled here too."""
    eager = work.results_of()
    torch._dynamo.reset()
    plain = work.results_of(torch.compile)
    error, baseline = difference(ours, eager), difference(plain, eager)
    assert outputs_agree(error, baseline, EPSILON), f"{error:.2e}, compiler alone {baseline:.2e}"


@pytest.mark.parametrize("kind", ["inference", "training"])
@pytest.mark.parametrize("settings", [{}, CUDA_GRAPHS], ids=["plain", "cuda graphs"])
def test_the_sample(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    work = sample(kind)
    part, log, kernels = with_plans(work, tmp_path, **settings)
    # CUDA graphs warm up, record and replay: the third call is a replay.
    for _ in range(3):
        ours = [t.clone() for t in work.results_of(lambda _: part)]
    assert_all_swapped(log, kernels)
    assert_agree(ours, work)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("name", ["unet", "resnet"])
def test_norms_of_channels_in_a_training_step(
    name: str, layout: torch.memory_format, tmp_path: Path
) -> None:
    """Results in the layouts that convolutions around them want: Inductor may choose others."""
    with CUDA:
        model, optimizer, loss = (unet_block if name == "unet" else resnet_block).train()
    model = model.to(CUDA).to(memory_format=layout)
    work = Workload(name, "training", CUDA, model, optimizer=optimizer, loss=loss)
    part, log, kernels = with_plans(work, tmp_path)
    ours = [t.clone() for t in work.results_of(lambda _: part)]
    assert_all_swapped(log, kernels)
    assert_agree(ours, work)


def test_what_reads_across_is_swapped_in(tmp_path: Path) -> None:
    def module(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nn.functional.silu(a) + b, a * b

    first = torch.randn(8, 64, 28, 28, device=CUDA)
    last = torch.randn(8, 64, 28, 28, device=CUDA).to(memory_format=torch.channels_last)
    work = Workload("across", "inference", CUDA, module, inputs=(last, first))
    part, log, kernels = with_plans(work, tmp_path)
    ours = [t.clone() for t in work.results_of(lambda _: part)]
    assert_all_swapped(log, kernels)
    assert [kernel.config.scheme for kernel in kernels] == ["blocks"]
    torch.testing.assert_close(ours, list(module(last, first)), rtol=1e-5, atol=1e-5)


def test_cuda_graphs_replay_with_new_inputs(tmp_path: Path) -> None:
    module = models.Chain().to(CUDA).eval()
    inputs = [torch.randn(64, 48, device=CUDA) for _ in range(5)]
    work = Workload("chain", "inference", CUDA, module, inputs=(inputs[0],))
    part, log, kernels = with_plans(work, tmp_path, **CUDA_GRAPHS)
    with torch.no_grad():
        for x in inputs:
            torch.testing.assert_close(part(x).clone(), module(x), rtol=1e-4, atol=1e-5)
    assert_all_swapped(log, kernels)


def test_gradients_of_a_small_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 128), models.RMSNorm(128), nn.Linear(128, 64)).to(CUDA)
    data = torch.randn(96, 128, device=CUDA)
    work = Workload(
        "step", "training", CUDA, model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=lambda part: part(data).square().mean(),
    )  # fmt: skip
    part, log, kernels = with_plans(work, tmp_path)
    ours = work.results_of(lambda _: part)
    assert_all_swapped(log, kernels)
    assert {kernel.plan.phase for kernel in kernels} == {"forward", "backward"}
    for mine, theirs in zip(ours, work.results_of(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_softcap_masked_softmax_with_two_outputs(tmp_path: Path) -> None:
    module = models.SoftCap()
    scores = torch.randn(2, 8, 128, 1000, device=CUDA)
    mask = torch.full((128, 1000), float("-inf"), device=CUDA).triu(diagonal=800)
    work = Workload("softcap", "inference", CUDA, module, inputs=(scores, mask))
    part, log, kernels = with_plans(work, tmp_path)
    ours = work.results_of(lambda _: part)
    assert_all_swapped(log, kernels)
    probabilities, total = module(scores, mask)
    torch.testing.assert_close(ours[0], probabilities, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(ours[1], total, rtol=1e-5, atol=1e-5)


def cut(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax((torch.tanh(x) * 2 + 1)[:, 24:1024] * 3, -1)


def joined(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first input is part of a concatenation that the second one waits for."""
    y = torch.sin(x.flip(0)).roll(1, 1)
    wide = torch.cat([y, x], 1)
    return wide, torch.softmax(y * (wide.mean(0, keepdim=True) @ wide.t() @ x), -1)


def transposed(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax((torch.tanh(x).t() + 1)[:, ::2] * 3, -1)


@pytest.mark.parametrize("step", [cut, joined, transposed], ids=lambda s: s.__name__)
def test_inputs_that_the_compiler_lays_out_itself(
    step: Callable[[torch.Tensor], Any], tmp_path: Path
) -> None:
    """A kernel reads with the strides of the captured graph; the compiler may choose others."""
    x = torch.randn(512, 2048, device=CUDA)
    work = Workload("layout", "inference", CUDA, step, inputs=(x,))
    part, log, kernels = with_plans(work, tmp_path)
    ours = work.results_of(lambda _: part)
    assert_all_swapped(log, kernels)
    for mine, theirs in zip(ours, work.results_of(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of the sample whose plans are on record as kept, whatever they measured."""
    folder = tmp_path_factory.mktemp("gpu_run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        out = folder / "run"
        assert command(["profile", "sample:transformer_block", "--out", str(out)]) == 0
    run = RunDirectory.at(out)
    report = run.report()
    named = [tuple(map(run.plan, a.plan_ids)) for f in report.findings for a in f.alternatives]
    plans = next(
        plans for plans in named if plans and {plan.family for plan in plans} == {"row_program"}
    )
    verdicts = tuple(
        PlanVerdict(
            plan_id=plan.id, title=plan.title, verdict="kept", reason="test",
            sites_expected=len(plan.sites), launch=LaunchConfig(num_warps=8),
        )
        for plan in plans
    )  # fmt: skip
    result = SetVerdict(verdict="kept", reason="test", plans=tuple(plan.id for plan in plans))
    run.write_applied(
        Applied(created=report.created, device="test", versions={}, plans=verdicts, set=result)
    )
    return run


@pytest.mark.parametrize("settings", [{}, CUDA_GRAPHS], ids=["plain", "cuda graphs"])
@pytest.mark.skipif(
    "fusion_advisor" not in {e.name for e in entry_points(group="torch_dynamo_backends")},
    reason="backends are found by name only where the package is installed",
)
def test_the_backend_by_name(kept: RunDirectory, settings: dict[str, Any]) -> None:
    work = sample("inference")
    options = {"run": str(kept.path), **settings}
    part = torch.compile(work.part, backend="fusion_advisor", options=options)
    for _ in range(3):
        ours = [t.clone() for t in work.results_of(lambda _: part)]
    names = launched_kernels(lambda: work.results_of(lambda _: part))
    record = kept.applied()
    assert record is not None
    for verdict in record.plans:
        ran = sum(name.startswith(f"row_program_{verdict.plan_id[:8]}") for name in names)
        assert 1 <= ran <= verdict.sites_expected
    assert_agree(ours, work)


def launched_kernels(step: Callable[[], object]) -> list[str]:
    """Names of the kernels that one step runs."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        torch.cuda.synchronize()
    kinds = torch.autograd.DeviceType.CUDA
    return [event.name for event in profiler.events() if event.device_type == kinds]
