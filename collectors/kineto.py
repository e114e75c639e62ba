"""Kineto (PyTorch profiler) JSON to `Trace`: any age, plain or compressed, damaged or whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from advisor.errors import UnreadableError
from advisor.model.trace import Trace, TraceBuilder
from collectors.bytes_in import Source
from collectors.kineto_pair import read_by_two
from collectors.kineto_part import Ended, collect
from collectors.kineto_stream import EventStream
from collectors.kineto_structs import CATEGORIES

_MARKS = re.compile(
    rb'"(schemaVersion|deviceProperties|computeProperties|baseTimeNanoseconds)"\s*:'
)
_CATEGORY = re.compile(
    rb'"cat"\s*:\s*"(%s|cpu_instant_event|ac2g|fwdbwd)"'
    % b"|".join(name.encode() for name in sorted(CATEGORIES))
)
# More ranks than any job has; what is beyond is no rank.
_MOST_RANKS = 1 << 24
_VERSIONS = (
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "hip_driver_version",
    "roctracer_version",
)
_DAMAGE = {
    "event_dropped": "events that are no valid JSON, or of wrong types, were left out",
    "event_repaired": "events were read without arguments of the wrong type or with a quote added",
    "number_not_finite": "NaN or infinite numbers were read as absent",
    "escape_repaired": "backslashes that escape nothing were read as themselves",
    "control_character_repaired": "control characters inside strings were escaped",
    "utf8_repaired": "events with invalid UTF-8 were read with replacement characters",
    "metadata_skipped": "the file's own description could not be read",
}


def sniff(head: bytes) -> bool:
    """Whether a file that begins (decompressed) with `head` is Kineto JSON."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"{"):
        return bool(_MARKS.search(text) or _CATEGORY.search(text)) or b'"traceEvents"' in text[:64]
    return text.startswith(b"[") and bool(_CATEGORY.search(text))


def read(path: Path) -> Trace:
    """The whole file as a checked trace; raises `UnreadableError` if it holds no event of ours."""
    source = Source(path)
    builder = TraceBuilder(source="kineto")
    found = read_by_two(source, builder)
    if found is None:
        builder = TraceBuilder(source="kineto")
        found = by_one(source, builder)
    return traced(builder, *found, path)


def by_one(source: Source, builder: TraceBuilder) -> tuple[EventStream, Ended]:
    """Read all events into the builder, in this process."""
    stream = EventStream(source)
    return stream, collect(source, stream, builder)


def traced(builder: TraceBuilder, stream: EventStream, ended: Ended, path: Path) -> Trace:
    """The trace of what was read; raises `UnreadableError` if that is nothing."""
    if not builder.filled():
        raise _nothing(ended, path)
    _describe(builder, stream.metadata)
    _warn(builder, ended)
    return builder.build()


def _nothing(ended: Ended, path: Path) -> UnreadableError:
    """Why no kernel, operator or call was found: none there, or none that can be read."""
    lost = [f"{_DAMAGE[kind]}, byte {at}" for kind, at in ended.damage.first.items()]
    if not ended.whole or ended.truncated:
        lost.append(ended.truncated or "the JSON ends before the first complete event")
    if lost:
        return UnreadableError(
            "holds no event that can be read",
            where=str(path),
            why="; ".join(lost),
            remedy="record or copy it again",
        )
    what = "holds no kernel, operator or call" if ended.events else "holds no events"
    return UnreadableError(what, where=str(path), remedy="profile at least one step")


def _describe(builder: TraceBuilder, metadata: dict[str, Any]) -> None:
    """Rank, versions and devices from the metadata around the events."""
    distributed = metadata.get("distributedInfo")
    if isinstance(distributed, dict):
        rank, size = _integer(distributed.get("rank")), _integer(distributed.get("world_size"))
        builder.rank = rank if rank is not None and 0 <= rank < _MOST_RANKS else 0
        whole = size is not None and builder.rank < size <= _MOST_RANKS
        builder.world_size = size if size is not None and whole else builder.rank + 1
        if rank != builder.rank or not whole:
            told = f"the file calls itself rank {str(rank)[:20]} of {str(size)[:20]}"
            builder.warn("rank_assumed", f"{told}; taken as rank {builder.rank}")
    builder.versions = {k: str(metadata[k]) for k in _VERSIONS if k in metadata}
    builder.shapes_recorded = bool(metadata.get("record_shapes"))
    builder.stacks_recorded = bool(metadata.get("with_stack"))
    devices = metadata.get("deviceProperties", metadata.get("computeProperties"))
    for device in devices if isinstance(devices, list) else ():
        if isinstance(device, dict) and _integer(device.get("id")) is not None:
            builder.event("devices", **_device(device), rank=builder.rank)


def _device(properties: dict[str, Any]) -> dict[str, int | str | None]:
    def first(*names: str) -> int | None:
        return next((v for n in names if (v := _integer(properties.get(n))) is not None), None)

    return {
        "device": first("id"),
        "name": str(properties.get("name") or "") or None,
        "compute_major": first("computeMajor", "major"),
        "compute_minor": first("computeMinor", "minor"),
        "multiprocessors": first("numSms", "multiProcessorCount"),
        "warp_size": first("warpSize"),
        "memory_bytes": first("totalGlobalMem"),
        "registers_per_multiprocessor": first("regsPerMultiprocessor"),
        "shared_bytes_per_multiprocessor": first(
            "sharedMemPerMultiprocessor", "maxSharedMemoryPerMultiProcessor"
        ),
        "shared_bytes_per_block": first("sharedMemPerBlockOptin", "sharedMemPerBlock"),
        "threads_per_multiprocessor": first(
            "maxThreadsPerMultiprocessor", "maxThreadsPerMultiProcessor"
        ),
    }


def _integer(value: object) -> int | None:
    """A number that fits a column, None for anything else."""
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return value if fits and isinstance(value, int) else None


def _warn(builder: TraceBuilder, ended: Ended) -> None:
    for kind, count in ended.damage.counts.items():
        builder.warn(kind, f"{_DAMAGE[kind]} (first at byte {ended.damage.first[kind]})", count)
    if not ended.whole or ended.truncated:
        builder.complete = False
        why = ended.truncated or "the JSON ends early"
        builder.warn(
            "truncated",
            f"{why}: complete events were kept, {ended.dropped_bytes} bytes at the end dropped",
        )
