"""The replay against the clock on a GPU: a step that waits for its host, alone and as a graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from advisor.verify.timing import time_steps
from analyzers.exposure import Exposure, exposure_of
from analyzers.replay import replay
from collectors import read_trace
from collectors.live.recorder import TRACED_STEPS, record_steps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def clean_ns(step: Callable[[], object]) -> int:
    """The median step without a profiler."""
    return round(statistics.median(time_steps({"step": step}, 50, 10)["step"]))


def workload(width: int, layers: int) -> Callable[[], object]:
    """Many small layers, or few large ones; the same tensors every step, so that graphs fit."""
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*parts).cuda().half().eval()
    rows = torch.randn(width, width, device="cuda", dtype=torch.float16)

    def step() -> object:
        with torch.no_grad():
            return model(rows)

    return step


def replayed(step: Callable[[], object], path: Path) -> Exposure:
    clean = clean_ns(step)
    record_steps(step, path, steps=TRACED_STEPS)
    trace = read_trace(path)
    found = exposure_of(trace, trace.steps(), clean)
    assert found is not None
    return found


@pytest.mark.parametrize(("width", "layers"), [(128, 200), (8192, 4)])
def test_the_clean_step_is_reproduced(width: int, layers: int, tmp_path: Path) -> None:
    found = replayed(workload(width, layers), tmp_path / "trace.json")
    assert not found.doubt


def test_what_a_graph_launch_does_is_predicted(tmp_path: Path) -> None:
    step = workload(128, 200)
    found = replayed(step, tmp_path / "trace.json")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    measured = clean_ns(graph.replay)
    predicted = replay(found.step.graphed(whole=True), found.scale.mid).step_ns
    assert predicted == pytest.approx(measured, rel=0.25)
    assert predicted < 0.5 * (found.scale.clean_ns or 0)
