"""Whether the recorded steps did the same work on the same sizes, and which sizes they had.

An op that every step calls equally often, with other operand shapes in one step than in another,
ran on other sizes. What only some steps call (an evaluation, a new state of the optimizer) tells
nothing of sizes. Where no shapes were recorded, launches of one kernel over other grids tell it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from advisor.model.base import Warning_
from advisor.model.trace import Trace
from advisor.units import counted
from analyzers.activities import NONE, activities, step_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

CODE = "sizes-vary"
# Of which sizes findings are where a graph was inferred from a trace.
LAST_STEP = "findings about ops are of the last step alone"
_SIZES_SHOWN, _STEPS_SHOWN, _CHARACTERS = 3, 4, 80
_GRID = ("grid_x", "grid_y", "grid_z")


@dataclass(frozen=True)
class _Varied:
    """Calls of one op or kernel that differ: the steps that have each of some sizes, by size."""

    name: str
    sizes: tuple[tuple[str, tuple[int, ...]], ...]
    left_out: int
    others: int

    def words(self, verb: str) -> str:
        """`aten::mm reads [[8, 16], ...] in steps 0, 2 and [[12, 16], ...] in steps 1, 3`."""
        texts = _told_apart([size for size, _ in self.sizes])
        told = [f"{t} in {_steps_text(s)}" for t, (_, s) in zip(texts, self.sizes, strict=True)]
        told += [counted(self.left_out, "more size")] if self.left_out else []
        do = "does" if self.others == 1 else "do"
        also = f"; so {do} {counted(self.others, 'other name')}" if self.others else ""
        return f"{self.name[:_CHARACTERS]} {verb} {', '.join(told)}{also}"


def sizes_vary(trace: Trace, steps: pd.DataFrame, what_holds: str) -> tuple[Warning_, ...]:
    """A warning where the steps (rows of `trace.steps()`) ran on different sizes, else nothing.

    `what_holds` says of which sizes the graphs and findings of the report are.
    """
    if len(steps) < 2:
        return ()
    step = step_of(activities(trace), steps)[: len(trace.kernels)]
    found, verb = _of_ops(trace, step), "reads"
    if found is None:
        found, verb = _of_grids(trace, step), "is launched over"
    if found is None:
        return ()
    text = (
        f"sizes vary between the recorded steps: {found.words(verb)}. Figures a step are of all of "
        f"them together; {what_holds}"
    )
    return (Warning_(code=CODE, message=text),)


def _of_ops(trace: Trace, step: NDArray[np.int64]) -> _Varied | None:
    """By the operand shapes of ops that launched kernels."""
    op = trace.kernels["op"].to_numpy(dtype=np.int64, na_value=NONE)
    inside = (op != NONE) & (step != NONE)
    calls = pd.DataFrame({"step": step[inside], "op": op[inside]})
    calls["time"] = trace.kernels["duration_ns"].to_numpy()[inside]
    calls = calls.groupby("op", sort=True).agg(step=("step", "first"), time=("time", "sum"))
    rows = calls.index.to_numpy()
    names, shapes = trace.ops["name"].cat, trace.ops["input_shapes"].cat
    calls["name"] = names.codes.to_numpy()[rows]
    calls["size"] = shapes.codes.to_numpy()[rows]
    calls = calls[calls["size"] >= 0]
    return _varied(calls, names.categories, lambda code: str(shapes.categories[code]))


def _of_grids(trace: Trace, step: NDArray[np.int64]) -> _Varied | None:
    """By the grids of kernels; those of collectives follow the messages and the network."""
    kernels = trace.kernels
    computes = ~activities(trace).communication[: len(kernels)]
    inside = (step != NONE) & computes & kernels["grid_x"].notna().to_numpy()
    columns = [kernels[name].to_numpy(dtype=np.int64, na_value=1)[inside] for name in _GRID]
    if not inside.any():
        return None
    grids, sizes = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    names = kernels["name"].cat
    calls = pd.DataFrame({"step": step[inside], "size": sizes.reshape(-1)})
    calls["name"] = names.codes.to_numpy()[inside]
    calls["time"] = kernels["duration_ns"].to_numpy()[inside]
    return _varied(calls, names.categories, lambda code: f"a grid of {grids[code].tolist()}")


def _varied(
    calls: pd.DataFrame, names: pd.Index[str], text_of: Callable[[int], str]
) -> _Varied | None:
    """What differs most in time; `calls` has a row a call: step, name, size, and time in ns.

    Names and sizes are codes, of `names` and of what `text_of` says.
    """
    if calls.empty:
        return None
    steps = int(calls["step"].nunique())
    per_step = calls.groupby(["name", "step"]).size().groupby("name")
    # Called in every step, and equally often.
    alike = (per_step.size() == steps) & (per_step.nunique() == 1)
    calls = calls[calls["name"].map(alike)]
    if calls.empty or steps < 2:
        return None
    counts = calls.groupby(["name", "size", "step"]).size().groupby(["name", "size"])
    differs = (counts.size() < steps) | (counts.nunique() > 1)
    differs = differs[differs]
    if differs.empty:
        return None
    affected = differs.index.get_level_values("name")
    times = calls[calls["name"].isin(affected)].groupby("name")["time"].sum()
    first = int(times.index[int(times.to_numpy().argmax())])
    sizes = [size for name, size in differs.index if name == first]
    own = calls[(calls["name"] == first) & calls["size"].isin(sizes)]
    steps_of = own.groupby("size")["step"].unique()
    # Of other steps first: several sizes of one step do not show what varies between them.
    ranked, seen = list[tuple[bool, tuple[int, ...], int]](), set[tuple[int, ...]]()
    for size, its in zip(steps_of.index.tolist(), steps_of, strict=True):
        having = tuple(sorted(its.tolist()))
        ranked.append((having in seen, having, size))
        seen.add(having)
    ranked.sort()
    shown = tuple((text_of(size), having) for _, having, size in ranked[:_SIZES_SHOWN])
    return _Varied(str(names[first]), shown, len(ranked) - len(shown), len(times) - 1)


def _told_apart(sizes: Sequence[str]) -> list[str]:
    """Sizes as they are, or of lists without end the part in which they differ first."""
    if max(map(len, sizes)) <= _CHARACTERS:
        return list(sizes)
    columns = enumerate(zip(*sizes, strict=False))
    alike = next((n for n, letters in columns if len({*letters}) > 1), min(map(len, sizes)))
    start = max(alike - _CHARACTERS // 2, 0)
    return [_part(size, start) for size in sizes]


def _part(size: str, start: int) -> str:
    end = start + _CHARACTERS
    return f"{'...' if start else ''}{size[start:end]}{'...' if end < len(size) else ''}"


def _steps_text(steps: Sequence[int]) -> str:
    """`step 3`, `steps 0 to 4, 7`."""
    runs = []
    for _, run in groupby(enumerate(steps), key=lambda item: item[1] - item[0]):
        own = [number for _, number in run]
        runs.append(f"{own[0]}" if len(own) == 1 else f"{own[0]} to {own[-1]}")
    more = f" and {len(runs) - _STEPS_SHOWN} more" if len(runs) > _STEPS_SHOWN else ""
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(runs[:_STEPS_SHOWN])}{more}"
