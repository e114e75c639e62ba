"""The device's state in the report: what is not told is unknown; only real throttling warns."""

from __future__ import annotations

from advisor.model.report import DeviceState
from advisor.pipeline.device_state import device_state, throttle_warnings
from collectors.live.nvml import GpuSnapshot


def test_a_snapshot_of_nothing_is_no_state() -> None:
    assert device_state(GpuSnapshot()) is None
    state = device_state(GpuSnapshot(power_milliwatts=5, throttle_reasons=()))
    assert state == DeviceState(power_milliwatts=5, throttle_reasons=())


def test_held_back_clocks_are_one_warning_with_their_reasons() -> None:
    before = DeviceState(throttle_reasons=("gpu_idle",))
    after = DeviceState(
        sm_clock_hz=1_200_000_000,
        max_sm_clock_hz=1_980_000_000,
        throttle_reasons=("software_power_cap", "hardware_thermal_slowdown"),
    )
    (warning,) = throttle_warnings(before, after)
    assert "software power cap, hardware thermal slowdown" in warning.message
    assert "1200 of 1980 MHz" in warning.message
    assert warning.count == 2


def test_idling_chosen_clocks_and_silence_are_no_throttling() -> None:
    harmless = DeviceState(throttle_reasons=("gpu_idle", "applications_clocks_setting"))
    assert throttle_warnings(harmless, None, DeviceState()) == []
