"""Nsight Compute's CSV by itself as a trace: kernels one after the other, with their counters.

Counter profilers run one kernel at a time, so nothing is known of streams, of gaps, of the host.
"""

from __future__ import annotations

from pathlib import Path

from advisor.model.counters import KernelCounters
from advisor.model.trace import Trace, TraceBuilder
from collectors.ncu import read_ncu

COUNTERS_ONLY = "counters-only"
_COLUMNS = b'"Kernel Name"'


def sniff(head: bytes) -> bool:
    """Whether the column of kernel names is in the first row that names columns."""
    return _COLUMNS in head and not head.lstrip().startswith((b"{", b"["))


def read(path: Path) -> Trace:
    """The kernels of a counter file in order of launch; raises `UnreadableError`."""
    counters = read_ncu(path)
    builder = TraceBuilder(source=path.name)
    for column in ("spill_load_bytes", "spill_store_bytes"):
        builder.modelled[f"kernels.{column}"] = counters.local_bytes
    if counters.device is not None:
        builder.event("devices", device=0, name=counters.device, rank=0)
    start_ns = 0
    for kernel in counters.kernels:
        builder.event("kernels", **_row(kernel, start_ns))
        start_ns += kernel.duration_ns or 0
    text = "kernels as a counter profiler ran them, one at a time: nothing is known of gaps"
    builder.warn(COUNTERS_ONLY, text)
    for warning in counters.warnings:
        builder.warn(warning.code, warning.message, warning.count)
    return builder.build()


def _row(kernel: KernelCounters, start_ns: int) -> dict[str, int | float | str | None]:
    row: dict[str, int | float | str | None] = {
        "name": kernel.name,
        "start_ns": start_ns,
        "duration_ns": kernel.duration_ns or 0,
        "device": 0,
        "stream": 0,
        "registers_per_thread": kernel.registers_per_thread,
        "static_shared_bytes": kernel.static_shared_bytes,
        "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
        "spill_load_bytes": kernel.local_load_bytes,
        "spill_store_bytes": kernel.local_store_bytes,
        "dram_read_bytes": kernel.dram_read_bytes,
        "dram_write_bytes": kernel.dram_write_bytes,
        "occupancy_theoretical": kernel.occupancy_theoretical,
        "occupancy_measured": kernel.occupancy_measured,
        "occupancy_limiter": kernel.occupancy_limiter,
    }
    for name, triple in (("grid", kernel.grid), ("block", kernel.block)):
        for axis, size in zip("xyz", triple or (None,) * 3, strict=True):
            row[f"{name}_{axis}"] = size
    return row
