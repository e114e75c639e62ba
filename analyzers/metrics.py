"""The metrics that a trace can give, each with its definition; and the table of kernels.

Definitions are part of the product: they are printed with the numbers. Whole-trace figures have the
plain name; per-step figures (`…_per_step`, `…_per_step_ns`) are the median over the steps, with
every step's value beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from advisor.model.base import Provenance
from advisor.model.metric_names import PER_STEP
from advisor.model.range_names import STEP_PREFIX
from advisor.model.report import KernelRow, Metric
from advisor.model.trace import Trace
from analyzers.activities import NONE, Activities, activities, host_steps, step_of
from analyzers.counters import RowCounters
from analyzers.doubts import doubts
from analyzers.host_time import host_metrics
from analyzers.intervals import intersect
from analyzers.kernel_roles import classify
from analyzers.starvation import Starvation, starvation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Figure: TypeAlias = Callable[[Activities], int | float | None]

_OPS_SHOWN = 5
_CALLS_SHOWN = 32
_STEPS_SHOWN = 256


def trace_metrics(trace: Trace, step_prefix: str = STEP_PREFIX) -> dict[str, Metric]:
    """All metrics of the trace; per-step ones are unknown (None) where no range has the prefix."""
    found = activities(trace)
    steps = trace.steps(step_prefix)
    step = step_of(found, steps)
    of_step = found.by_step(step, len(steps))
    metrics = {name: _whole(figure(found), unit, text) for name, unit, text, figure in _FIGURES} | {
        name.removesuffix("_ns") + "_per_step" + ("_ns" if name.endswith("_ns") else ""): _stepped(
            [figure(part) for part in of_step], unit, text
        )
        for name, unit, text, figure in _FIGURES
    }
    metrics["kernel_launches_per_step"] = _launches(trace, steps)
    metrics |= _attribution(trace)
    metrics |= _starved(starvation(trace, found), step, len(steps))
    metrics |= host_metrics(trace, steps)
    return _doubted(doubts(trace, found, steps, step), metrics)


def _kernel_count(found: Activities) -> int:
    return int(found.kernel.sum())


def _kernel_sum(found: Activities) -> int:
    return int((found.end - found.start)[found.kernel].sum())


def _kernel_busy(found: Activities) -> int:
    return found.where(found.kernel).busy()


def _span(found: Activities) -> int | None:
    """Per device, then the longest: devices run side by side."""
    only = found.where(found.kernel)
    if not len(only.start):
        return None
    return max(
        int(only.end[here].max() - only.start[here].min())
        for here in (only.device == device for device in np.unique(only.device))
    )


def _idle(found: Activities) -> float | None:
    """Over all devices: 1 − (busy inside each span) / (sum of spans)."""
    busy = span = 0
    for device in np.unique(found.device[found.kernel]):
        kernels = found.kernel & (found.device == device)
        first, last = found.start[kernels].min(), found.end[kernels].max()
        here = found.where(found.device == device)
        clipped = here._replace(start=np.maximum(here.start, first), end=np.minimum(here.end, last))
        busy += clipped.on(device).length()
        span += int(last - first)
    return 1 - busy / span if span else None


def _comm(found: Activities) -> int:
    return found.where(found.communication).busy()


def _exposed(found: Activities) -> int:
    comm, compute = (
        found.where(found.communication),
        found.where(found.kernel & ~found.communication),
    )
    total = 0
    for device in np.unique(comm.device):
        mine = comm.on(device)
        total += mine.length() - intersect(mine, compute.on(device)).length()
    return total


_FIGURES: tuple[tuple[str, str, str, Figure], ...] = (
    ("kernels", "count", "kernel executions, also those inside graphs", _kernel_count),
    (
        "kernel_time_sum_ns",
        "ns",
        "sum of kernel durations; overlapping kernels count twice, so never used as busy time",
        _kernel_sum,
    ),
    (
        "gpu_busy_ns",
        "ns",
        "union of kernel intervals per device, summed over devices",
        _kernel_busy,
    ),
    (
        "gpu_span_ns",
        "ns",
        "first kernel start to last kernel end, on the device where it is longest",
        _span,
    ),
    (
        "gpu_idle_fraction",
        "fraction",
        "1 − (union of kernels, copies and memsets within the span) / span; profiling itself "
        "stretches host-bound steps, so compare with the clean step time",
        _idle,
    ),
    ("comm_union_ns", "ns", "union of communication kernels per device", _comm),
    (
        "exposed_comm_ns",
        "ns",
        "union of communication kernels minus its intersection with the union of all other kernels",
        _exposed,
    ),
)


def _whole(value: int | float | None, unit: str, definition: str) -> Metric:
    provenance: Provenance = "unknown" if value is None else "measured"
    return Metric(value=value, unit=unit, provenance=provenance, definition=definition)


def _stepped(values: Sequence[int | float | None], unit: str, definition: str) -> Metric:
    known = [value for value in values if value is not None]
    middle = statistics.median(known) if known else None
    if middle is not None and unit == "ns":
        middle = round(middle)
    return Metric(
        value=middle,
        unit=unit,
        provenance="measured" if known else "unknown",
        definition=PER_STEP + definition,
        per_step=tuple(values),
    )


def _attribution(trace: Trace) -> dict[str, Metric]:
    """How far the advice on ops can reach: graph replays and early launches name no op."""
    kernels = trace.kernels
    known, duration = kernels["op"].notna().to_numpy(), kernels["duration_ns"].to_numpy()
    total = int(duration.sum())
    share = int(duration[known].sum()) / total if total else None
    return {
        "kernels_without_launch": _whole(
            int(kernels["launch"].isna().sum()),
            "count",
            "kernels whose launch was not recorded, such as those launched before the window",
        ),
        "attributed_time_fraction": _whole(
            share, "fraction", "share of the sum of kernel time whose kernels lead to an operator"
        ),
    }


def _launches(trace: Trace, steps: pd.DataFrame) -> Metric:
    calls = trace.launches
    launching = calls[calls["kind"].isin(("kernel", "graph"))]
    rows = host_steps(launching["start_ns"].to_numpy(), steps)
    return _stepped(
        np.bincount(rows[rows != NONE], minlength=len(steps)).tolist(),
        "count",
        "kernel launch calls (CUDA and HIP, runtime and driver) plus graph launches, each once",
    )


def _starved(gaps: Starvation, step: Ints, steps: int) -> dict[str, Metric]:
    """`starved_ns` and its two causes, and the gap time nothing can be said about."""
    text = (
        "per device, for each gap that a kernel ends: time from the gap's start to that kernel's "
        "launch (at most the gap)"
    )
    parts = {
        "starved": (gaps.starved_ns, text),
        "starved_synchronisation": (
            gaps.starved_ns * gaps.synchronised,
            f"{text}; gaps that began while the launching thread was inside a synchronising call",
        ),
        "starved_dispatch": (
            gaps.starved_ns * ~gaps.synchronised,
            f"{text}; gaps that began while the launching thread was free to launch",
        ),
        "starved_unattributed": (
            gaps.gap_ns * ~gaps.attributed,
            "gaps ended by a kernel whose launch was not recorded, in full",
        ),
    }
    owner = step[gaps.activity]
    metrics = {}
    for name, (lengths, definition) in parts.items():
        metrics[f"{name}_ns"] = _whole(int(lengths.sum()), "ns", definition)
        sums = np.zeros(steps, dtype=np.int64)
        np.add.at(sums, owner[owner != NONE], lengths[owner != NONE])
        per_step = sums.tolist()
        metrics[f"{name}_per_step_ns"] = _stepped(per_step, "ns", definition)
    return metrics


def _doubted(why: str, metrics: dict[str, Metric]) -> dict[str, Metric]:
    """Idle and starved figures are only `estimated` where the recording is doubtful."""
    if not why:
        return metrics
    return {
        name: Metric(
            value=m.value,
            unit=m.unit,
            provenance="estimated" if m.provenance == "measured" else m.provenance,
            definition=f"UNRELIABLE here ({why}): {m.definition}",
            per_step=m.per_step,
        )
        if "idle" in name or "starved" in name
        else m
        for name, m in metrics.items()
    }


def gpu_busy_by_range(trace: Trace, prefix: str) -> dict[str, list[int]]:
    """For host ranges named `<prefix><variant>`: busy ns of each occurrence, by variant, in order.

    Busy is the union of kernels, copies and memsets launched inside the occurrence (per device,
    summed).
    """
    found = activities(trace)
    ranges = trace.steps(prefix)
    parts = found.by_step(step_of(found, ranges), len(ranges))
    result: dict[str, list[int]] = {}
    for row, name in enumerate(ranges["name"].astype(str)):
        variant = name.removeprefix(prefix)
        result.setdefault(variant, []).append(parts[row].busy())
    return result


def kernel_rows(trace: Trace, steps: pd.DataFrame) -> tuple[KernelRow, ...]:
    """Kernels by name, most expensive first; per step, or of the whole trace if it has no steps."""
    kernels = trace.kernels
    step: Ints = np.zeros(len(kernels), dtype=np.int64)
    if len(steps):
        step = step_of(activities(trace), steps)[: len(kernels)]
    inside = np.flatnonzero(step != NONE)
    names = kernels["name"].cat
    columns = {
        name: kernels[name].to_numpy(dtype=np.int64, na_value=NONE)[inside]
        for name in ("duration_ns", "op", "registers_per_thread", "local_bytes_per_thread")
    }
    columns["step"] = step[inside]
    occupancy = kernels["occupancy_estimated"].to_numpy(dtype=np.float64, na_value=np.nan)[inside]
    codes = names.codes.to_numpy()[inside]
    calls = _Calls(*map(_coded, (trace.ops["name"], trace.ops["input_shapes"])))
    counters = RowCounters(kernels)
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1) if len(order) else []
    rows = [
        _kernel_row(
            str(names.categories[codes[group[0]]]),
            {name: values[group] for name, values in columns.items()},
            occupancy[group],
            len(steps),
            calls,
            first=int(group[0]),
            counted=counters.of(inside[group], max(len(steps), 1)),
        )
        for group in groups
    ]
    return tuple(sorted(rows, key=lambda row: (-row.time_ns, row.name)))


class _Coded(NamedTuple):
    """A text column: a code in each row (-1: absent), and the texts by code."""

    codes: NDArray[Any]
    texts: pd.Index[Any]


class _Calls(NamedTuple):
    """What operators are called, and the shapes of their inputs."""

    names: _Coded
    shapes: _Coded


def _coded(column: pd.Series[Any]) -> _Coded:
    return _Coded(column.cat.codes.to_numpy(), column.cat.categories)


def _kernel_row(
    name: str,
    columns: dict[str, Ints],
    occupancy: NDArray[np.float64],
    steps: int,
    calls: _Calls,
    *,
    first: int,
    counted: dict[str, Any],
) -> KernelRow:
    def largest(column: str) -> int | None:
        most = int(columns[column].max())
        return most if most >= 0 else None

    known_occupancy = occupancy[~np.isnan(occupancy)]
    rows = columns["op"][columns["op"] != NONE]
    codes, counts = np.unique(calls.names.codes[rows], return_counts=True)
    common = codes[np.argsort(-counts, kind="stable")][:_OPS_SHOWN]
    shown = tuple(str(op) for op in calls.names.texts[common])
    per_step = np.zeros(max(steps, 1), dtype=np.int64)
    np.add.at(per_step, columns["step"], columns["duration_ns"])
    known = classify(name, shown[0] if shown else None)
    return KernelRow(
        name=name,
        role=known.role,
        library=known.library,
        count=len(columns["step"]) / len(per_step),
        time_ns=round(int(per_step.sum()) / len(per_step)),
        registers_per_thread=largest("registers_per_thread"),
        local_bytes_per_thread=largest("local_bytes_per_thread"),
        occupancy_estimated=float(known_occupancy.mean()) if len(known_occupancy) else None,
        **counted,
        ops=shown,
        calls=_calls(rows, len(per_step), calls),
        first_execution=first,
        time_per_step_ns=tuple(per_step.tolist()) if 0 < steps <= _STEPS_SHOWN else (),
    )


def _calls(rows: Ints, steps: int, calls: _Calls) -> dict[str, float]:
    """Operators with their input shapes, by executions per step: what a kernel was asked to do."""
    names, shapes = calls
    width = len(shapes.texts) + 1
    keys = names.codes[rows].astype(np.int64) * width
    kinds, counts = np.unique(keys + shapes.codes[rows].astype(np.int64) + 1, return_counts=True)
    found = {}
    for place in np.argsort(-counts, kind="stable")[:_CALLS_SHOWN]:
        code, shape = divmod(int(kinds[place]), width)
        text = f" {shapes.texts[shape - 1]}" if shape else ""
        found[f"{names.texts[code]}{text}"] = int(counts[place]) / steps
    return found
