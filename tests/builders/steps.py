"""Steps of a few kernels, as over-fusion is judged on them: five times each, around one."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from advisor.model.applied import KernelResources
from advisor.model.overfusion import KernelCode
from advisor.model.step_record import Launch, StepRecord, Tensor

NOISE = (0.99, 0.995, 1.0, 1.005, 1.01)
ROWS, COLUMNS = 8_192, 8_192
FULL = Tensor(shape=(ROWS, COLUMNS), dtype="float")


def launch(name: str, time_us: float, **more: Any) -> Launch:
    """A kernel of a step: five times around one."""
    times = tuple(round(time_us * 1_000 * noise) for noise in NOISE)
    given = {
        "role": "pointwise", "library": "unknown", "op": f"my::{name}", "operands": (FULL,) * 3,
        "grid": (ROWS, 1, 1), "threads": 256, "registers": 40, "shared_bytes": 0, "stream": 7,
    } | more  # fmt: skip
    return Launch(name=name, time_ns=times[2], times_ns=times, **given)


def step(*launches: Launch, codes: tuple[KernelCode, ...] = ()) -> StepRecord:
    """A step that runs its launches in turn, but for those that say when they start."""
    placed, end = [], 0
    for one in launches:
        start = one.start_ns or end
        placed.append(replace(one, start_ns=start))
        end = max(end, start + one.time_ns)
    busy = tuple(round(end * noise) for noise in NOISE)
    return StepRecord(launches=tuple(placed), busy_ns=busy, span_ns=busy, gpu="h200", codes=codes)


def spilled(stores: int) -> KernelCode:
    """The code of `fused` with so many bytes spilled and read back by a thread."""
    resources = KernelResources(
        gpu="h200", config="", registers=255, spill_store_bytes=stores, spill_load_bytes=stores,
        threads=256, occupancy=0.125,
    )  # fmt: skip
    return KernelCode(name="fused", num_warps=8, resources=resources)
