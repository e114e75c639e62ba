"""The state of the GPU around the measurements, and a warning where it distorts them."""

from __future__ import annotations

from advisor.model.base import Warning_
from advisor.model.report import DeviceState
from collectors.live.nvml import GpuSnapshot

# Reasons that hold the clocks back against the workload; idling and chosen clocks do not.
_HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "display_clock_setting"})


def device_state(taken: GpuSnapshot) -> DeviceState | None:
    """A snapshot as the report holds it; None if the driver told nothing."""
    state = DeviceState(
        sm_clock_hz=taken.sm_clock_hz,
        max_sm_clock_hz=taken.max_sm_clock_hz,
        memory_clock_hz=taken.memory_clock_hz,
        power_milliwatts=taken.power_milliwatts,
        power_limit_milliwatts=taken.power_limit_milliwatts,
        temperature_celsius=taken.temperature_celsius,
        throttle_reasons=taken.throttle_reasons,
    )
    return None if state == DeviceState() else state


def throttle_warnings(*states: DeviceState | None) -> list[Warning_]:
    """One warning if any state says that the clocks were held back."""
    reasons = {
        reason: None
        for state in states
        if state is not None
        for reason in state.throttle_reasons or ()
        if reason not in _HARMLESS
    }
    if not reasons:
        return []
    names = ", ".join(reason.replace("_", " ") for reason in reasons)
    last = next(state for state in reversed(states) if state is not None)
    clock = ""
    if last.sm_clock_hz and last.max_sm_clock_hz:
        clock = f" ({last.sm_clock_hz // 10**6} of {last.max_sm_clock_hz // 10**6} MHz)"
    note = (
        f"the GPU's clocks were held back{clock}: {names}; measured times are those of this state"
    )
    return [Warning_(code="throttled", message=note, count=len(reasons))]
