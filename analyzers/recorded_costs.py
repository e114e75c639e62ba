"""What ops and kernels took in the steps of a trace, by what they were given and in their order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from statistics import median

import pandas as pd

from advisor.model.dtypes import RECORDED_DTYPES
from advisor.model.trace import Trace
from analyzers.activities import NONE, activities, step_of

# The name of an op, and dtype and shape of each tensor that it is given.
OpKey = tuple[str, tuple[tuple[str, tuple[int | str, ...]], ...]]


@dataclass
class OpCost:
    """Ops of one name and tensor inputs: kernel time and launches, and those of the last step."""

    costs: list[tuple[int, int]] = field(default_factory=list)
    last: list[tuple[int, ...]] = field(default_factory=list)
    taken: int = 0

    @property
    def time_ns(self) -> int:
        """The median kernel time."""
        return round(median(time for time, _ in self.costs))

    @property
    def launches(self) -> int:
        """The median number of launches."""
        return round(median(count for _, count in self.costs))

    def next(self) -> tuple[int, ...]:
        """The kernels of the next such op of the last step, in order; () once all are taken."""
        self.taken += 1
        return self.last[self.taken - 1] if self.taken <= len(self.last) else ()


def op_costs(trace: Trace) -> dict[OpKey, OpCost]:
    """What every (name, tensor inputs) costs in the trace's steps."""
    kernels = step_kernels(trace)
    kernels = kernels[kernels["op"].notna()]
    per_op = kernels.groupby("op")["duration_ns"].agg(["sum", "count"])
    last = kernels[kernels["step"] == kernels["step"].max()]
    own: dict[int, list[int]] = {}
    for row, op in zip(last.index.tolist(), last["op"].astype(int).tolist(), strict=True):
        own.setdefault(op, []).append(row)
    ops = trace.ops.loc[per_op.index.astype(int)]
    found: dict[OpKey, OpCost] = {}
    rows = zip(
        ops.index.tolist(),
        ops["name"],
        ops["input_shapes"],
        ops["input_dtypes"],
        per_op["sum"],
        per_op["count"],
        strict=True,
    )
    for op, name, shapes, dtypes, total, count in rows:
        key = _trace_key(str(name), shapes, dtypes)
        if key is not None:
            held = found.setdefault(key, OpCost())
            held.costs.append((int(total), int(count)))
            if op in own:
                held.last.append(tuple(own[op]))
    return found


def step_kernels(trace: Trace) -> pd.DataFrame:
    """The kernels launched inside the trace's steps, with their step's row; without steps, all."""
    steps = trace.steps()
    kernels = trace.kernels
    if not len(steps):
        return kernels.assign(step=0)
    owner = step_of(activities(trace), steps)[: len(kernels)]
    stepped: pd.DataFrame = kernels.assign(step=owner)[owner != NONE]
    return stepped


def _trace_key(name: str, shapes: object, dtypes: object) -> OpKey | None:
    if not isinstance(shapes, str) or not isinstance(dtypes, str):
        return None
    try:
        listed, kinds = json.loads(shapes), json.loads(dtypes)
    except ValueError:
        return None
    inputs = tuple(
        (RECORDED_DTYPES.get(kind, kind), tuple(shape))
        for shape, kind in zip(listed, kinds, strict=False)
        if shape and all(isinstance(size, int) for size in shape)
    )
    return (name, inputs) if inputs else None


def kernel_executions(trace: Trace) -> dict[str, list[list[tuple[int, int]]]]:
    """(row, duration) of every kernel by name: one list per step, in order of start."""
    kernels = step_kernels(trace)
    found: dict[str, list[list[tuple[int, int]]]] = {}
    ordered = kernels.sort_values("start_ns")
    for (name, _), group in ordered.groupby(["name", "step"], observed=True, sort=True):
        times = group["duration_ns"].astype(int).tolist()
        pairs = list(zip(group.index.tolist(), times, strict=True))
        found.setdefault(str(name), []).append(pairs)
    return found
