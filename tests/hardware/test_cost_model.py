"""The kernel model at its edges: monotone, quantised, overlapping in part, spread by pattern."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.hardware.calibration import BandwidthPoint, default_calibration
from advisor.hardware.gpus import gpu_by_key
from analyzers.cost_model import OVERLAP, Work, kernel_time

SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", Path(__file__).parents[2].parent / "shared"))
H200 = gpu_by_key("h200")
CALIBRATION = default_calibration(H200)


def test_no_measured_fusion_beats_its_prediction() -> None:
    path = SHARED / "traces" / "h200" / "pattern_baselines.json"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    baselines = json.loads(path.read_text())
    rate = baselines["copy_gbps"] * 1e9
    near = 0
    for row in baselines["rows"]:
        if "inductor_frac_copy_bw" not in row:
            continue
        moved = round(row["inductor_frac_copy_bw"] * rate * row["inductor_ms"] / 1e3)
        best = 1e6 * min(row["inductor_ms"], row.get("liger_ms") or math.inf)
        price = kernel_time(H200, CALIBRATION, bytes_moved=moved)
        assert best > 0.97 * price.mid, row
        near += best < 1.12 * price.mid
    assert near >= 14, "where a compiler does well it comes close"


@given(st.integers(0, 1 << 34), st.integers(0, 1 << 34), st.integers(0, 10**13))
def test_more_work_is_never_faster(first: int, second: int, flops: int) -> None:
    low, high = sorted((first, second))
    fewer = kernel_time(H200, CALIBRATION, bytes_moved=low)
    more = kernel_time(H200, CALIBRATION, bytes_moved=high, flops=flops)
    more.check()
    assert fewer.mid <= more.mid
    assert fewer.low <= fewer.mid <= fewer.high


def test_waves_quantise_arithmetic_and_starve_bandwidth() -> None:
    def time(programs: int, **work: float) -> int:
        work = {"bytes_moved": 0, **work}
        price = kernel_time(
            H200, CALIBRATION, programs=programs, resident_programs=132, **work  # type: ignore[arg-type]
        )  # fmt: skip
        return price.mid - CALIBRATION.kernel_floor_ns

    full, tail = time(132, flops=6.69e11), time(133, flops=6.69e11 * 133 / 132)
    assert tail == pytest.approx(2 * full, rel=0.01), "one program more costs a whole wave"
    alone, spread = time(1, bytes_moved=1 << 28), time(132, bytes_moved=1 << 28)
    assert alone == pytest.approx(66 * spread, rel=0.01)
    assert time(1320, bytes_moved=1 << 28) == pytest.approx(spread, rel=0.01)


def test_units_of_like_load_overlap_in_part() -> None:
    elements = 1 << 26
    floor = CALIBRATION.kernel_floor_ns
    memory = kernel_time(H200, CALIBRATION, bytes_moved=4 * elements).mid - floor
    special = kernel_time(H200, CALIBRATION, bytes_moved=0, special=8 * elements).mid - floor
    assert special == pytest.approx(8 * elements / (16 * 132 * 1.98e9) * 1e9, rel=1e-3)
    both = kernel_time(H200, CALIBRATION, bytes_moved=4 * elements, special=8 * elements).mid
    assert max(memory, special) < both - floor < memory + special
    assert both - floor == pytest.approx(math.hypot(memory, special), rel=1e-3)
    assert OVERLAP == 2


def test_trips_hide_under_bytes_and_a_tail_does_not() -> None:
    def time(**work: float) -> int:
        return Work(bytes_moved=1 << 28, **work).time(H200, CALIBRATION).mid  # type: ignore[arg-type]

    trip = CALIBRATION.trip_ns
    assert time(tail_trips=16) - time() == pytest.approx(16 * trip, abs=1)
    assert 0 < time(trips=16) - time() < 8 * trip
    assert time(trips=16, programs=264) - time(programs=264) > time(trips=16) - time()


def test_what_is_read_again_costs_the_rate_of_l2() -> None:
    once = kernel_time(H200, CALIBRATION, bytes_moved=1 << 30).mid
    again = kernel_time(H200, CALIBRATION, bytes_moved=1 << 30, cached_bytes=2 << 30).mid
    assert 1.5 * once < again < 2 * once


def test_a_working_set_in_l2_is_faster_and_in_place_halves_it() -> None:
    def time(moved: int, **work: int | bool) -> int:
        return kernel_time(H200, CALIBRATION, bytes_moved=moved, **work).mid  # type: ignore[arg-type]

    warm, cold = time(32 << 20), time(32 << 20, warm=False)
    assert warm < cold
    assert time(64 << 20, footprint_bytes=32 << 20) < time(64 << 20)
    curve = (BandwidthPoint(bytes=1 << 20, bytes_per_s=10**12),)
    slow = msgspec.structs.replace(CALIBRATION, cold_curve=curve)
    assert kernel_time(H200, slow, bytes_moved=32 << 20, warm=False).mid > 3 * cold


def test_the_interval_is_that_of_the_pattern() -> None:
    vector = kernel_time(H200, CALIBRATION, bytes_moved=1 << 28, pattern="vector")
    program = kernel_time(H200, CALIBRATION, bytes_moved=1 << 28)
    assert vector.mid == program.mid
    assert program.low < vector.low < vector.high < program.high
    assert vector.coverage == CALIBRATION.coverage
