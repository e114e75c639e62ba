"""What the host does in a step: guards, compiled regions, autograd, dispatcher, launches, Python.

At every moment of a step the host is inside one innermost event of its thread; its kind is what
that moment is spent on. Where the step's own thread is in no event, a thread that runs gradients
may be: then its event counts. What is left is Python and whatever else was not recorded. The parts
of a step add up to the step. All of it is as profiled: recording stretches short ops most.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from advisor.model.range_names import COMPILED_FUNCTION, COMPILED_REGION
from advisor.model.report import Metric
from advisor.model.trace import Trace
from analyzers.intervals import Spans, intersect, merge
from analyzers.starvation import BLOCKING

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

# Of a long trace so many steps are taken apart, evenly spaced: events are nested in Python.
MOST_STEPS = 16
# Steps with more events than this, all together, are not taken apart.
MOST_EVENTS = 200_000
PYTHON = "python"
KINDS: dict[str, str] = {
    "guards": "finding the compiled code whose guards hold (Dynamo's cache lookup)",
    "compiled_region": (
        "inside compiled regions, outside ops and launches: wrappers, generated Python, allocation"
    ),
    "autograd": "inside autograd's functions and its engine, outside the ops that they call",
    "dispatch": "inside operators: dispatcher, shape checks, allocation",
    "launch": "inside calls that launch kernels, graphs, copies or memsets",
    "runtime": "inside other calls of the runtime, those that wait left out",
    "wait": "inside calls that wait for the device",
    PYTHON: "in no recorded op or call: Python, and code that records nothing",
}
_GUARDS = ("TorchDynamo Cache Lookup",)
_COMPILED = (
    COMPILED_REGION, "## Call CompiledFxGraph", COMPILED_FUNCTION, "Pregraph bytecode",
    "AOTDispatcher", "triton_", "inductor_",
)  # fmt: skip
_AUTOGRAD = ("autograd::", "torch::autograd::")
_LAUNCHING = ("kernel", "graph", "copy", "set")


def host_metrics(trace: Trace, steps: pd.DataFrame) -> dict[str, Metric]:
    """`host_KIND_per_step_ns` for every kind: median over steps; none without steps or ops."""
    if not len(steps) or not len(trace.ops):
        return {}
    split = host_split(trace, steps)
    if not split:
        return {}
    metrics = {}
    for kind, text in KINDS.items():
        values = [step[kind] for step in split]
        metrics[f"host_{kind}_per_step_ns"] = Metric(
            value=round(statistics.median(values)),
            unit="ns",
            provenance="measured",
            definition=(
                f"median over steps (at most {MOST_STEPS}, evenly spaced): time of the step that "
                f"the host spends {text}; as profiled: recording stretches it"
            ),
            per_step=tuple(values),
        )
    return metrics


def host_split(trace: Trace, steps: pd.DataFrame) -> list[dict[str, int]]:
    """ns of every kind for each step, for `MOST_STEPS` of them where there are more.

    Empty if they hold more than `MOST_EVENTS`.
    """
    if len(steps) > MOST_STEPS:
        steps = steps.iloc[np.linspace(0, len(steps) - 1, MOST_STEPS).round().astype(int)]
    start, end, thread, kind = _events(trace)
    inside = np.zeros(len(start), dtype=bool)
    windows = []
    for first, length, owner in zip(
        steps["start_ns"].tolist(),
        steps["duration_ns"].tolist(),
        steps["thread"].tolist(),
        strict=True,
    ):
        windows.append((first, first + length, owner))
        inside |= (start < first + length) & (end > first)
    if int(inside.sum()) > MOST_EVENTS:
        return []
    order = np.flatnonzero(inside)
    start, end, thread, kind = start[order], end[order], thread[order], kind[order]
    own = {int(owner): _self_spans(start, end, kind, thread == owner) for owner in set(thread)}
    return [_step(own, *window) for window in windows]


def _events(trace: Trace) -> tuple[Ints, Ints, Ints, NDArray[np.int8]]:
    """(start, end, thread, kind) of ops, calls and compiled ranges, kinds as places in `KINDS`."""
    place = {name: at for at, name in enumerate(KINDS)}
    ranges = trace.ranges[trace.ranges["side"] == "host"]
    compiled = ranges["name"].astype(str).str.startswith(_COMPILED).to_numpy(dtype=bool)
    tables = (
        (trace.ops, _op_kinds(trace.ops["name"])),
        (ranges[compiled], np.full(int(compiled.sum()), place["compiled_region"], dtype=np.int8)),
        (
            trace.launches,
            np.where(
                trace.launches["kind"].isin(_LAUNCHING), place["launch"], place["runtime"]
            ).astype(np.int8),
        ),
        (
            trace.syncs,
            np.where(trace.syncs["kind"].isin(BLOCKING), place["wait"], place["runtime"]).astype(
                np.int8
            ),
        ),
    )
    start = np.concatenate([t["start_ns"].to_numpy() for t, _ in tables])
    length = np.concatenate([t["duration_ns"].to_numpy() for t, _ in tables])
    thread = np.concatenate([t["thread"].to_numpy() for t, _ in tables])
    return start, start + length, thread, np.concatenate([kind for _, kind in tables])


def _op_kinds(names: pd.Series) -> NDArray[np.int8]:
    place = {name: at for at, name in enumerate(KINDS)}
    held = names.astype("category").cat
    kinds = np.array([*(place[_kind_of(str(n))] for n in held.categories), place["dispatch"]])
    return kinds.astype(np.int8)[held.codes.to_numpy()]


def _kind_of(name: str) -> str:
    if name.startswith(_GUARDS):
        return "guards"
    if name.startswith(_COMPILED):
        return "compiled_region"
    if name.startswith(_AUTOGRAD) or ("::" not in name and "Backward" in name):
        return "autograd"
    return "dispatch"


def _self_spans(
    start: Ints, end: Ints, kind: NDArray[np.int8], mine: NDArray[np.bool_]
) -> dict[str, Spans]:
    """Of one thread: when it is inside an event of each kind and in no event within that."""
    rows = np.flatnonzero(mine)
    rows = rows[np.lexsort((-end[rows], start[rows]))]
    names = tuple(KINDS)
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    stack: list[tuple[int, int]] = []
    at = 0

    def close(until: int) -> None:
        """Everything that has ended by `until` is given its time."""
        nonlocal at
        while stack and stack[-1][0] <= until:
            ends, which = stack.pop()
            if ends > at:
                found[names[which]].append((at, ends))
                at = ends
        if stack and until > at:
            found[names[stack[-1][1]]].append((at, until))
        at = max(at, until)

    events = zip(start[rows].tolist(), end[rows].tolist(), kind[rows].tolist(), strict=True)
    for begins, ends, which in events:
        close(begins)
        # Old files round: a child that outlives its parent is cut there.
        stack.append((min(ends, stack[-1][0]) if stack else ends, which))
    if stack:
        close(max(ends for ends, _ in stack))
    return {
        name: merge(np.array([a for a, _ in spans]), np.array([b for _, b in spans]))
        for name, spans in found.items()
        if spans
    }


def _step(own: dict[int, dict[str, Spans]], first: int, last: int, thread: int) -> dict[str, int]:
    """The kinds of one step: its own thread, and where that is silent, the others."""
    silent = merge(np.array([first]), np.array([last]))
    result = dict.fromkeys(KINDS, 0)
    for owner in sorted(own, key=lambda each: each != thread):
        for kind, spans in own[owner].items():
            result[kind] += intersect(spans, silent).length()
        silent = intersect(silent, _outside(own[owner], first, last))
    result[PYTHON] += silent.length()
    return result


def _outside(kinds: dict[str, Spans], first: int, last: int) -> Spans:
    """The moments of [first, last) in which a thread is in no event."""
    if not kinds:
        return merge(np.array([first]), np.array([last]))
    held = merge(
        np.concatenate([spans.starts for spans in kinds.values()]),
        np.concatenate([spans.ends for spans in kinds.values()]),
    )
    held = intersect(held, merge(np.array([first]), np.array([last])))
    return merge(np.append(first, held.ends), np.append(held.starts, last))
