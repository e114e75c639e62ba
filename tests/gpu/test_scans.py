"""Scans in compiled steps on the GPU: one kernel in the loop's place, results kept, and faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.judge import outputs_agree
from advisor.apply.kernels import load_kernel, write_source
from advisor.hardware.gpus import find_gpu
from advisor.model.configs import candidate_configs, schemes_of
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.pipeline.backend import SwapLog, plan_backend
from advisor.pipeline.candidates import without_spills
from advisor.pipeline.likeness import difference
from advisor.samples import mamba_block
from advisor.verify._numerics_worker import run_case
from advisor.verify.cases import Case
from advisor.verify.kernel_module import load_module
from advisor.verify.recording import gpu_recorder
from advisor.verify.statistics import timing
from collectors.live.capture import capture, no_compile_caches
from collectors.live.workload import Workload
from tests.builders.scan_plans import decayed, gated, selective
from tests.builders.scans import scans_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
EPSILON = torch.finfo(torch.bfloat16).eps
ROUNDS = 10


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with no_compile_caches():
        yield


def mamba_sample() -> Workload:
    with CUDA:
        block, inputs = mamba_block.inference()
    return Workload("mamba block", "inference", CUDA, block.to(CUDA), inputs=inputs)


def mamba_zoo() -> Workload:
    """The zoo's model, its scan a Python loop over 64 tokens."""
    transformers = pytest.importorskip("transformers", reason="the zoo's Mamba is theirs")
    config = transformers.MambaConfig(
        hidden_size=768, num_hidden_layers=2, vocab_size=8000, use_associative_scan=False
    )
    with CUDA:
        torch.manual_seed(0)
        model = transformers.MambaForCausalLM(config).to(torch.bfloat16).eval()
        tokens = torch.randint(0, 8000, (1, 64))

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
            return found

    return Workload("mamba", "inference", CUDA, Logits(), inputs=(tokens,))


@pytest.mark.parametrize("build", [mamba_sample, mamba_zoo], ids=["sample", "zoo"])
def test_a_mamba_with_its_scan_in_one_kernel_equals_the_other_and_is_faster(
    build: Callable[[], Workload], tmp_path: Path
) -> None:
    work = build()
    (plan,) = scans_of(capture(work, generate_code=False)[0].graphs[0].lowered)
    eager = work.results_of()
    parts = {"compiled": torch.compile(work.part, dynamic=False)}
    plain = work.results_of(lambda _: parts["compiled"])
    for config in first_of_each_scheme(plan):
        log, kernel = SwapLog(), load_kernel(plan, tmp_path / config.scheme, config)
        backend = plan_backend([kernel], log)
        part = parts[config.label()] = torch.compile(work.part, backend=backend, dynamic=False)
        ours = work.results_of(lambda _, part=part: part)
        assert log.swapped(plan.id) == len(plan.sites)
        assert log.refusals(plan.id) == ()
        error, baseline = difference(ours, eager), difference(plain, eager)
        assert outputs_agree(error, baseline, EPSILON), f"{config.label()}: {error:.2e}"
    calls = {name: partial(called, part, work.inputs) for name, part in parts.items()}
    taken = {n: timing(v).median_ns for n, v in gpu_recorder(calls, ROUNDS).items()}
    best = min(ns for name, ns in taken.items() if name != "compiled")
    assert best < taken["compiled"], taken


def called(part: Callable[..., Any], inputs: Any) -> None:
    with torch.no_grad():
        part(*inputs)


def first_of_each_scheme(plan: FusionPlan) -> list[LaunchConfig]:
    """The likeliest configuration of every scheme that spills nothing here."""
    gpu = find_gpu(torch.cuda.get_device_name())
    configs = candidate_configs(plan, plan.sites[0])
    usable = configs if gpu is None else without_spills(plan, gpu, configs)
    found: dict[Scheme, LaunchConfig] = {}
    for config in usable:
        found.setdefault(config.scheme, config)
    return list(found.values())


@pytest.mark.parametrize("steps", [1, 7, 128, 1000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_scheme_and_length_beside_float64(steps: int, dtype: str, tmp_path: Path) -> None:
    for name, plan in {
        "selective": selective((96, steps, 16), dtype),
        "decayed": decayed((96, steps, 1), back=True, given=True),
        "gated": gated((96, steps, 1)),
    }.items():
        configs = candidate_configs(plan, plan.sites[0])
        for scheme in schemes_of(plan):
            config = next((c for c in configs if c.scheme == scheme), None)
            if config is None:
                continue
            _, path = write_source(plan, tmp_path, scheme, f"{name}_{scheme}")
            columns = (plan.sites[0].columns,)
            for lanes in (96, 5):
                case = Case("", (lanes, steps), columns, "normal", config.block_rows)
                verdict = run_case(plan, load_module(path), case, CUDA, config, seed=1)
                assert verdict.passed, (name, config.label(), verdict.detail)
