"""The work of batch norms, against kernels of the same shapes that ran on an H200."""

from __future__ import annotations

import importlib
import statistics
from pathlib import Path
from typing import Any

import pytest

from advisor.hardware.calibration import SHIPPED, Calibration, default_calibration, read_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.graph import node_of
from analyzers.batch_norm_kernels import Tiles, tiles
from analyzers.batch_norm_work import BatchNorm, batch_norm_work
from analyzers.cost_model import Work
from analyzers.dataflow import Dataflow, dataflow
from analyzers.node_work import source_op_work
from analyzers.program_cost import nodes_bytes, source_ops
from analyzers.recorded_ops import Operand
from tests.builders.graph import Sketch

H200 = gpu_by_key("h200")
CALIBRATION = default_calibration(H200)
MEASURED = read_calibration(SHIPPED / "h200.json", H200)
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TRAINING = "aten._native_batch_norm_legit_functional.default"
GRADIENT = "aten.native_batch_norm_backward.default"
EVALUATION = "aten._native_batch_norm_legit_no_training.default"
# Medians of cuDNN's kernels in `benchmarks/replay_steps/resnet18_train.eager`: 64 images in
# float32, channels last; channels, side, microseconds forward and backward.
CUDNN = (
    (64, 112, 157.9, 244.5), (64, 56, 44.0, 66.8), (128, 28, 31.8, 35.1), (256, 14, 12.1, 14.2),
    (512, 7, 8.4, 9.2),
)  # fmt: skip
# Of ATen's in resnet50.eager: 64 images in float16 with weights as narrow, inference; the kernel
# that writes the result. Two small ones come before it, of 2.0 and 1.3 µs.
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


def gradient(s: Sketch, x: str, weights: str = "float32") -> str:
    """The gradient of x, which takes two sums of each channel."""
    op: dict[str, Any] = {"label": GRADIENT, "origin": "norm"}
    meta = s.meta(x)
    channels = meta.shape[1]
    given = s.input(*meta.shape, strides=meta.strides, dtype=meta.dtype)
    w = s.input(1, channels, 1, 1, dtype=weights)
    if meta.dtype != "float32":
        x, given = (s.op("cast", item, dtype="float32", **op) for item in (x, given))
    mean, scale = s.input(1, channels, 1, 1), s.input(1, channels, 1, 1)
    apart = s.op("sub", x, mean, **op)
    one = s.reduce("sum", given, (0, 2, 3), **op)
    two = s.reduce("sum", s.op("mul", given, apart, **op), (0, 2, 3), **op)
    rest = s.op("sub", s.op("sub", given, s.op("mul", apart, two, **op), **op), one, **op)
    out = s.op("mul", rest, s.op("mul", scale, w, **op), **op)
    return s.op("cast", out, dtype=meta.dtype, **op)


def flow_of(s: Sketch, value: str) -> tuple[Dataflow, set[str]]:
    """The flow, and the nodes of its norm."""
    flow = dataflow(s.build(value))
    ops = source_ops(flow, [n.id for n in flow.graph.nodes if n.args])
    return flow, next(n for n in ops if any("norm" in flow.nodes[name].label for name in n))


def sums_of(flow: Dataflow, nodes: set[str]) -> set[str]:
    """The half of a norm that adds up, with what that reads first."""
    sums = {n for n in nodes if flow.nodes[n].op in ("mean", "var", "sum")}
    return sums | ({node_of(v)[0] for n in sums for v in flow.nodes[n].value_args} & nodes)


def kernels(flow: Dataflow, nodes: set[str], calibration: Calibration = CALIBRATION) -> list[float]:
    """Microseconds of each kernel of the norm, or of a part of it."""
    works = source_op_work(flow, nodes, nodes_bytes(flow, nodes), H200)
    return [work.time(H200, calibration).mid / 1e3 for work in works]


def microseconds(flow: Dataflow, nodes: set[str]) -> float:
    return sum(kernels(flow, nodes))


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


@pytest.mark.parametrize(("channels", "side", "forward", "backward"), CUDNN)
def test_sums_and_result_add_up_to_the_norm(
    channels: int, side: int, forward: float, backward: float
) -> None:
    """They are claimed by two findings; the result is no loop over an index an element, and what
    one half passes on is written by no kernel.
    """
    for make, measured in ((normalised, forward), (gradient, backward)):
        s = Sketch()
        flow, nodes = flow_of(s, make(s, image(s, channels, side)))
        first = sums_of(flow, nodes)
        parts = microseconds(flow, first) + microseconds(flow, nodes - first)
        assert parts == pytest.approx(microseconds(flow, nodes), rel=0.15)
        assert parts == pytest.approx(measured, rel=0.35)


def test_a_norm_of_known_statistics_costs_what_aten_took() -> None:
    """As `vector` it would be up to two and a half times too short, as if every trip went to memory
    a small one a third too long.
    """
    apart = []
    for channels, side, measured in ATEN:
        s = Sketch()
        x = image(s, channels, side, "float16")
        found = normalised(s, x, EVALUATION, weights="float16")
        *small, result = kernels(*flow_of(s, found))
        assert len(small) == 2
        assert sum(small) == pytest.approx(3.3, abs=1.4)
        apart.append(result / measured)
    assert all(0.88 < ratio < 1.1 for ratio in apart)
    assert statistics.mean(apart) == pytest.approx(1, abs=0.05)


