"""Rows read from their tables on a GPU: every configuration, compiled steps, time beside a copy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.kernels import write_source
from advisor.hardware.gpus import gpu_by_key
from advisor.model import base
from advisor.model.gathers import gathers
from advisor.model.plan import FusionPlan
from advisor.model.site_work import site_bytes
from advisor.pipeline.candidates import without_spills
from advisor.verify.interpret import evaluate
from advisor.verify.kernel_module import load_module
from advisor.verify.recording import gpu_recorder
from advisor.verify.timing import best_config, site_inputs, time_kernel
from collectors.live.capture import no_compile_caches
from collectors.live.workload import Workload
from tests.builders.verified import verify_numerics
from tests.codegen import plans
from tests.gpu.test_compiled import CUDA_GRAPHS, assert_agree, assert_all_swapped, with_plans

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
H200 = gpu_by_key("h200")
MAKES: dict[str, Callable[..., FusionPlan]] = {
    "norm": plans.embedding_norm,
    "sums": plans.embedding_sums,
    "chain": plans.embedding_chain,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", list(MAKES))
def test_every_configuration_against_float64(name: str, dtype: str, tmp_path: Path) -> None:
    for sizes, columns in (((1, 1), 1), ((3, 7), 1001), ((16, 65), 768), ((2, 9), 20_011)):
        if name == "sums" and columns > 8192:
            continue
        plan = MAKES[name](dtype, sizes=sizes, columns=columns)
        given = site_inputs(plan, plan.sites[0], CUDA)
        exact = evaluate(plan, given, "exact")
        fits = without_spills(plan, H200)
        assert fits
        near = 2e-2 if dtype != "float32" else 1e-3
        for config in fits[:6]:
            _, path = write_source(plan, tmp_path, config.scheme, f"{plan.id}_{config.scheme}")
            got = load_module(path).fused(*given, **config.options())
            for mine, truth in zip(got, exact, strict=True):
                want = truth.to(mine.dtype).expand(mine.shape)
                scale = near * max(1.0, float(truth.abs().max()))
                torch.testing.assert_close(mine, want, rtol=near, atol=scale, msg=config.label())


@pytest.mark.parametrize("name", list(MAKES))
def test_the_verifier_passes_it(name: str, tmp_path: Path) -> None:
    plan = MAKES[name](columns=768, sizes=(4, 128))
    config = without_spills(plan, H200)[0]
    _, kernel = write_source(plan, tmp_path, config.scheme, plan.id)
    path = tmp_path / "plan.json"
    path.write_bytes(base.encode(plan))
    found = verify_numerics(path, kernel, device="cuda:0", config=config, timeout_s=120)
    assert [(case.name, case.detail) for case in found.cases if not case.passed] == []


def test_time_beside_a_copy_of_the_rows_that_are_read(tmp_path: Path) -> None:
    """BERT's words and places, 32 × 512 of them: counted as rows named, not as whole tables."""
    plan = plans.embedding_norm(sizes=(32, 512), columns=768, table_rows=30_522)
    usable = without_spills(plan, H200)[:6]
    sources = {s: write_source(plan, tmp_path, s, s)[1] for s in {c.scheme for c in usable}}
    config = best_config(plan, sources, gpu_recorder, CUDA, usable)
    moved = site_bytes(plan, plan.sites[0])
    found = time_kernel(plan, sources[config.scheme], config, gpu_recorder, CUDA, moved)
    assert found.copy_bandwidth_fraction is not None
    assert found.eager is not None
    assert found.inductor is not None
    assert found.kernel.median_ns < found.eager.median_ns
    sys.stdout.write(
        f"{config.label()}: {found.kernel.median_ns} ns, "
        f"{found.copy_bandwidth_fraction:.2f} of a copy of what is read and written; "
        f"Inductor {found.inductor.median_ns} ns, eager {found.eager.median_ns} ns\n"
    )


class Embedded(nn.Module):
    """Words, kinds and places, and their norm."""

    place: torch.Tensor

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.words = nn.Embedding(30_522, width, padding_idx=0)
        self.kinds, self.places = nn.Embedding(2, width), nn.Embedding(512, width)
        self.norm, self.after = nn.LayerNorm(width), nn.Linear(width, 64)
        self.register_buffer("place", torch.arange(512)[None])

    def forward(self, ids: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        read = self.words(ids) + self.kinds(kinds) + self.places(self.place[:, : ids.shape[1]])
        result: torch.Tensor = self.after(self.norm(read))
        return result


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with no_compile_caches():
        yield


@pytest.mark.parametrize("cuda_graphs", [False, True], ids=["plain", "cuda graphs"])
@pytest.mark.parametrize("kind", ["inference", "training"])
def test_compiled_steps_read_the_tables(kind: str, cuda_graphs: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Embedded().to(CUDA)
    ids = torch.randint(0, 30_522, (8, 129), device=CUDA)[:, :-1]
    kinds = torch.randint(0, 2, (8, 128), device=CUDA)
    if kind == "inference":
        work = Workload("embedded", "inference", CUDA, model.eval(), inputs=(ids, kinds))
    else:
        work = Workload(
            "embedded", "training", CUDA, model, optimizer=torch.optim.SGD(model.parameters(), 0.1),
            loss=lambda part: part(ids, kinds).square().mean(),
        )  # fmt: skip
    part, log, kernels = with_plans(work, tmp_path, **(CUDA_GRAPHS if cuda_graphs else {}))
    assert any(gathers(kernel.plan) for kernel in kernels)
    for _ in range(3):
        ours = [t.clone() for t in work.results_of(lambda _: part)]
    assert_all_swapped(log, kernels)
    assert_agree(ours, work)
