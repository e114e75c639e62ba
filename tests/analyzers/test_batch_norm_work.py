"""The work of batch norms, against kernels of the same shapes that ran on an H200."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from analyzers.batch_norm_work import transform_threads
from analyzers.dataflow import Dataflow, dataflow
from analyzers.node_work import source_op_work
from analyzers.program_cost import nodes_bytes, source_ops
from tests.builders.graph import Sketch

H200 = gpu_by_key("h200")
CALIBRATION = default_calibration(H200)
TRAINING = "aten._native_batch_norm_legit_functional.default"
GRADIENT = "aten.native_batch_norm_backward.default"
EVALUATION = "aten._native_batch_norm_legit_no_training.default"
# Medians of cuDNN's kernels in `benchmarks/replay_steps/resnet18_train.eager`: 64 images in
# float32, channels last; channels, side, microseconds forward and backward.
CUDNN = (
    (64, 112, 157.9, 244.5), (64, 56, 44.0, 66.8), (128, 28, 31.8, 35.1), (256, 14, 12.1, 14.2),
    (512, 7, 8.4, 9.2),
)  # fmt: skip
# Of ATen's in resnet50.eager: 64 images in float16 with weights as narrow, inference.
ATEN = (
    (64, 112, 121.8), (64, 56, 31.0), (256, 56, 81.5), (512, 28, 44.2), (256, 14, 5.1),
    (512, 7, 4.3),
)  # fmt: skip


def image(s: Sketch, channels: int, side: int, dtype: str = "float32", batch: int = 64) -> str:
    """A channels-last batch of images."""
    strides = (channels * side * side, 1, channels * side, channels)
    return s.input(batch, channels, side, side, dtype=dtype, strides=strides)


def normalised(s: Sketch, x: str, label: str = TRAINING, weights: str = "float32") -> str:
    """(x - mean) rstd w + b, statistics of the batch in training."""
    op: dict[str, Any] = {"label": label, "origin": "norm"}
    channels = s.meta(x).shape[1]
    w, b, mean, var = (s.input(1, channels, 1, 1, dtype=weights) for _ in "wbmv")
    wide = s.op("cast", x, dtype="float32", **op) if s.meta(x).dtype != "float32" else x
    if label == TRAINING:
        mean, var = (s.reduce(kind, wide, (0, 2, 3), **op) for kind in ("mean", "var"))
    scale = s.op("rsqrt", s.op("add", var, 1e-5, **op), **op)
    out = s.op("mul", s.op("sub", wide, mean, **op), scale, **op)
    out = s.op("add", s.op("mul", out, w, **op), b, **op)
    return s.op("cast", out, dtype=s.meta(x).dtype, **op)


def gradient(s: Sketch, x: str) -> str:
    """The gradient of x, which takes two sums of each channel."""
    op: dict[str, Any] = {"label": GRADIENT, "origin": "norm"}
    channels = s.meta(x).shape[1]
    given = s.input(*s.meta(x).shape, strides=s.meta(x).strides)
    mean, scale = s.input(1, channels, 1, 1), s.input(1, channels, 1, 1)
    apart = s.op("sub", x, mean, **op)
    one = s.reduce("sum", given, (0, 2, 3), **op)
    two = s.reduce("sum", s.op("mul", given, apart, **op), (0, 2, 3), **op)
    rest = s.op("sub", s.op("sub", given, s.op("mul", apart, two, **op), **op), one, **op)
    return s.op("mul", rest, scale, **op)


def flow_of(s: Sketch, value: str) -> tuple[Dataflow, set[str]]:
    """The flow, and the nodes of its norm."""
    flow = dataflow(s.build(value))
    ops = source_ops(flow, [n.id for n in flow.graph.nodes if n.args])
    return flow, next(n for n in ops if any("norm" in flow.nodes[name].label for name in n))


def microseconds(flow: Dataflow, nodes: set[str]) -> float:
    work = source_op_work(flow, nodes, nodes_bytes(flow, nodes))
    return work.time(H200, CALIBRATION).mid / 1e3


def test_norms_of_a_training_step_cost_what_cudnn_took() -> None:
    """In two reads of what they normalise; without, large ones were a third too short and small
    ones half too long.
    """
    apart = []
    for channels, side, forward, backward in CUDNN:
        for make, measured in ((normalised, forward), (gradient, backward)):
            s = Sketch()
            apart.append(microseconds(*flow_of(s, make(s, image(s, channels, side)))) / measured)
    assert statistics.median(abs(ratio - 1) for ratio in apart) < 0.06
    assert min(apart) > 0.65
    assert max(apart) < 1.32


@pytest.mark.parametrize(("channels", "side", "measured"), [row[:3] for row in CUDNN])
def test_statistics_and_result_add_up_to_the_norm(
    channels: int, side: int, measured: float
) -> None:
    """They are claimed by two findings; the result is no loop over an index an element."""
    s = Sketch()
    flow, nodes = flow_of(s, normalised(s, image(s, channels, side)))
    first = {n for n in nodes if flow.nodes[n].op in ("mean", "var")}
    parts = microseconds(flow, first) + microseconds(flow, nodes - first)
    assert parts == pytest.approx(microseconds(flow, nodes), rel=0.15)
    assert parts == pytest.approx(measured, rel=0.35)


def test_a_norm_of_known_statistics_costs_what_aten_took() -> None:
    """Each as `vector` would be up to two and a half times too short."""
    apart = []
    for channels, side, measured in ATEN:
        s = Sketch()
        x = image(s, channels, side, "float16")
        found = normalised(s, x, EVALUATION, weights="float16")
        apart.append(microseconds(*flow_of(s, found)) / measured)
    assert all(0.65 < ratio < 1.35 for ratio in apart)
    assert sum(apart) / len(apart) == pytest.approx(1, abs=0.1)


def test_threads_are_those_of_recorded_launches() -> None:
    """Blocks of 512 in resnet50.eager: 2 x 128, 32 x 49, 64 x 13."""
    assert transform_threads(64 * 112 * 112, 64) == 2 * 128 * 512
    assert transform_threads(64 * 14 * 14, 1024) == 32 * 49 * 512
    assert transform_threads(64 * 7 * 7, 2048) == 64 * 13 * 512
    assert transform_threads(1, 1) == 1


def test_float16_is_cudnn_s_beside_wide_weights_alone() -> None:
    times = {}
    for weights in ("float16", "float32"):
        s = Sketch()
        x = image(s, 64, 112, "float16")
        times[weights] = microseconds(*flow_of(s, normalised(s, x, EVALUATION, weights)))
    assert times["float32"] < 0.6 * times["float16"]
