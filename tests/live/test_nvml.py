"""NVML that is missing, partly missing, or there: nothing raises, nothing is invented."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pynvml
import pytest

from collectors.live.nvml import (
    GpmCounters,
    GpmSampler,
    GpuSnapshot,
    snapshot,
    throttle_names,
    visible_device,
)

ROOT = Path(__file__).parents[2]
CHILD = """
import sys, time
import msgspec
from collectors.live.nvml import GpmSampler, snapshot
device = sys.argv[1] if not sys.argv[1].isdecimal() else int(sys.argv[1])
with GpmSampler(device) as gpm:
    time.sleep(float(sys.argv[2]))
sys.stdout.buffer.write(msgspec.json.encode([snapshot(device), gpm.counters]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build a partial libnvidia-ml with")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", source, "-o", folder / "libnvidia-ml.so.1"],
        check=True,
    )
    return folder


def observe(
    library: Path, device: str = "0", seconds: float = 0.12, kind: str = "partial"
) -> tuple[GpuSnapshot, GpmCounters]:
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML": kind,
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, device, str(seconds)],
        capture_output=True,
        check=True,
        env=environment,
    )
    return msgspec.json.decode(done.stdout, type=tuple[GpuSnapshot, GpmCounters])


def messages(record: GpuSnapshot | GpmCounters) -> str:
    return "\n".join(warning.message for warning in record.warnings)


def test_parts_that_are_missing_are_none_and_named(library: Path) -> None:
    seen, _ = observe(library)
    assert (seen.name, seen.driver, seen.sm_clock_hz) == ("NVIDIA H200", "580.1", 1_500_000_000)
    assert (seen.memory_clock_hz, seen.temperature_celsius) == (3_201_000_000, 41)
    assert (seen.memory_total_bytes, seen.memory_used_bytes) == (150_000, 50_000)
    assert seen.throttle_reasons == ("software_power_cap", "unknown_0x1000")
    assert seen.max_sm_clock_hz is None, "Not Supported"
    assert seen.power_milliwatts is None, "Unknown Error"
    assert seen.power_limit_milliwatts is None, "the library has no such function"
    for name in ("max_sm_clock_hz", "power_milliwatts", "power_limit_milliwatts", "mig_enabled"):
        assert name in messages(seen)
    assert len(seen.warnings) == 4


def test_gpm_averages_and_a_counter_that_is_refused(library: Path) -> None:
    _, gpm = observe(library, kind="hopper")
    assert gpm.window_ns >= 120_000_000
    assert (gpm.sm_active_fraction, gpm.sm_occupancy_fraction) == (0.2, 0.3)
    assert gpm.dram_bandwidth_fraction == 1.0
    assert gpm.tensor_active_fraction is None
    assert [warning.code for warning in gpm.warnings] == ["nvml"]
    assert "tensor_active_fraction: Not Supported" in messages(gpm)


def test_a_window_too_short_is_said(library: Path) -> None:
    _, gpm = observe(library, seconds=0, kind="hopper")
    assert "shorter than 100 ms" in messages(gpm)


def test_a_gpu_without_gpm(library: Path) -> None:
    _, gpm = observe(library)
    assert gpm.dram_bandwidth_fraction is None
    assert "not supported by this device" in messages(gpm)


def test_devices_are_found_by_uuid_and_a_wrong_one_is_reported(library: Path) -> None:
    assert observe(library, "GPU-1")[0].name == "NVIDIA H200"
    seen, gpm = observe(library, "7")
    assert seen.name is None
    assert gpm.dram_bandwidth_fraction is None
    assert "device 7" in messages(seen)


def test_no_driver_at_all() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        pass
    else:
        pynvml.nvmlShutdown()
        pytest.skip("this machine has a driver")
    seen = snapshot()
    assert seen == GpuSnapshot(warnings=seen.warnings)
    assert "nvmlInit" in messages(seen)
    with GpmSampler() as gpm:
        pass
    assert gpm.counters.dram_bandwidth_fraction is None
    assert len(gpm.counters.warnings) == 1


@pytest.mark.parametrize(
    ("index", "listed", "device"),
    [(0, None, 0), (1, "3,2", 2), (0, "GPU-abc", "GPU-abc"), (2, "1,0", 2), (0, "", 0)],
)
def test_visible_devices(index: int, listed: str | None, device: int | str) -> None:
    environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert visible_device(index, environment) == device


def test_throttle_names() -> None:
    assert throttle_names(0) == ()
    assert throttle_names(0x60) == ("software_thermal_slowdown", "hardware_thermal_slowdown")
