"""The micro-benchmark on the GPU itself: plausible figures, and kernels predicted with them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the probes of special functions are Triton kernels")

from advisor.pipeline.calibrate import calibrate, present_gpu
from analyzers.cost_model import Work

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_a_quick_calibration_is_plausible_and_predicts_a_copy() -> None:
    gpu = present_gpu()
    found = calibrate(gpu, quick=True, emit=lambda stage, message: None)
    sheet = gpu.dram_bandwidth_bytes_per_s
    assert 0.6 * sheet < found.bandwidth(1 << 34, warm=False) < sheet
    assert found.bandwidth(1 << 20) > found.bandwidth(1 << 34)
    assert 300 < found.kernel_floor_ns < 5_000
    assert 1_000 < found.launch_ns < 100_000
    assert found.graph_launch_ns is not None
    assert 0.5 < found.special_share < 1.2
    assert 0.3 < found.issue_share < 3
    for arithmetic, flops in found.matrix_flops.items():
        peak = gpu.peak_flops(arithmetic)
        assert peak is not None
        assert 0.3 * peak < flops < 1.1 * peak

    x = torch.randn(1 << 27, device="cuda")
    y = torch.empty_like(x)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.neg(x, out=y)
    start.record()
    for _ in range(20):
        torch.neg(x, out=y)
    end.record()
    torch.cuda.synchronize()
    measured = start.elapsed_time(end) / 20 * 1e6
    predicted = Work(bytes_moved=8 * x.numel(), pattern="vector").time(gpu, found)
    assert measured == pytest.approx(predicted.mid, rel=0.1)
