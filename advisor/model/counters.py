"""`KernelCounters`: what a counter profiler measured of single kernel executions, in order."""

from __future__ import annotations

from advisor.model.base import Provenance, Record, Warning_

Triple = tuple[int, int, int]


class KernelCounters(Record, frozen=True, kw_only=True):
    """One execution; None is what the file does not hold. Occupancies are fractions, 0 to 1.

    `duration_ns` is that of the kernel alone, measured again under the counter profiler. Local
    bytes are traffic to local memory (spills and stack) between a multiprocessor and its L1 cache.
    """

    name: str
    grid: Triple | None = None
    block: Triple | None = None
    duration_ns: int | None = None
    dram_read_bytes: int | None = None
    dram_write_bytes: int | None = None
    local_load_bytes: int | None = None
    local_store_bytes: int | None = None
    registers_per_thread: int | None = None
    static_shared_bytes: int | None = None
    dynamic_shared_bytes: int | None = None
    occupancy_theoretical: float | None = None
    occupancy_measured: float | None = None
    occupancy_limiter: str | None = None
    compute_capability: str | None = None


class CounterFile(Record, frozen=True, kw_only=True):
    """All executions of one file, as launched; `local_bytes` says where the local traffic is from.

    It is `measured` where bytes were counted, `estimated` where instructions were. `device` is the
    name of the GPU, None where the file does not hold it.
    """

    source: str
    device: str | None = None
    kernels: tuple[KernelCounters, ...]
    local_bytes: Provenance = "unknown"
    warnings: tuple[Warning_, ...] = ()
