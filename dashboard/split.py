"""Where the time of a step goes, from what a report holds; a part it cannot give is None.

Two clocks are kept apart. The clean step was timed without a profiler; of it only the kernels'
share is known, since how its gaps arise was seen under the profiler alone. The profiled step is
split whole, and is longer where the host is the bottleneck.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from advisor.model.report import Report
from dashboard.roles import GROUPS, group_of

# name, colour, definition; in the order in which they are drawn.
PARTS: tuple[tuple[str, str, str], ...] = (
    (
        "compute",
        "#0072B2",
        "GPU busy with matrix, convolution and attention kernels",
    ),
    (
        "memory-bound",
        "#E69F00",
        "GPU busy with kernels that are bound by memory by their role: pointwise, norm, softmax, "
        "reduction, copy, layout, lookup, optimizer",
    ),
    ("other kernels", "#CC79A7", "GPU busy with kernels whose role is not known"),
    (
        "communication",
        "#D55E00",
        "exposed: union of communication kernels minus its intersection with all other kernels",
    ),
    ("copies", "#56B4E9", "copies and memsets while no kernel runs"),
    (
        "launch",
        "#009E73",
        "gaps that last until the next kernel is launched, the launching thread free: dispatch",
    ),
    (
        "synchronisation",
        "#F0E442",
        "gaps that last until the next kernel is launched, after a call that blocked the host",
    ),
    ("idle", "#8A8F98", "the rest: what was launched has not begun, or nothing was recorded"),
)
NOT_BUSY = (
    "launch, synchronisation or idle",
    "#C3C7CD",
    "GPU not busy; the gaps of a step without a profiler are not recorded, so not told apart",
)


@dataclass(frozen=True)
class Split:
    """One step: its length and its parts by name, ns; `why` says why there are none."""

    name: str
    total_ns: int | None
    parts_ns: dict[str, int]
    why: str = ""

    @property
    def known(self) -> bool:
        """There is something to draw."""
        return bool(self.parts_ns)


def splits(report: Report) -> tuple[Split, Split]:
    """The clean step, then the profiled one."""
    busy = _busy(report)
    return _clean(report, busy), _profiled(report, busy)


def _busy(report: Report) -> dict[str, int] | None:
    """Kernel time of the step by bound, scaled to the union of the kernels; None if not known."""
    total = _value(report, "gpu_busy_per_step_ns")
    exposed = _value(report, "exposed_comm_per_step_ns")
    span = _value(report, "gpu_span_per_step_ns")
    if total is None or exposed is None or not report.kernels:
        return None
    if span is not None and total > span:
        return None  # several devices: their busy time is summed, their span is not
    sums: Counter[str] = Counter()
    for row in report.kernels:
        sums[GROUPS[group_of(row.role)].bound] += row.time_ns
    compute = total - exposed
    kernels = sums["compute"] + sums["memory"] + sums["other"]
    if not kernels:
        return {"communication": exposed}
    return {
        "compute": compute * sums["compute"] // kernels,
        "memory-bound": compute * sums["memory"] // kernels,
        "other kernels": compute * sums["other"] // kernels,
        "communication": exposed,
    }


def _clean(report: Report, busy: dict[str, int] | None) -> Split:
    step = _value(report, "step_ns")
    if step is None:
        return Split("clean step", None, {}, "The step was not timed without a profiler.")
    if busy is None:
        return Split("clean step", step, {}, "How long the GPU is busy in the step is not known.")
    rest = step - sum(busy.values())
    if rest < 0:
        return Split(
            "clean step", step, {}, "Kernels were slower under the profiler than the whole step."
        )
    return Split("clean step", step, busy | {NOT_BUSY[0]: rest})


def _profiled(report: Report, busy: dict[str, int] | None) -> Split:
    span = _value(report, "gpu_span_per_step_ns")
    idle_fraction = report.metrics.get("gpu_idle_fraction_per_step")
    if busy is None or span is None or idle_fraction is None or idle_fraction.value is None:
        return Split("profiled step", span, {}, "No trace is known that has steps with kernels.")
    idle = min(round(span * idle_fraction.value), span - sum(busy.values()))
    copies = span - sum(busy.values()) - idle
    dispatch = min(_value(report, "starved_dispatch_per_step_ns") or 0, idle)
    blocked = min(_value(report, "starved_synchronisation_per_step_ns") or 0, idle - dispatch)
    gaps = {
        "copies": copies,
        "launch": dispatch,
        "synchronisation": blocked,
        "idle": idle - dispatch - blocked,
    }
    return Split("profiled step", span, busy | gaps)


def _value(report: Report, name: str) -> int | None:
    metric = report.metrics.get(name)
    return None if metric is None or metric.value is None else round(metric.value)
