"""Clocks, power, throttling and GPM counters through NVML; every single call may be missing.

Containers, WSL2, MIG slices and old drivers lack different parts, some calls say "Not Supported",
others "Unknown Error": what cannot be had is None, with a warning that names the call.
Counters: NVML API reference, "GPM Functions"; utilisations are averages over the sampled window.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import pynvml  # type: ignore[import-untyped]

from advisor.model.base import Record, Warning_

Value = TypeVar("Value")

# NVML refreshes GPM samples no faster than this.
MIN_GPM_WINDOW_NS = 100_000_000
_HZ_PER_MHZ = 1_000_000
_GPM_METRICS = {
    "dram_bandwidth_fraction": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    "sm_active_fraction": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "sm_occupancy_fraction": pynvml.NVML_GPM_METRIC_SM_OCCUPANCY,
    "tensor_active_fraction": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
}
_THROTTLE_REASONS = (
    (0x001, "gpu_idle"),
    (0x002, "applications_clocks_setting"),
    (0x004, "software_power_cap"),
    (0x008, "hardware_slowdown"),
    (0x010, "sync_boost"),
    (0x020, "software_thermal_slowdown"),
    (0x040, "hardware_thermal_slowdown"),
    (0x080, "hardware_power_brake"),
    (0x100, "display_clock_setting"),
)


class GpuSnapshot(Record, frozen=True, kw_only=True):
    """The state of one GPU at one moment; None is what this driver or container does not tell.

    `throttle_reasons` is empty if nothing holds the clocks back.
    """

    name: str | None = None
    driver: str | None = None
    sm_clock_hz: int | None = None
    max_sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    power_milliwatts: int | None = None
    power_limit_milliwatts: int | None = None
    temperature_celsius: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    mig_enabled: bool | None = None
    warnings: tuple[Warning_, ...] = ()


class GpmCounters(Record, frozen=True, kw_only=True):
    """Averages over a window, fractions of the peak: all work of the GPU, not of one process."""

    window_ns: int
    dram_bandwidth_fraction: float | None = None
    sm_active_fraction: float | None = None
    sm_occupancy_fraction: float | None = None
    tensor_active_fraction: float | None = None
    warnings: tuple[Warning_, ...] = ()


class _Session:
    """NVML opened for one device; `handle` is None where that fails. Warnings gather here."""

    def __init__(self, device: int | str) -> None:
        self.warnings: list[Warning_] = []
        self.handle: Any = None
        self._open = self.ask("nvmlInit", _initialise) is not None
        if self._open:
            find = pynvml.nvmlDeviceGetHandleByIndex
            if isinstance(device, str):
                is_uuid = device.startswith(("GPU-", "MIG-"))
                find = (
                    pynvml.nvmlDeviceGetHandleByUUID
                    if is_uuid
                    else pynvml.nvmlDeviceGetHandleByPciBusId
                )
            self.handle = self.ask(f"device {device}", lambda: find(device))

    def ask(self, what: str, call: Callable[[], Value]) -> Value | None:
        """The answer of one NVML call, or None and a warning."""
        try:
            return call()
        except pynvml.NVMLError as error:
            self.warn(f"{what}: {error}")
            return None

    def warn(self, message: str) -> None:
        self.warnings.append(Warning_(code="nvml", message=message))

    def close(self) -> None:
        if self._open:
            self._open = False
            self.ask("nvmlShutdown", pynvml.nvmlShutdown)


def _initialise() -> bool:
    pynvml.nvmlInit()
    return True


def visible_device(cuda_index: int, environment: Mapping[str, str]) -> int | str:
    """NVML's name of the device that CUDA numbers `cuda_index`: NVML ignores the visible list."""
    listed = [part.strip() for part in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if cuda_index >= len(listed) or not listed[cuda_index]:
        return cuda_index
    chosen = listed[cuda_index]
    return int(chosen) if chosen.isdecimal() else chosen


def snapshot(device: int | str = 0) -> GpuSnapshot:
    """The state of a device, named by NVML index, UUID (`GPU-…`) or PCI bus id. Never raises."""
    session = _Session(device)
    fields: dict[str, Any] = {}
    if session.handle is not None:
        for name, call in _questions(session.handle).items():
            fields[name] = session.ask(name, call)
        memory = session.ask("memory", lambda: pynvml.nvmlDeviceGetMemoryInfo(session.handle))
        if memory is not None:
            fields |= {"memory_total_bytes": memory.total, "memory_used_bytes": memory.used}
    session.close()
    return GpuSnapshot(**fields, warnings=tuple(session.warnings))


def _questions(handle: Any) -> dict[str, Callable[[], Any]]:
    """Field of the snapshot to the call that fills it."""
    sm, memory = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
    return {
        "name": lambda: pynvml.nvmlDeviceGetName(handle),
        "driver": pynvml.nvmlSystemGetDriverVersion,
        "sm_clock_hz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, sm) * _HZ_PER_MHZ,
        "max_sm_clock_hz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, sm) * _HZ_PER_MHZ,
        "memory_clock_hz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, memory) * _HZ_PER_MHZ,
        "power_milliwatts": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "power_limit_milliwatts": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        "temperature_celsius": lambda: pynvml.nvmlDeviceGetTemperature(
            handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        "throttle_reasons": lambda: throttle_names(
            pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        ),
        "mig_enabled": lambda: bool(pynvml.nvmlDeviceGetMigMode(handle)[0]),
    }


def throttle_names(mask: int) -> tuple[str, ...]:
    """The reasons in NVML's bit mask, bits without a name as numbers."""
    names = [name for bit, name in _THROTTLE_REASONS if mask & bit]
    rest = mask & ~sum(bit for bit, _ in _THROTTLE_REASONS)
    return (*names, f"unknown_{rest:#x}") if rest else tuple(names)


class GpmSampler:
    """Counters of the GPU between entering and leaving: `with GpmSampler(0) as gpm: run()`.

    Afterwards `gpm.counters` holds the averages. Needs Hopper or newer and no privileges; elsewhere
    all counters are None and a warning says why. Loop the workload for at least 100 ms and wait for
    the GPU before leaving.
    """

    def __init__(self, device: int | str = 0) -> None:
        self._device = device
        self._samples: list[Any] = []
        self._started_ns = 0
        self._session: _Session | None = None
        self.counters = GpmCounters(window_ns=0)

    def __enter__(self) -> GpmSampler:
        self._session = _Session(self._device)
        if self._supported(self._session):
            self._take(self._session)
        self._started_ns = time.monotonic_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._session
        assert session is not None
        window_ns = time.monotonic_ns() - self._started_ns
        values: dict[str, float | None] = {}
        if self._samples:
            self._take(session)
            if window_ns < MIN_GPM_WINDOW_NS:
                session.warn(f"GPM window of {window_ns / 1e6:.1f} ms is shorter than 100 ms")
            values = self._averages(session)
        while self._samples:
            self._free(session, self._samples.pop())
        session.close()
        self.counters = GpmCounters(window_ns=window_ns, **values, warnings=tuple(session.warnings))

    def _supported(self, session: _Session) -> bool:
        if session.handle is None:
            return False
        query = session.ask("GPM", lambda: pynvml.nvmlGpmQueryDeviceSupport(session.handle))
        if query is not None and not query.isSupportedDevice:
            session.warn("GPM: not supported by this device")
        return query is not None and bool(query.isSupportedDevice)

    def _take(self, session: _Session) -> None:
        sample = session.ask("nvmlGpmSampleAlloc", pynvml.nvmlGpmSampleAlloc)
        if sample is None:
            return
        taken = session.ask(
            "nvmlGpmSampleGet", lambda: pynvml.nvmlGpmSampleGet(session.handle, sample)
        )
        if taken is None:
            self._free(session, sample)
        else:
            self._samples.append(sample)

    def _free(self, session: _Session, sample: Any) -> None:
        session.ask("nvmlGpmSampleFree", lambda: pynvml.nvmlGpmSampleFree(sample))

    def _averages(self, session: _Session) -> dict[str, float | None]:
        if len(self._samples) != 2:
            return {}
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM_METRICS)
        request.sample1, request.sample2 = self._samples
        for slot, metric in enumerate(_GPM_METRICS.values()):
            request.metrics[slot].metricId = metric
        if session.ask("GPM metrics", lambda: pynvml.nvmlGpmMetricsGet(request)) is None:
            return {}
        values: dict[str, float | None] = {}
        for slot, name in enumerate(_GPM_METRICS):
            answer = request.metrics[slot]
            usable = answer.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(answer.value)
            values[name] = answer.value / 100 if usable else None
            if not usable:
                session.warn(f"GPM {name}: {pynvml.NVMLError(answer.nvmlReturn)}")
        return values
