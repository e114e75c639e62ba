"""Cures on the GPU: the compiler's kernels cut and launched otherwise, in a step and in records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.codecache import PyCodeCache

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.compiler.generated import configs_of
from advisor.apply.recipe import UNCHANGED
from advisor.hardware.gpus import find_gpu
from advisor.pipeline.backend import NOTHING_TOLD, SwapLog, Told, plan_backend
from advisor.pipeline.curing import proved
from advisor.pipeline.measure import Bench
from advisor.pipeline.search import Search
from advisor.pipeline.switch import GraphSwitch
from advisor.pipeline.trials import Trial
from collectors.live.capture import no_compile_caches
from collectors.live.workload import Workload

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
ROOT = Path(__file__).parents[2]
TAPS = 9


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    # A graph from a cache has run no pass.
    with no_compile_caches():
        yield
    torch.cuda.synchronize()


class Window(nn.Module):
    """A moving sum of an activation that the compiler, by its defaults, computes for every tap."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = x
        for _ in range(3):
            p = 3 * torch.sigmoid(p) - 1.2
        width = x.shape[1] - TAPS + 1
        total = p[:, :width]
        for i in range(1, TAPS):
            total = total + p[:, i : i + width]
        return total


def window() -> Workload:
    torch.manual_seed(0)
    x = torch.randn(8_192, 4_096, device=CUDA, dtype=torch.bfloat16)
    return Workload("window", "inference", CUDA, Window(), inputs=(x,))


def searched(bench: Bench, trial: Trial) -> tuple[Any, Any]:
    def quiet(*_: object, **__: object) -> None:
        """Progress nobody reads."""

    gpu = find_gpu(torch.cuda.get_device_name())
    return Search(bench, {}, [trial], Path(), quiet, gpu=gpu).run()


def test_a_producer_computed_again_by_every_reader_is_stored_once() -> None:
    bench = Bench(window(), window)
    trial = Trial("unfuse", action="unfuse")
    best, result = searched(bench, trial)
    sys.stdout.write(f"{trial.details}\n")
    assert result.verdict == "kept", trial.details
    assert result.actions == ("unfuse",)
    assert any("is stored once" in split.words for split in trial.splits)
    # The kernels of the step: one before, two now, and less time in both than in the one.
    plain, cut = (bench.kernel_times(v) for v in (bench.compiled, best))
    assert (len(plain), len(cut)) == (1, 2)
    assert sum(cut.values()) < 0.8 * sum(plain.values())
    # As its user compiles it, the same: nothing of the trial is left.
    bench.compiled.step()


def test_every_other_launch_computes_the_same_and_is_launched_as_told() -> None:
    x = torch.randn(4_096, 4_096, device=CUDA, dtype=torch.bfloat16)

    def soft(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 0.125, -1)

    switch = GraphSwitch()
    part = torch.compile(soft, backend=switch.backend())
    expected = part(x).clone()
    (seen,) = switch.seen()
    (kernel,) = seen.generated
    gpu = find_gpu(torch.cuda.get_device_name())
    configs = proved(kernel, gpu)
    assert configs
    for config in configs[:4]:
        selection = switch.with_kernels((), SwapLog(), Told(retuned=(config,)))
        assert list(selection.graphs) == [0]
        switch.select(selection)
        torch.testing.assert_close(part(x), expected)


@pytest.mark.parametrize("warps", [4, 16])
def test_the_backend_launches_a_kernel_as_a_recipe_says(warps: int) -> None:
    x = torch.randn(4_096, 2_048, device=CUDA)

    def soft(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + 1, -1)

    switch = GraphSwitch()
    torch.compile(soft, backend=switch.backend())(x)
    (kernel,) = switch.seen()[0].generated
    config = next(c for c in configs_of(kernel) if c.num_warps == warps)
    torch._dynamo.reset()
    loaded: list[Any] = []
    backend = plan_backend((), SwapLog(), told=Told(retuned=(config,)), inner=_noting(loaded))
    found = torch.compile(soft, backend=backend)(x)
    torch.testing.assert_close(found, soft(x))
    (launcher,) = {id(k): k for k in loaded}.values()
    chosen = launcher.launchers[0].config
    # Inductor may halve the block of a reduction once more where that lets more programs reside.
    assert chosen.num_warps == warps
    assert chosen.kwargs["XBLOCK"] == config.blocks["XBLOCK"]
    # The next compilation of the same kernel chooses for itself.
    torch._dynamo.reset()
    plain = torch.compile(soft, backend=plan_backend((), SwapLog(), told=NOTHING_TOLD))(x)
    torch.testing.assert_close(plain, found)


def _noting(loaded: list[Any]) -> Any:
    """Inductor's inner compiler; the Triton kernels of what it loads are noted."""
    from torch._inductor.compile_fx import compile_fx_inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        compiled = compile_fx_inner(*args, **kwargs)
        for module in PyCodeCache.modules:
            loaded.extend(v for v in vars(module).values() if hasattr(v, "inductor_meta"))
        return compiled

    return inner


def test_a_search_for_launches_ends_in_a_verdict() -> None:
    bench = Bench(window(), window)
    trial = Trial("retune", action="retune")
    _, result = searched(bench, trial)
    sys.stdout.write(f"{trial.details}\n")
    assert trial.judgement is not None
    assert trial.judgement.keep == (result.verdict == "kept")
    assert trial.details
    assert bench.unswapped(UNCHANGED).step is not None


def test_cures_win_back_what_cases_of_the_corpus_lost(tmp_path: Path) -> None:
    out = tmp_path / "cured.json"
    script = str(ROOT / "benchmarks" / "overfusion_cures.py")
    families = ("norm_gate", "product_stages", "offload", "compiled_windows")
    line = [sys.executable, script, "--seconds", "240", "--out", str(out), *families]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    sys.stdout.write(f"{done.stdout}\n")
    assert done.returncode == 0, done.stderr[-2_000:]
    cases = json.loads(out.read_text())["cases"]
    kinds = {way["kind"] for case in cases for way in case["ways"]}
    assert {"launch", "split", "buckets"} <= kinds
