"""Executed ops joined to a timeline: by record-function id in their own run, else by order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from advisor.model.base import Location
from advisor.model.trace import Trace
from analyzers.activities import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OWN = str(Path(__file__).resolve().parents[1] / "collectors")


@dataclass(frozen=True)
class JoinedOps:
    """What a trace says of each op, by record-function id; `timed`: a trace of another step."""

    kernels: dict[int, list[int]]
    places: dict[int, Location]
    durations: NDArray[np.int64]
    known: frozenset[int]
    recorded: bool
    timed: bool = False


def join_ops(timeline: Trace | None, timed: Trace | None, wanted: set[int]) -> JoinedOps:
    """Kernels (rows) and places of the wanted ops; a kernel belongs to the outermost one around."""
    if timeline is None:
        return JoinedOps({}, {}, np.empty(0, dtype=np.int64), frozenset(), recorded=False)
    ids = timeline.ops["record_function_id"].to_numpy(dtype=np.int64, na_value=NONE).tolist()
    rows = {number: row for row, number in enumerate(ids) if number in wanted}
    held = timeline.ops.loc[list(rows.values()), ["module", "source"]].astype(object)
    places = {
        number: _place(*where)
        for number, where in zip(rows, held.itertuples(index=False, name=None), strict=True)
    }
    if timed is not None:
        twin = counterparts(timeline, timed)
        rows = {number: twin[row] for number, row in rows.items() if row in twin}
    measured = timeline if timed is None else timed
    number_of = {row: number for number, row in rows.items()}
    kernels: dict[int, list[int]] = {}
    for kernel, owner in _owners(measured, number_of).items():
        kernels.setdefault(number_of[owner], []).append(kernel)
    durations = measured.kernels["duration_ns"].to_numpy()
    return JoinedOps(kernels, places, durations, frozenset(rows), True, timed is not None)


def counterparts(observed: Trace, timed: Trace) -> dict[int, int]:
    """Rows of ops of an observed step to those of the same ops of the last step of another trace.

    Ops of one name and input shapes are the same in order, if both steps have as many of them.
    """
    there = _by_call(timed)
    return {
        row: twin
        for call, rows in _by_call(observed).items()
        if len(rows) == len(there.get(call, ()))
        for row, twin in zip(rows, there[call], strict=True)
    }


def _by_call(trace: Trace) -> dict[tuple[str, str], list[int]]:
    """The ops of the last step by name and shapes, in the order in which they began."""
    steps = trace.steps()
    start = trace.ops["start_ns"].to_numpy()
    inside = np.ones(len(start), dtype=bool)
    if len(steps):
        first = int(steps["start_ns"].iloc[-1])
        inside = (start >= first) & (start < first + int(steps["duration_ns"].iloc[-1]))
    rows = np.flatnonzero(inside)
    columns = trace.ops.loc[rows, ["name", "input_shapes"]].astype(str)
    found: dict[tuple[str, str], list[int]] = {}
    for row, call in zip(rows.tolist(), columns.itertuples(index=False, name=None), strict=True):
        found.setdefault(call, []).append(row)
    return found


def _owners(trace: Trace, wanted: Mapping[int, int]) -> dict[int, int]:
    """Kernel rows to the row of the outermost wanted op around their launch."""
    parents = trace.ops["parent"].to_numpy(dtype=np.int64, na_value=NONE)
    known: dict[int, int] = {}

    def owner(at: int) -> int:
        path = []
        while at != NONE and at not in known:
            path.append(at)
            at = int(parents[at])
        outer = NONE if at == NONE else known[at]
        for row in reversed(path):
            if outer == NONE and row in wanted:
                outer = row
            known[row] = outer
        return outer

    ops = trace.kernels["op"].to_numpy(dtype=np.int64, na_value=NONE).tolist()
    found = {kernel: owner(at) for kernel, at in enumerate(ops)}
    return {kernel: at for kernel, at in found.items() if at != NONE}


def _place(module: Any, source: Any) -> Location:
    file, _, line = source.rpartition(":") if isinstance(source, str) else ("", "", "")
    if file.startswith(_OWN):  # where the step is driven from is no place of the user's program
        file, line = "", ""
    return Location(
        module=module if isinstance(module, str) else None,
        file=file or None,
        line=int(line) if line.isdecimal() else None,
    )
