"""The steps of a trace as launches in order: what each kernel was given, took and needed.

Times are medians over the steps, ns. Steps whose launches differ from those of most are left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from statistics import median
from typing import Any

import msgspec
import numpy as np

from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu
from advisor.model.overfusion import KernelCode
from advisor.model.range_names import STEP_PREFIX
from advisor.model.step_record import (
    DRIVER,
    MOST,
    MOST_LAUNCHES,
    Launch,
    StepRecord,
    Tensor,
    Triple,
)
from advisor.model.trace import Trace
from analyzers.activities import NONE, Activities, activities, step_of
from analyzers.kernel_roles import classify

FEWEST_OF_GRAPH = 4


def step_facts(
    trace: Trace,
    codes: Sequence[KernelCode] = (),
    *,
    step_prefix: str = STEP_PREFIX,
    gpu: Gpu | None = None,
) -> StepRecord:
    """The launches of the steps of a trace.

    Without ranges of steps every replay of a CUDA graph is one, else the whole trace. Steps of
    more than `MOST_LAUNCHES` are not looked at: no launches.
    """
    found = activities(trace)
    steps = trace.steps(step_prefix)
    step = step_of(found, steps) if len(steps) else _graph_launches(found)
    ordered = [_in_order(found, rows) for rows in _rows(step)]
    device = gpu or _device(trace)
    if not 0 < max(map(len, ordered), default=0) <= MOST_LAUNCHES:
        return StepRecord(gpu=device.key if device else None)
    ordered = _alike(ordered, _names(trace))
    busy = tuple(found.where(rows).busy() for rows in ordered)
    span = tuple(int(found.end[rows].max() - found.start[rows].min()) for rows in ordered)
    chosen = ordered[busy.index(sorted(busy)[len(busy) // 2])]
    first = int(found.start[chosen].min())
    launches = []
    for place, (row, launch) in enumerate(zip(chosen, _launches(trace, chosen), strict=True)):
        times = tuple(int(found.end[rows[place]] - found.start[rows[place]]) for rows in ordered)
        launches.append(
            msgspec.structs.replace(
                launch,
                start_ns=int(found.start[row]) - first,
                time_ns=round(median(times)),
                times_ns=times,
            )
        )
    names_used = {launch.name for launch in launches}
    return StepRecord(
        launches=tuple(launches),
        busy_ns=busy,
        span_ns=span,
        gpu=device.key if device else None,
        codes=tuple(code for code in codes if code.name in names_used),
    )


def _graph_launches(found: Activities) -> Any:
    """The number of the graph launch of each activity, `NONE` outside; 0 for all without graphs."""
    counts = Counter(row for row in found.launch.tolist() if row != NONE)
    graphs = [row for row, count in counts.items() if count >= FEWEST_OF_GRAPH]
    if not graphs:
        return np.zeros(len(found.start), dtype=np.int64)
    return np.where(np.isin(found.launch, graphs), found.launch, NONE)


def _rows(step: Any) -> list[Any]:
    return [np.flatnonzero(step == number) for number in np.unique(step[step != NONE]).tolist()]


def _in_order(found: Activities, rows: Any) -> Any:
    """Rows in order of launch; those of one graph launch by start."""
    return rows[np.lexsort((found.start[rows], found.launch_start[rows]))]


def _names(trace: Trace) -> Any:
    """The name of every activity, as an array."""
    copies = trace.copies["kind"].astype(object).to_numpy()
    return np.concatenate((trace.kernels["name"].astype(object).to_numpy(), copies)).astype(str)


def _alike(ordered: list[Any], names: Any) -> list[Any]:
    """The steps that run what most of them run, in that order."""
    kinds = [tuple(sorted(names[row] for row in rows)) for rows in ordered]
    if not kinds:
        return []
    common, _ = Counter(kinds).most_common(1)[0]
    kept = [rows for rows, kind in zip(ordered, kinds, strict=True) if kind == common and len(rows)]
    if len({tuple(names[row] for row in rows) for rows in kept}) == 1:
        return kept
    # Kernels that run side by side start in another order every time: by name, then by start.
    return [rows[np.argsort([names[row] for row in rows], kind="stable")] for rows in kept]


def _device(trace: Trace) -> Gpu | None:
    known = trace.devices["name"].dropna().astype(str)
    return find_gpu(known.iloc[0]) if len(known) else None


def _launches(trace: Trace, rows: Any) -> list[Launch]:
    """Rows of activities as launches, without times: kernels first in the count, then copies."""
    count = len(trace.kernels)
    kernels = trace.kernels.iloc[rows[rows < count]].to_dict("records")
    copies = trace.copies.iloc[rows[rows >= count] - count].to_dict("records")
    used = sorted({op for kernel in kernels if (op := _whole(kernel["op"])) is not None})
    called = trace.ops.iloc[used][["name", "input_shapes", "input_dtypes"]].to_dict("records")
    ops = dict(zip(used, called, strict=True))
    waiting = iter(kernels), iter(copies)
    return [
        _kernel(next(waiting[0]), ops) if row < count else _copy(next(waiting[1]))
        for row in rows.tolist()
    ]


def _copy(copy: Mapping[Any, Any]) -> Launch:
    kind = "memset" if str(copy["kind"]) == "set" else "copy"
    # A fill has no direction, nor has a copy whose name tells none: missing text, no string.
    known = isinstance(copy["direction"], str)
    return Launch(
        name=f"{kind} {copy['direction']}" if known else kind,
        role=kind,
        library=DRIVER,
        stream=_whole(copy["stream"]),
        copied_bytes=_whole(copy["bytes"]),
    )


def _kernel(kernel: Mapping[Any, Any], ops: Mapping[int, Mapping[Any, Any]]) -> Launch:
    called = ops.get(_whole(kernel["op"]) or 0) if _whole(kernel["op"]) is not None else None
    name = str(kernel["name"])
    op = None if called is None else str(called["name"])
    known = classify(name, op)
    block = [_whole(kernel[f"block_{axis}"]) for axis in "xyz"]
    return Launch(
        name=name,
        role=known.role,
        library=known.library,
        op=op,
        operands=() if called is None else _operands(called),
        stream=_whole(kernel["stream"]),
        grid=_triple([_whole(kernel[f"grid_{axis}"]) for axis in "xyz"]),
        threads=None if block[0] is None else prod(size or 1 for size in block),
        registers=_whole(kernel["registers_per_thread"]),
        shared_bytes=_shared(kernel),
        dram_read_bytes=_whole(kernel["dram_read_bytes"]),
        dram_write_bytes=_whole(kernel["dram_write_bytes"]),
        spill_bytes=_sum(kernel["spill_load_bytes"], kernel["spill_store_bytes"]),
    )


def _whole(value: Any) -> int | None:
    """A count as a trace has it; None where there is none, or none that can be."""
    known = isinstance(value, (int, np.integer)) and 0 <= value <= MOST
    return int(value) if known else None


def _sum(*values: Any) -> int | None:
    known = [found for value in values if (found := _whole(value)) is not None]
    return sum(known) if known else None


def _triple(parts: list[int | None]) -> Triple | None:
    return None if parts[0] is None else (parts[0], parts[1] or 1, parts[2] or 1)


def _shared(kernel: Mapping[Any, Any]) -> int | None:
    both = _sum(kernel["static_shared_bytes"], kernel["dynamic_shared_bytes"])
    return _whole(kernel["shared_bytes"]) if both is None else both


def _operands(op: Mapping[Any, Any]) -> tuple[Tensor, ...]:
    """The tensors that an op was given, those of lists flattened."""
    try:
        shapes, dtypes = json.loads(str(op["input_shapes"])), json.loads(str(op["input_dtypes"]))
    except ValueError:
        return ()
    found = []
    for shape, dtype in zip(shapes, dtypes, strict=False):
        if _is_shape(shape):
            if shape and dtype not in ("Scalar", "ScalarList", ""):
                found.append(Tensor(shape=tuple(shape), dtype=str(dtype)))
        elif isinstance(shape, list):
            inner = [part for part in shape if isinstance(part, list)]
            kinds = dtype if isinstance(dtype, list) else [dtype] * len(inner)
            pairs = zip(inner, kinds, strict=False)
            found += [Tensor(shape=tuple(s), dtype=str(d)) for s, d in pairs if _is_shape(s)]
    return tuple(found)


def _is_shape(value: Any) -> bool:
    """Whether it is sizes that a tensor can have."""
    sizes = value if isinstance(value, list) else [-1]
    return all(type(n) is int and n >= 0 for n in sizes) and prod(sizes) <= MOST
