"""Several files of one job, read as its ranks.

A file names its own rank in `distributedInfo`. Where ranks repeat (files without it all say 0), the
files are numbered in the order given, and each trace says so in its warnings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from advisor.errors import UsageError
from advisor.model.base import Warning_
from advisor.model.trace import Trace
from advisor.model.trace_schema import TABLES
from collectors import read_trace

ASSUMED = "rank_assumed"
OTHER_JOB = "world_size_differs"


def read_ranks(paths: Sequence[Path]) -> tuple[Trace, ...]:
    """The traces of one job by ascending rank; raises `UnreadableError`, `UsageError`."""
    if not paths:
        raise UsageError("no trace was named", remedy="name at least one file")
    seen: set[str] = set()
    for path in paths:
        real = os.path.realpath(path)  # `resolve` raises for links in a circle
        if real in seen:
            raise UsageError(
                "is named twice", where=str(path), remedy="each rank of a job is one file"
            )
        seen.add(real)
    return as_ranks([read_trace(path) for path in paths], [path.name for path in paths])


def as_ranks(traces: Sequence[Trace], names: Sequence[str]) -> tuple[Trace, ...]:
    """The traces with distinct ranks, ascending; `names` are for the notes."""
    recorded = [trace.info.rank for trace in traces]
    if len(traces) == 1:
        return tuple(traces)
    if len(set(recorded)) < len(traces):
        traces = [
            _numbered(trace, rank, len(traces), name)
            for rank, (trace, name) in enumerate(zip(traces, names, strict=True))
        ]
    sizes = sorted({trace.info.world_size for trace in traces})
    if len(sizes) > 1:
        note = f"the files speak of jobs of {' and '.join(map(str, sizes))} ranks"
        traces = [_warned(trace, Warning_(code=OTHER_JOB, message=note)) for trace in traces]
    return tuple(sorted(traces, key=lambda trace: trace.info.rank))


def _numbered(trace: Trace, rank: int, ranks: int, name: str) -> Trace:
    tables: dict[str, Any] = {
        table: trace.table(table).assign(rank=rank)
        for table, columns in TABLES.items()
        if "rank" in columns
    }
    world_size = max(trace.info.world_size, ranks)
    note = f"{name} taken as rank {rank}, by its place: the files name no distinct ranks"
    info = msgspec.structs.replace(trace.info, rank=rank, world_size=world_size)
    return _warned(replace(trace, **tables, info=info), Warning_(code=ASSUMED, message=note))


def _warned(trace: Trace, note: Warning_) -> Trace:
    return replace(trace, warnings=(*trace.warnings, note))
