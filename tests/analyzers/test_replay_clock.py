"""The replay against the clock: recorded steps whose time without a profiler is known."""

from __future__ import annotations

import json
import statistics
from functools import cache

import pytest

from analyzers.exposure import exposure_of
from analyzers.replay import NONE, Step, replay
from analyzers.replay_calibration import LEAST_SCALE, MOST_SCALE
from collectors import read_trace
from tests.builders.trace import SHARED

H200 = SHARED / "traces" / "h200"
# Median step in ms without a profiler, from the README of the traces.
CLEAN_MS = {
    "bert.eager": 2.74,
    "bert.inductor": 2.31,
    "bert_cudagraph.eager": 2.73,
    "bert_cudagraph.inductor": 1.17,
    "ddp_onebucket.rank0": 8.24,
    "ddp_overlap.rank0": 8.29,
    "dlrm_train.eager": 27.80,
    "dlrm_train.inductor": 13.84,
    "llama_decode.eager": 6.83,
    "llama_decode.inductor": 2.29,
    "llama_prefill.eager": 10.39,
    "llama_prefill.inductor": 5.03,
    "llama_train.eager": 17.00,
    "llama_train.inductor": 12.09,
    "mamba.eager": 14.51,
    "resnet50.eager": 8.60,
    "resnet50.inductor": 3.01,
    "unet.eager": 2.29,
    "unet.inductor": 1.91,
}
GRAPHED = ("bert", "dlrm_train", "llama_decode", "llama_prefill", "llama_train", "resnet50", "unet")


@cache
def step_of(name: str, clean_ms: float) -> tuple[Step, float, bool]:
    """(the recorded step, the factor on its host time, whether the replay can be believed)."""
    path = H200 / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("the shared traces are not here")
    trace = read_trace(path)
    found = exposure_of(trace, trace.steps(), round(clean_ms * 1e6))
    assert found is not None
    return found.step, found.scale.mid, found.scale.holds


@pytest.mark.parametrize("name", CLEAN_MS)
def test_the_clean_step_is_reproduced_by_a_possible_speed_of_the_host(name: str) -> None:
    step, factor, holds = step_of(name, CLEAN_MS[name])
    assert holds
    assert LEAST_SCALE <= factor <= MOST_SCALE
    assert replay(step, factor).step_ns == pytest.approx(CLEAN_MS[name] * 1e6, rel=0.05)


def test_a_rank_that_waited_for_a_stretched_one_is_not_judged() -> None:
    """Its collectives waited for another rank that the profiler had slowed down."""
    assert not step_of("ddp_overlap.rank1", 8.29)[2]


def test_what_cuda_graphs_do_is_predicted() -> None:
    """Calibrated to the step without graphs; the time with graphs is not used."""
    if not (H200 / "zoo_baselines.json").exists():
        pytest.skip("the shared traces are not here")
    baselines = json.loads((H200 / "zoo_baselines.json").read_text())
    errors = {}
    for name in GRAPHED:
        times = baselines[name]
        step, factor, _ = step_of(f"{name}.inductor", times["default"])
        predicted = replay(step.graphed(), factor).step_ns / 1e6
        errors[name] = abs(predicted / times["reduce-overhead"] - 1)
    assert statistics.median(errors.values()) < 0.05
    assert max(errors.values()) < 0.15


def test_a_graph_launch_replays_both_streams() -> None:
    """97 kernels on two streams of a graph: they overlap in the replay as they did."""
    path = H200 / "streams_two.json.gz"
    if not path.exists():
        pytest.skip("the shared traces are not here")
    trace = read_trace(path)
    graph = trace.launches.index[trace.launches["kind"] == "graph"][0]
    inside = trace.kernels[trace.kernels["launch"] == graph]
    recorded = (inside["start_ns"] + inside["duration_ns"]).max() - inside["start_ns"].min()
    found = exposure_of(trace, trace.steps(), None)
    assert found is not None
    mine = (found.step.stream != NONE) & [row in set(inside.index) for row in found.step.row]
    played = replay(found.step)
    began = (played.ended_ns - found.step.device_ns)[mine].min()
    assert played.ended_ns[mine].max() - began == pytest.approx(float(recorded), rel=0.1)
    assert found.step.device_ns[mine].sum() > 1.25 * recorded
