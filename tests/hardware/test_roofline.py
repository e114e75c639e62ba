"""The roofline's arithmetic, and points whose place is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import GPUS, gpu_by_key
from advisor.hardware.roofline import attainable_flops, place, ridge_point

H200 = gpu_by_key("h200")


def test_the_ridge_of_an_h200() -> None:
    assert ridge_point(H200, "bfloat16") == pytest.approx(989.4e12 / 4.27e12, rel=1e-6)
    # No bfloat16 unit on a V100: it computes on the float32 pipe.
    v100 = gpu_by_key("v100")
    assert ridge_point(v100, "bfloat16") == ridge_point(v100, "float32")


@given(st.sampled_from(GPUS), st.floats(1e-3, 1e5), st.floats(1e-3, 1e5))
def test_the_roof_never_falls_and_meets_itself_at_the_ridge(
    gpu: Gpu, first: float, second: float
) -> None:
    low, high = sorted((first, second))
    assert attainable_flops(gpu, low) <= attainable_flops(gpu, high)
    ridge = ridge_point(gpu)
    assert attainable_flops(gpu, ridge) == pytest.approx(gpu.float32_flops)


def test_a_copy_at_full_speed_reaches_its_roof_without_arithmetic() -> None:
    copied = place(H200, bytes_moved=4_270_000_000, flops=0, time_ns=1_000_000)
    assert (copied.bound, copied.achieved_flops) == ("memory", 0)
    assert copied.fraction == pytest.approx(1)


def test_a_matrix_product_lies_under_the_flat_roof() -> None:
    n = 8192
    point = place(
        H200, bytes_moved=3 * n * n * 2, flops=2 * n**3, arithmetic="bfloat16", time_ns=1_500_000
    )
    assert point.bound == "compute"
    assert point.fraction == pytest.approx(2 * n**3 / 1.5e-3 / 989.4e12)
    assert place(H200, bytes_moved=10, flops=1).fraction is None
