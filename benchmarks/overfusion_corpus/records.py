"""What the recording of a case leaves behind, and the label that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from advisor.model.applied import KernelResources, Timing
from advisor.model.base import Record
from advisor.model.overfusion import Cause
from advisor.verify.resources import ResourceRequest

from .model import Case

Verdict = Literal["regression", "benign", "excluded"]


class Compiled(Record, frozen=True, kw_only=True):
    """One launch of a hand-written kernel: what was compiled, and what the binary needs.

    `resources` is None until they have been found.
    """

    request: ResourceRequest
    programs: int
    resources: KernelResources | None = None

    @property
    def key(self) -> str:
        """Identifies what was compiled, wherever its source lies."""
        return msgspec.json.encode(self.request).decode()


class Generated(Record, frozen=True, kw_only=True):
    """A kernel that Inductor wrote, in the configuration that it chose on this machine.

    `local_words` is what Triton calls spills: 32-bit words of the stack frame.
    """

    name: str
    config: str
    registers: int | None = None
    local_words: int | None = None
    shared_bytes: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None


class Variant(Record, frozen=True, kw_only=True):
    """One way to run the case: GPU-busy time, caches flushed before, and its kernels."""

    time: Timing
    launches: tuple[Compiled, ...] = ()
    generated: tuple[Generated, ...] = ()


class Result(Record, frozen=True, kw_only=True):
    """A case as it was measured.

    `ratio` is fused over members: (low, median, high) of the rounds' own ratios, at 95 %. `error`
    is the largest difference of a result, relative to its largest value.
    """

    case: Case
    fused: Variant
    members: Variant
    ratio: tuple[float, float, float]
    moved_bytes: int
    concurrent: bool
    error: float

    @property
    def sized(self) -> bool:
        """True if the needs of all its binaries are known."""
        launches = (*self.fused.launches, *self.members.launches)
        return all(launch.resources is not None for launch in launches)

    def with_resources(self, rows: Mapping[str, KernelResources]) -> Result:
        """The result with what is found in `rows` by the keys of its launches."""
        fused, members = (_filled(way, rows) for way in (self.fused, self.members))
        return msgspec.structs.replace(self, fused=fused, members=members)


def _filled(way: Variant, rows: Mapping[str, KernelResources]) -> Variant:
    launches = tuple(
        msgspec.structs.replace(launch, resources=launch.resources or rows.get(launch.key))
        for launch in way.launches
    )
    return msgspec.structs.replace(way, launches=launches)


class Label(Record, frozen=True, kw_only=True):
    """What is true of a case; `cause` only where the knob was shown to make the loss.

    `also` are mechanisms that the same turn of the knob set off and that no other case tells apart
    from the cause: naming one of them is right as well.
    """

    id: str
    verdict: Verdict
    ratio: tuple[float, float, float]
    cause: Cause | None = None
    also: tuple[Cause, ...] = ()
    reason: str = ""


class Labels(Record, frozen=True, kw_only=True):
    """All labels of a recording, with the bounds that they were made with."""

    loses_above: float
    share_of_knob: float
    labels: tuple[Label, ...]


class Session(Record, frozen=True, kw_only=True):
    """The machine and the versions of a recording."""

    gpu: str
    driver: str
    versions: dict[str, str]
    clock: str = "GPU-busy ns of one run, from the profiler; 256 MB written before each run"
