"""Counters of single executions (Nsight Compute) brought to the kernels of a trace.

The two are recorded in different runs of the same step, so they are joined by order of launch and
name: the k-th execution of a kernel with one grid, block and number of registers is the k-th of
that kind in each step of the trace. A kind that occurs another number of times is not joined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd

from advisor.model.base import Warning_
from advisor.model.counters import CounterFile, KernelCounters, Triple
from advisor.model.report import Metric
from advisor.model.trace import Trace
from advisor.units import format_fraction
from analyzers.activities import NONE, activities, step_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Kind: TypeAlias = tuple[str, Triple | None, Triple | None, int | None]

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
# Columns of the trace that counters fill: column, field.
_WHOLE = {
    "dram_read_bytes": "dram_read_bytes",
    "dram_write_bytes": "dram_write_bytes",
    "spill_load_bytes": "local_load_bytes",
    "spill_store_bytes": "local_store_bytes",
}
_SHARES = {
    "occupancy_theoretical": "occupancy_theoretical",
    "occupancy_measured": "occupancy_measured",
}
# Sums over a step are given where at least so much of its kernel time has counters.
ENOUGH = 0.95


@dataclass(frozen=True)
class Joined:
    """The trace with counters on its kernels; `rows[i]` is the counters' row of kernel i or -1.

    `steps` is the number of steps with kernels, 1 for a trace without steps; `time_fraction` the
    share of kernel time, within steps, that has counters.
    """

    trace: Trace
    rows: NDArray[np.int64]
    steps: int
    time_fraction: float
    warnings: tuple[Warning_, ...]


def bare_name(name: str) -> str:
    """`void at::native::f<int>(int)` → `f`: what both profilers agree on."""
    text = _ANONYMOUS.sub("", name)
    head = re.split(r"[<(]", text, maxsplit=1)[0].strip()
    return head.rpartition("::")[2].rpartition(" ")[2]


def join_counters(trace: Trace, counters: CounterFile, steps: pd.DataFrame) -> Joined:
    """Bring counters to the kernels of every step (of the whole trace, if it has no steps)."""
    measured: dict[Kind, list[int]] = {}
    for row, kernel in enumerate(counters.kernels):
        kind = (bare_name(kernel.name), kernel.grid, kernel.block, kernel.registers_per_thread)
        measured.setdefault(kind, []).append(row)
    rows: NDArray[np.int64] = np.full(len(trace.kernels), NONE, dtype=np.int64)
    step = _steps(trace, steps)
    for number in np.unique(step[step != NONE]).tolist():
        for kind, own in _by_kind(trace, np.flatnonzero(step == number)).items():
            given = measured.get(kind, [])
            # The file may hold several steps; the last is the one that is warm.
            if given and len(given) % len(own) == 0:
                rows[own] = given[-len(own) :]
    duration = trace.kernels["duration_ns"].to_numpy()
    inside = step != NONE
    total = int(duration[inside].sum())
    joined = int(duration[inside & (rows != NONE)].sum())
    fraction = joined / total if total else 0.0
    return Joined(
        _filled(trace, counters, rows),
        rows,
        max(len(np.unique(step[inside])), 1),
        fraction,
        (*counters.warnings, *_warnings(rows, inside, counters, fraction)),
    )


def _steps(trace: Trace, steps: pd.DataFrame) -> NDArray[np.int64]:
    """The step of each kernel; 0 for all of a trace without steps."""
    if not len(steps):
        return np.zeros(len(trace.kernels), dtype=np.int64)
    return step_of(activities(trace), steps)[: len(trace.kernels)]


def _by_kind(trace: Trace, rows: NDArray[np.int64]) -> dict[Kind, list[int]]:
    """Kernels by name, grid and block, each list in order of launch."""
    kernels = trace.kernels.iloc[rows]
    launch = kernels["launch"].to_numpy(dtype=np.int64, na_value=NONE)
    start = kernels["start_ns"].to_numpy()
    begun = trace.launches["start_ns"].to_numpy()
    moment = np.where(launch == NONE, start, begun[launch] if len(begun) else start)
    columns = [f"{part}_{axis}" for part in ("grid", "block") for axis in "xyz"]
    sizes = kernels[columns].to_numpy(dtype=np.int64, na_value=NONE)
    registers = kernels["registers_per_thread"].to_numpy(dtype=np.int64, na_value=NONE).tolist()
    names = kernels["name"].astype(str).tolist()
    found: dict[Kind, list[int]] = {}
    for at in np.lexsort((start, moment)).tolist():
        grid, block = _triple(sizes[at, :3]), _triple(sizes[at, 3:])
        kind = (bare_name(names[at]), grid, block, _known(registers[at]))
        found.setdefault(kind, []).append(int(rows[at]))
    return found


def _known(number: int) -> int | None:
    return None if number == NONE else number


def _triple(sizes: NDArray[np.int64]) -> Triple | None:
    x, y, z = sizes.tolist()
    return None if NONE in (x, y, z) else (x, y, z)


def _filled(trace: Trace, counters: CounterFile, rows: NDArray[np.int64]) -> Trace:
    """The trace whose kernels carry the counters; what the file lacks stays as it was."""
    if not (rows != NONE).any():
        return trace
    columns: dict[str, Any] = {}
    provenance = dict(trace.provenance)
    for column, field in (*_WHOLE.items(), *_SHARES.items()):
        given = [getattr(kernel, field) for kernel in counters.kernels]
        if all(value is None for value in given):
            continue
        values: list[Any] = [None if row == NONE else given[row] for row in rows.tolist()]
        whole = column in _WHOLE
        columns[column] = pd.array(values, dtype="Int64") if whole else _fractions(values)
        spilled = column.startswith("spill")
        provenance[f"kernels.{column}"] = counters.local_bytes if spilled else "measured"
    limits = [None if row == NONE else counters.kernels[row].occupancy_limiter for row in rows]
    if any(limit is not None for limit in limits):
        columns["occupancy_limiter"] = pd.Categorical(limits)
        provenance["kernels.occupancy_limiter"] = "measured"
    return replace(trace, kernels=trace.kernels.assign(**columns), provenance=provenance)


def _fractions(values: list[Any]) -> Any:
    return pd.array(values, dtype="Float64")


def _warnings(
    rows: NDArray[np.int64], inside: NDArray[np.bool_], counters: CounterFile, fraction: float
) -> list[Warning_]:
    found = []
    missing = int((inside & (rows == NONE)).sum())
    unused = len(counters.kernels) - len(np.unique(rows[rows != NONE]))
    if missing:
        note = (
            "kernels of the trace have no counters (another name, launch size or number of "
            f"executions); {format_fraction(fraction)} of kernel time has"
        )
        found.append(Warning_(code="counters-missing", message=note, count=missing))
    if unused and missing:
        note = "executions in the counter file that no kernel of the trace was joined to"
        found.append(Warning_(code="counters-unused", message=note, count=unused))
    return found


def counter_metrics(joined: Joined, counters: CounterFile) -> dict[str, Metric]:
    """Traffic per step and occupancy weighted by time, where enough of the step has counters."""
    trace = joined.trace
    share = format_fraction(joined.time_fraction)
    enough = joined.time_fraction >= ENOUGH
    held = [(i, counters.kernels[row]) for i, row in enumerate(joined.rows.tolist()) if row != NONE]
    texts = {
        "dram_bytes": (("dram_read_bytes", "dram_write_bytes"), "DRAM traffic, read and written"),
        "spill_load_bytes": (("local_load_bytes",), "loads from local memory"),
        "spill_store_bytes": (("local_store_bytes",), "stores to local memory"),
    }
    metrics = {}
    for name, (fields, text) in texts.items():
        values = [getattr(kernel, field) for _, kernel in held for field in fields]
        known = enough and bool(values) and None not in values
        origin = "measured" if name == "dram_bytes" else counters.local_bytes
        metrics[name] = Metric(
            value=round(sum(values) / joined.steps) if known else None,
            unit="bytes",
            provenance=origin if known else "unknown",
            definition=(
                f"{text} of one step's kernels, counted by Nsight Compute one kernel at a time "
                f"from cold caches; {share} of kernel time has counters"
            ),
        )
    return metrics | (_occupancies(trace, held, share) if enough else {})


def _occupancies(
    trace: Trace, held: Sequence[tuple[int, KernelCounters]], share: str
) -> dict[str, Metric]:
    duration = trace.kernels["duration_ns"].to_numpy()
    texts: Mapping[str, str] = {
        "occupancy_theoretical": "resident warps that registers, shared memory and block allow",
        "occupancy_measured": "resident warps while a multiprocessor is active",
    }
    metrics = {}
    for name, text in texts.items():
        rows = [(int(duration[i]), getattr(kernel, name)) for i, kernel in held]
        rows = [(time, value) for time, value in rows if value is not None]
        total = sum(time for time, _ in rows)
        if total:
            metrics[name] = Metric(
                value=sum(time * value for time, value in rows) / total,
                unit="fraction",
                provenance="measured",
                definition=(
                    f"{text}, over the most possible; mean by kernel time (Nsight Compute, "
                    f"{share} of kernel time)"
                ),
            )
    return metrics


class RowCounters:
    """Counters of the executions of one kernel, for the table of kernels."""

    def __init__(self, kernels: pd.DataFrame) -> None:
        self._held = {
            name: kernels[name].to_numpy(dtype=np.float64, na_value=np.nan)
            for name in (*_WHOLE, *_SHARES)
            if kernels[name].notna().any()
        }
        self._limits = kernels["occupancy_limiter"]

    def of(self, rows: NDArray[np.int64], steps: int) -> dict[str, Any]:
        """Fields of a `KernelRow`: bytes per step, mean occupancies, the usual limiter."""
        if not self._held:
            return {}
        found: dict[str, Any] = {
            "dram_bytes": self._per_step(("dram_read_bytes", "dram_write_bytes"), rows, steps),
            "spill_bytes": self._per_step(("spill_load_bytes", "spill_store_bytes"), rows, steps),
        }
        for name in _SHARES:
            known = self._held[name][rows] if name in self._held else np.empty(0)
            known = known[~np.isnan(known)]
            found[name] = float(known.mean()) if len(known) else None
        limits = self._limits.iloc[rows].dropna()
        found["occupancy_limiter"] = str(limits.mode().iloc[0]) if len(limits) else None
        return found

    def _per_step(self, names: Sequence[str], rows: NDArray[np.int64], steps: int) -> int | None:
        if any(name not in self._held or np.isnan(self._held[name][rows]).any() for name in names):
            return None
        return round(sum(float(self._held[name][rows].sum()) for name in names) / steps)
