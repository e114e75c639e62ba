"""`calibrate`: the micro-benchmark of this machine's GPU becomes a stored calibration."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from advisor.errors import UsageError
from advisor.hardware.calibration import Calibration, DeviceState
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import GPUS, find_gpu
from advisor.pipeline.facts import now, versions
from advisor.verify import microbench
from advisor.verify.microbench_fit import calibration_of
from advisor.verify.recording import gpu_recorder
from collectors.live.nvml import GpuSnapshot, snapshot, visible_device

# What holds the clocks back without the card being at fault or too hot.
_HARMLESS = frozenset({"gpu_idle", "applications_clocks_setting", "software_power_cap"})


def present_gpu() -> Gpu:
    """The GPU of this machine; raises `UsageError` where there is none that the table knows."""
    if not torch.cuda.is_available():
        raise UsageError(
            "no GPU to calibrate",
            why="PyTorch finds none here",
            remedy="run it on the machine whose GPU is meant; elsewhere prices come from the table",
        )
    name = torch.cuda.get_device_name()
    found = find_gpu(name)
    if found is None:
        keys = ", ".join(gpu.key for gpu in GPUS)
        raise UsageError(
            f"{name!r} is not in the table of GPUs",
            why="its multiprocessors and caches are not known",
            remedy=f"known: {keys}",
        )
    return found


def calibrate(gpu: Gpu, *, quick: bool = False, emit: Callable[[str, str], None]) -> Calibration:
    """Measure this machine's GPU, which is `gpu`; about a minute, a third of it if `quick`."""
    device = torch.device("cuda", torch.cuda.current_device())
    emit("calibrate", f"{torch.cuda.get_device_name()}: copies, loops, products")
    readings = microbench.read(gpu, device, gpu_recorder, quick=quick)
    microbench.occupy(device)  # clocks are those of a card at work
    state = device_state(snapshot(visible_device(device.index, os.environ)))
    torch.cuda.synchronize()
    for reason in state.throttle_reasons or ():
        if reason not in _HARMLESS:
            emit("warning", f"the clocks were held back: {reason}; the figures are too low")
    return calibration_of(gpu, torch.cuda.get_device_name(), readings, created=now(), state=state)


def device_state(found: GpuSnapshot) -> DeviceState:
    """Clocks, power and versions at one moment."""
    known = versions()
    if found.driver is not None:
        known["driver"] = found.driver
    return DeviceState(
        sm_clock_hz=found.sm_clock_hz,
        max_sm_clock_hz=found.max_sm_clock_hz,
        memory_clock_hz=found.memory_clock_hz,
        power_milliwatts=found.power_milliwatts,
        temperature_celsius=found.temperature_celsius,
        throttle_reasons=found.throttle_reasons,
        versions=known,
    )
