"""Calibrations: estimates say so, curves interpolate, files round-trip and damage is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import InvalidRecordError
from advisor.hardware.calibration import (
    BandwidthPoint,
    calibration_path,
    default_calibration,
    load_calibration,
    residuals,
    save_calibration,
)
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import GPUS, gpu_by_key

H200 = gpu_by_key("h200")


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.key)
def test_every_gpu_has_an_estimate_that_says_so(gpu: Gpu) -> None:
    estimate = default_calibration(gpu)
    estimate.check()
    assert estimate.provenance == "estimated"
    copied = gpu.copy_bandwidth_bytes_per_s is not None
    figure = "copy_bandwidth_bytes_per_s" if copied else "dram_bandwidth_bytes_per_s"
    assert gpu.source(figure) in estimate.source
    assert estimate.bandwidth(1 << 40) < gpu.dram_bandwidth_bytes_per_s


def test_the_large_copy_of_an_h200_is_the_measured_one() -> None:
    assert default_calibration(H200).bandwidth(1 << 30) == 4.27e12


@given(st.lists(st.integers(1, 1 << 40), min_size=2, max_size=9, unique=True), st.data())
def test_the_curve_goes_through_its_points_and_stays_between_them(
    sizes: list[int], data: st.DataObject
) -> None:
    rates = st.integers(10**9, 10**13)
    points = tuple(
        BandwidthPoint(bytes=size, bytes_per_s=data.draw(rates)) for size in sorted(sizes)
    )
    calibration = msgspec.structs.replace(default_calibration(H200), curve=points)
    for point in points:
        assert calibration.bandwidth(point.bytes) == pytest.approx(point.bytes_per_s)
    between = calibration.bandwidth(data.draw(st.integers(0, 1 << 41)))
    speeds = [point.bytes_per_s for point in points]
    assert min(speeds) * 0.999999 <= between <= max(speeds) * 1.000001


def test_stored_calibrations_come_back_and_replace_the_estimate(tmp_path: Path) -> None:
    measured = msgspec.structs.replace(
        default_calibration(H200), provenance="measured", kernel_floor_ns=1234
    )
    assert load_calibration(H200, tmp_path) != measured
    path = calibration_path(H200, tmp_path)
    assert save_calibration(measured, path) == path
    assert load_calibration(H200, tmp_path) == measured


@pytest.mark.parametrize(
    "change",
    [
        {"curve": ()},
        {"curve": ({"bytes": 8, "bytes_per_s": 1}, {"bytes": 8, "bytes_per_s": 1})},
        {"curve": ({"bytes": 8, "bytes_per_s": 0},)},
        {"spreads": {"row_program": (1.5, 2.0)}},
        {"spreads": {"vector": (0.9, 1.1)}},
        {"cold_curve": ({"bytes": 8, "bytes_per_s": 1}, {"bytes": 7, "bytes_per_s": 1})},
        {"matrix_flops": {"float32": 0.0}},
        {"issue_share": 0.0},
        {"kernel_floor_ns": -1},
        {"schema_version": 99},
        {"gpu": "a100"},
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    path = calibration_path(H200, tmp_path)
    fields = msgspec.to_builtins(default_calibration(H200)) | change
    path.write_bytes(msgspec.json.encode(fields))
    with pytest.raises(InvalidRecordError):
        load_calibration(H200, tmp_path)


def test_residuals_are_quantiles_around_one() -> None:
    predicted = [100] * 11
    assert residuals(predicted, list(range(95, 106))) == pytest.approx((0.96, 1.04))
    assert residuals(predicted, [120] * 11) == pytest.approx((1.0, 1.2))
