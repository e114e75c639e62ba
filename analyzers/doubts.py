"""Why a recording may be no recording of what ran: events that are missing, twice, or mistimed.

Idle time is what is left between events, so each of these makes it up. Of 40 recorded traces, of
eight sources, none has a launch without its kernel inside a step, a kernel before its launch, a
kernel twice, or a kernel below 0.6 µs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from advisor.model.range_names import STEP_PREFIX
from advisor.model.trace import Trace
from advisor.units import format_ns
from analyzers.activities import NONE, Activities, host_steps
from analyzers.starvation import starvation

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

# Above this share of events a fault is not one of the window's edges.
_SHARE = 0.05
# Clocks of host and device that are joined well disagree by less.
_EARLY_NS = 10_000
# No GPU ends a kernel this soon, and no driver takes this long for the quickest of its launches.
_LEAST_KERNEL_NS, _MOST_LAUNCH_NS = 100, 200_000
_FEWEST = 20
# Recorded: behind a gap of this length a kernel starts 6 to 31 µs after its launch.
_LONG_GAP_NS, _LATE_NS = 50_000, 500_000
_FEWEST_GAPS = 10
_SAME = ["device", "stream", "start_ns", "duration_ns", "name", "correlation"]


def doubts(trace: Trace, found: Activities, steps: pd.DataFrame, step: Ints) -> str:
    """Why idle time may be a fault of the recording; "" where nothing speaks for it.

    `step` is the row of `steps` that each activity belongs to.
    """
    return (
        _without_graphs(trace, found)
        or _empty_steps(found, steps, step)
        or _cut(trace)
        or _merged(steps)
        or _without_kernels(trace, found, steps)
        or _other_unit(trace)
        or _before_launch(found)
        or _long_after_launch(trace, found)
        or _twice(trace)
    )


def _launched(trace: Trace, found: Activities) -> NDArray[np.bool_]:
    """Which launches started an activity on record."""
    launched = np.zeros(len(trace.launches) + 1, dtype=bool)
    launched[found.launch] = True  # NONE marks the last place
    return launched[:-1]


def _without_graphs(trace: Trace, found: Activities) -> str:
    graphs = np.flatnonzero((trace.launches["kind"] == "graph").to_numpy())
    missing = len(graphs) - int(_launched(trace, found)[graphs].sum())
    return f"{missing} of {len(graphs)} graph launches have no recorded kernels" if missing else ""


def _empty_steps(found: Activities, steps: pd.DataFrame, step: Ints) -> str:
    empty = len(steps) - len(np.unique(step[(step != NONE) & found.kernel]))
    return f"{empty} of {len(steps)} steps have no kernels" if empty else ""


def _cut(trace: Trace) -> str:
    """Which events of a step stood behind the cut, nobody knows: files are in no order of time."""
    return "" if trace.info.complete else "the file ends early, and events of any moment with it"


def _merged(steps: pd.DataFrame) -> str:
    """The profiler numbers the steps of a recording, each once."""
    names = steps["name"].astype(str)
    numbered = names[names.str.startswith(STEP_PREFIX)]
    again = numbered[numbered.duplicated()]
    if not len(again):
        return ""
    return f"{again.iloc[0]} is marked more than once: the file holds several recordings"


def _without_kernels(trace: Trace, found: Activities, steps: pd.DataFrame) -> str:
    """Launches inside the steps, if there are any, whose kernels the profiler lost."""
    calls = (trace.launches["kind"] == "kernel").to_numpy()
    if len(steps):
        calls = calls & (host_steps(trace.launches["start_ns"].to_numpy(), steps) != NONE)
    missing = int((calls & ~_launched(trace, found)).sum())
    if missing <= _SHARE * int(calls.sum()):
        return ""
    return f"{missing} of {int(calls.sum())} kernel launches have no recorded kernel"


def _before_launch(found: Activities) -> str:
    known = found.kernel & (found.launch != NONE)
    early = int((found.start[known] + _EARLY_NS < found.launch_start[known]).sum())
    if early <= _SHARE * int(known.sum()):
        return ""
    return (
        f"{early} of {int(known.sum())} kernels start before their launch: the clocks of host and "
        "device disagree"
    )


def _long_after_launch(trace: Trace, found: Activities) -> str:
    """What a device with nothing to do takes up late, although it had been launched by then."""
    gaps = starvation(trace, found)
    ends = gaps.activity[gaps.attributed & (gaps.gap_ns > _LONG_GAP_NS)]
    if len(ends) < _FEWEST_GAPS:
        return ""
    least = float(np.quantile(found.start[ends] - found.launch_start[ends], 0.05))
    if least < _LATE_NS:
        return ""
    return (
        f"the device stood idle before {len(ends)} kernels that had been launched "
        f"{format_ns(round(least))} and more ahead: the clocks of host and device disagree"
    )


def _twice(trace: Trace) -> str:
    start, length = (trace.kernels[name].to_numpy() for name in ("start_ns", "duration_ns"))
    # Equal ones lie side by side: of few rows alone everything is compared.
    like = np.zeros(len(start) + 1, dtype=bool)
    like[1:-1] = (np.diff(start) == 0) & (np.diff(length) == 0)
    rows = trace.kernels[like[1:] | like[:-1]]
    again = int(rows.duplicated(subset=_SAME).sum())
    if again <= _SHARE * len(start):
        return ""
    return f"{again} of {len(trace.kernels)} kernels are recorded twice"


def _other_unit(trace: Trace) -> str:
    kernels = trace.kernels["duration_ns"].to_numpy()
    if len(kernels) >= _FEWEST and (usual := float(np.median(kernels))) < _LEAST_KERNEL_NS:
        return f"half of the kernels take at most {format_ns(round(usual))}: times of another unit"
    calls = trace.launches[trace.launches["kind"] == "kernel"]["duration_ns"].to_numpy()
    if len(calls) >= _FEWEST and (least := float(np.quantile(calls, 0.05))) > _MOST_LAUNCH_NS:
        return f"the quickest launches take {format_ns(round(least))}: times of another unit"
    return ""