def test_launches_are_those_that_were_recorded() -> None:
    """Blocks of 512 in resnet50.eager: 2 x 128, 32 x 49, 64 x 13."""
    assert tiles(64 * 112 * 112, 64, joins=False) == Tiles(32, 16, tiles=2, shared=128)
    assert tiles(64 * 14 * 14, 1024, joins=False) == Tiles(32, 16, tiles=32, shared=49)
    assert tiles(64 * 7 * 7, 2048, joins=False) == Tiles(32, 16, tiles=64, shared=13)
    assert tiles(1, 1, joins=False) == Tiles(1, 1, tiles=1, shared=1)
    # Seven blocks are too few to join.
    assert tiles(32 * 7 * 7, 512, joins=False).shared == 7
    assert tiles(32 * 7 * 7, 512, joins=True).shared == 1


def test_float16_is_cudnn_s_beside_wide_weights_alone() -> None:
    times = {}
    for weights in ("float16", "float32"):
        s = Sketch()
        x = image(s, 64, 112, "float16")
        times[weights] = microseconds(*flow_of(s, normalised(s, x, EVALUATION, weights)))
    assert times["float32"] < 0.6 * times["float16"]


@pytest.fixture(scope="module")
def benchmark() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("batch_norms")


def batch(s: Sketch, row: Any) -> str:
    """The images of a recorded row."""
    images, channels, side = row.shape
    if row.channels_last:
        return image(s, channels, side, "bfloat16", batch=images)
    return s.input(images, channels, side, side, dtype="bfloat16")


def test_training_costs_what_aten_s_kernels_took(benchmark: Any) -> None:
    """Of each op all kernels; the fill that was not recorded takes as long as any small one."""
    apart = []
    for row in benchmark.read().rows:
        for make, backward in ((normalised, False), (gradient, True)):
            s = Sketch()
            found = kernels(*flow_of(s, make(s, batch(s, row), weights=row.weights)), MEASURED)
            names = [name for name in row.kernels if ("backward" in name) == backward]
            fills = len(found) - len(names)
            shared = row.channels_last and row.shape != (32, 512, 7)
            assert fills == shared
            apart.append(sum(found) / (sum(row.kernels[name] for name in names) + fills))
    assert statistics.median(abs(ratio - 1) for ratio in apart) < 0.05
    assert all(0.85 < ratio < 1.17 for ratio in apart)


def test_a_shape_left_out_of_the_fit_is_priced_nearly_as_well(benchmark: Any) -> None:
    rows = benchmark.fitted_on(benchmark.read())
    for ratios, middle in ((benchmark.ratios(rows), 0.05), (benchmark.held_out(rows), 0.06)):
        off = [abs(ratio - 1) for ratio in ratios]
        assert statistics.median(off) < middle
        assert max(off) < 0.23


@pytest.mark.parametrize("last", [True, False])
def test_halves_of_aten_s_norms_are_priced_as_their_kernels(last: bool, benchmark: Any) -> None:
    """A finding has statistics or result; of a fused gradient, a walk of the two."""
    (row,) = (
        row
        for row in benchmark.read().rows
        if row.shape == (4, 256, 56) and row.channels_last == last and row.weights == "bfloat16"
    )
    for make in (normalised, gradient):
        s = Sketch()
        flow, nodes = flow_of(s, make(s, batch(s, row), weights="bfloat16"))
        sums = sums_of(flow, nodes)
        parts = [sum(kernels(flow, part, MEASURED)) for part in (sums, nodes - sums)]
        whole = sum(kernels(flow, nodes, MEASURED))
        assert sum(parts) == pytest.approx(whole, rel=0.15)
        assert max(parts) < 0.85 * whole


def test_images_in_other_orders_are_no_walk_of_these_kernels() -> None:
    """Width before height: ATen adds up with its general reduction."""
    s = Sketch()
    x = s.input(4, 64, 56, 56, dtype="bfloat16", strides=(200_704, 3136, 1, 56))
    flow, nodes = flow_of(s, normalised(s, x, weights="bfloat16"))
    (work,) = source_op_work(flow, nodes, nodes_bytes(flow, nodes), H200)
    assert work.programs is None


def test_a_batch_of_rows_is_channels_last() -> None:
    """[N, C] of a `BatchNorm1d`."""
    norm = BatchNorm(
        wide=(Operand("bfloat16", (4096, 256), (256, 1)),),
        channels=(Operand("bfloat16", (256,), (1,)),),
        reduces=True, writes=True, training=True, backward=False,
    )  # fmt: skip
    assert norm.is_channels_last
    works = batch_norm_work(norm, Work(bytes_moved=1), 0, H200)
    assert works is not None
    assert [work.programs for work in works] == [None, 128, None, 128]
    # Where MIOpen takes it, nothing is known of its launches.
    assert batch_norm_work(norm, Work(bytes_moved=1), 0, gpu_by_key("mi300x")) is None
