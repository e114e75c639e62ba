"""Products with what follows in compiled steps on the GPU: results kept, how fast they are, and
what a compiler's own template leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.judge import outputs_agree
from advisor.apply.kernels import load_kernel, write_source
from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.model.base import Range
from advisor.model.configs import candidate_configs
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.pipeline.backend import SwapLog, plan_backend
from advisor.pipeline.candidates import without_spills
from advisor.pipeline.likeness import difference
from advisor.verify._numerics_worker import run_case
from advisor.verify.cases import Case
from advisor.verify.kernel_module import load_module
from advisor.verify.recording import gpu_recorder
from advisor.verify.statistics import timing
from advisor.verify.timing import configured_calls, site_inputs
from analyzers.exposure import Situation
from analyzers.gemm_advice import FUSED_ALREADY, advise_gemms
from analyzers.gemm_cost import share_of
from analyzers.opportunities import PricedGraph
from analyzers.prediction import PricedFlow
from analyzers.pricing import Unit, price_list
from collectors.live.capture import capture, no_compile_caches
from collectors.live.workload import Workload
from tests.builders.gemm_plans import biased_gelu, gated
from tests.builders.gemms import gemms_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
ROUNDS = 10
# Below half of the least share that is estimated, a kernel is broken rather than slow.
BROKEN = 0.5


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with no_compile_caches():
        yield


class MLP(nn.Module):
    """A linear layer with GELU, then a gated one with a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(768, 3072), nn.Linear(3072, 768)
        self.gate, self.up = nn.Linear(768, 2048, bias=False), nn.Linear(768, 2048, bias=False)
        self.down = nn.Linear(2048, 768, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.second(functional.gelu(self.first(x)))
        result: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


def work_of(dtype: torch.dtype) -> Workload:
    with CUDA:
        torch.manual_seed(0)
        x = torch.randn(4, 512, 768, dtype=dtype)
        return Workload("mlp", "inference", CUDA, MLP().to(dtype).eval(), inputs=(x,))


@pytest.fixture(params=["bfloat16", "float16", "float32", "tfloat32"])
def arithmetic(request: pytest.FixtureRequest) -> Iterator[str]:
    """What is multiplied; the last with the caller's leave to round float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if request.param == "tfloat32" else "highest")
    yield request.param
    torch.set_float32_matmul_precision(before)


def test_a_compiled_step_with_its_products_swapped_equals_the_other(
    arithmetic: str, tmp_path: Path
) -> None:
    dtype = getattr(torch, arithmetic.replace("tf", "f"))
    work = work_of(dtype)
    plans = gemms_of(capture(work, generate_code=False)[0].graphs[0].lowered)
    assert len(plans) >= 2
    assert {plan.product.tf32 for plan in plans if plan.product} == {arithmetic == "tfloat32"}
    eager, plain = work.results_of(), work.results_of(_compiled(work))
    kernels = [load_kernel(plan, tmp_path, usable(plan)[0]) for plan in plans]
    log = SwapLog()
    part = torch.compile(work.part, backend=plan_backend(kernels, log), dynamic=False)
    ours = work.results_of(lambda _: part)
    for plan in plans:
        assert log.swapped(plan.id) == len(plan.sites)
        assert log.refusals(plan.id) == ()
    error, baseline = difference(ours, eager), difference(plain, eager)
    epsilon = 2**-10 if arithmetic == "tfloat32" else torch.finfo(dtype).eps
    assert outputs_agree(error, baseline, epsilon), f"{error:.2e} beside {baseline:.2e}"


def _compiled(work: Workload) -> Callable[..., Any]:
    part = torch.compile(work.part, dynamic=False)
    return lambda _: part


def usable(plan: FusionPlan) -> tuple[LaunchConfig, ...]:
    """The configurations that spill nothing here, the likeliest first."""
    gpu = find_gpu(torch.cuda.get_device_name())
    configs = candidate_configs(plan, plan.sites[0])
    return configs if gpu is None else without_spills(plan, gpu, configs)


WAYS = ((False, False), (False, True), (True, False), (True, True))


@pytest.mark.parametrize("turned", WAYS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_dtype_layout_and_size_beside_float64(
    dtype: str, turned: tuple[bool, bool], tmp_path: Path
) -> None:
    plan = biased_gelu((512, 1024, 768), dtype, turned=turned, both=True)
    _, path = write_source(plan, tmp_path, "gemm")
    module = load_module(path)
    for config in usable(plan)[:3]:
        for sizes in ((512, 1024, 768), (333, 1000, 517), (1, 7, 128), (128, 1, 1), (77, 0, 40)):
            case = Case("", sizes[:2], sizes[2:], "normal", config.block_rows)
            verdict = run_case(plan, module, case, CUDA, config, seed=1)
            assert verdict.passed, (config.label(), sizes, verdict.detail)


@pytest.mark.parametrize(
    "plan",
    [
        biased_gelu((2048, 768, 3072), "float16"),
        gated((4096, 2048, 5632)),
        biased_gelu((8192, 4096, 4096)),
    ],
    ids=["bert", "gated", "large"],
)
def test_the_share_of_the_librarys_speed_is_what_was_estimated(
    plan: FusionPlan, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The kernel with all that follows, beside the library's product alone."""
    _, path = write_source(plan, tmp_path, "gemm")
    configs = usable(plan)
    inputs = site_inputs(plan, plan.sites[0], CUDA)
    calls: dict[str, Callable[[], object]] = dict(
        configured_calls(plan, {"gemm": path}, CUDA, configs, inputs)
    )
    left, right = inputs[0][..., 0], inputs[1].flatten(0, -2)
    calls["library"] = partial(torch.mm, left, right)
    taken = {name: timing(v).median_ns for name, v in gpu_recorder(calls, ROUNDS).items()}
    library = taken.pop("library")
    best = min(taken, key=lambda name: taken[name])
    record_property("share", library / taken[best])
    record_property("config", best)
    gpu = find_gpu(torch.cuda.get_device_name()) or gpu_by_key("h200")
    situation = Situation(gpu, default_calibration(gpu), False)
    exactly = Range(low=library, mid=library, high=library)
    share = share_of(plan, plan.sites[0], exactly, situation)
    assert library / taken[best] > BROKEN * share.least, taken


def test_a_template_that_has_what_follows_leaves_nothing_to_propose() -> None:
    """Inductor's own product in Triton, forced by leaving the library out."""
    work = work_of(torch.bfloat16)
    options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
    with torch._inductor.config.patch(options):
        (item,) = capture(work, generate_code=True)[0].graphs
    graph = item.lowered.graph
    known = {node.id for node in graph.nodes}
    units = [Unit(n, frozenset(nodes) & known, 10_000, 1) for n, nodes in item.kernels]
    assert any(name.startswith("triton_tem") for name, _ in item.kernels), item.kernels
    facts = PricedFlow(PricedGraph(graph).flow, price_list(units, fused=True), graph.phase)
    gpu = gpu_by_key("h200")
    found = advise_gemms([(facts, frozenset())], Situation(gpu, default_calibration(gpu), False))
    assert FUSED_ALREADY in {left.why for left in found.left}
