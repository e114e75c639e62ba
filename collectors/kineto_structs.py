"""Kineto events as typed structs, one type a category, told apart while they are decoded.

The decoder makes only the fields some reader uses; what a category does not need costs no object.
Spellings of all ages: 2021 (`Operator`, `external id`, `theoretical occupancy %`), 2022-26.
"""

from __future__ import annotations

from typing import Any, Union, cast

import msgspec
from msgspec import Raw

from advisor.model.growing import MISSING

FAILURES = (msgspec.DecodeError, msgspec.ValidationError, RecursionError)
# Categories that a file may add to those known here before it is no longer worth while.
_MOST_LEARNT = 64


def _named(name: str, default: Any = Raw()) -> Any:  # noqa: B008 - an immutable empty value
    return msgspec.field(name=name, default=default)


class Event(msgspec.Struct, gc=False):
    """Any event; where nothing else fits its category, this is all that is read of it."""

    ph: str = ""
    name: str = ""


class Timed(Event, gc=False):
    """An event of a category we use; times stay text until they become integers exactly."""

    ts: Raw = Raw()
    dur: Raw = Raw()
    pid: int | str | None = None
    tid: int | str | None = None


class Place(msgspec.Struct, gc=False, frozen=True):
    """Where an activity ran and what launched it."""

    device: int | None = MISSING
    stream: int | None = MISSING
    correlation: int | None = MISSING
    external: int | None = _named("External id", MISSING)
    external_2021: int | None = _named("external id", MISSING)


class KernelArgs(Place, gc=False, frozen=True):
    """Launch configuration, and of a collective its size."""

    registers: int | None = _named("registers per thread", MISSING)
    shared: int | None = _named("shared memory", MISSING)
    graph: int | None = _named("graph id", MISSING)
    graph_node: int | None = _named("graph node id", MISSING)
    occupancy: float | None = _named("est. achieved occupancy %", None)
    occupancy_2021: float | None = _named("theoretical occupancy %", None)
    limits: Raw = _named("occupancy")
    grid: Raw = Raw()
    block: Raw = Raw()
    collective: Raw = _named("Collective name")
    elements_in: int | None = _named("In msg nelems", MISSING)
    elements_out: int | None = _named("Out msg nelems", MISSING)
    dtype: Raw = Raw()
    group: Raw = _named("Process Group Name")
    group_size: int | None = _named("Group size", MISSING)


class CopyArgs(Place, gc=False, frozen=True):
    """A copy or a memset."""

    bytes_: int | None = _named("bytes", MISSING)


class OpArgs(msgspec.Struct, gc=False, frozen=True):
    """What an operator was called with; `stack` is how files before 2022 recorded Python stacks."""

    external: int | None = _named("External id", MISSING)
    external_2021: int | None = _named("external id", MISSING)
    record: int | None = _named("Record function id", MISSING)
    sequence: int | None = _named("Sequence number", MISSING)
    forward: int | None = _named("Fwd thread id", MISSING)
    shapes: Raw = _named("Input Dims")
    shapes_2021: Raw = _named("Input dims")
    dtypes: Raw = _named("Input type")
    strides: Raw = _named("Input Strides")
    values: Raw = _named("Concrete Inputs")
    stack: Raw = _named("Call stack")


class CallArgs(msgspec.Struct, gc=False, frozen=True):
    """A call into the runtime or driver API."""

    correlation: int | None = MISSING
    external: int | None = _named("External id", MISSING)
    external_2021: int | None = _named("external id", MISSING)


class Kernel(Timed, gc=False, tag_field="cat", tag="kernel"):
    """A kernel execution."""

    args: KernelArgs = KernelArgs()


class Copy(Timed, gc=False, tag_field="cat", tag="gpu_memcpy"):
    """A copy on a device."""

    args: CopyArgs = CopyArgs()


class Set(Timed, gc=False, tag_field="cat", tag="gpu_memset"):
    """A memset on a device."""

    args: CopyArgs = CopyArgs()


class Op(Timed, gc=False, tag_field="cat", tag="cpu_op"):
    """A framework operator."""

    args: OpArgs = OpArgs()


class Call(Timed, gc=False, tag_field="cat", tag="cuda_runtime"):
    """A call into the runtime or driver API."""

    args: CallArgs = CallArgs()


class Range(Timed, gc=False, tag_field="cat", tag="user_annotation"):
    """A range that the program opened, on the host."""


class DeviceRange(Timed, gc=False, tag_field="cat", tag="gpu_user_annotation"):
    """The same range as the device saw it."""


class Frame(Timed, gc=False, tag_field="cat", tag="python_function"):
    """A Python function call."""


class Skipped(Event, gc=False, tag_field="cat", tag="ac2g"):
    """An event of a category that nothing is made of: arrows, the profiler's own overhead."""


class Memory(Event, gc=False, tag_field="cat", tag="cpu_instant_event"):
    """An allocation, or another moment; counted."""


class Sync(Event, gc=False, tag_field="cat", tag="cuda_sync"):
    """How long the device side of a synchronisation took: counted; the API call itself is kept."""


class CounterRange(Event, gc=False, tag_field="cat", tag="cuda_profiler_range"):
    """A CUPTI range with hardware counters per kernel or range: counted."""


# Categories as other files spell them, and those that are known to hold nothing for us.
_SPELLINGS: tuple[tuple[type[Event], tuple[str, ...]], ...] = (
    (Kernel, ("Kernel",)),
    (Copy, ("Memcpy",)),
    (Set, ("Memset",)),
    (Op, ("Operator",)),
    (Call, ("cuda_driver", "Runtime", "hip_runtime")),
    (Range, ()),
    (DeviceRange, ()),
    (Frame, ()),
    (Memory, ()),
    (Sync, ()),
    (CounterRange, ()),
    (Skipped, ("fwdbwd", "async_cpu_to_gpu", "async_gpu", "overhead", "Trace", "forward_backward")),
)
CATEGORIES: frozenset[str] = frozenset(
    str(tag)
    for base, others in _SPELLINGS
    for tag in (base.__struct_config__.tag, *others)
    if base is not Skipped
)


class _Category(msgspec.Struct, gc=False):
    cat: str | None = None


def _variant(base: type[Event], tag: str) -> type[Event]:
    name = f"{base.__name__}_{tag.encode('unicode_escape').decode()}"  # a file may name it "\\0"
    made: Any = msgspec.defstruct(name, [], bases=(base,), gc=False, tag_field="cat", tag=tag)
    return cast("type[Event]", made)


class EventDecoder:
    """Decodes the inside of an event array; unknown categories are learnt and skipped.

    `kind_of` gives the base type of every type that `decode` returns.
    """

    def __init__(self) -> None:
        self.kind_of: dict[type[Event], type[Event]] = {Event: Event}
        for base, others in _SPELLINGS:
            self.kind_of |= {base: base} | {_variant(base, tag): base for tag in others}
        self._any = msgspec.json.Decoder(list[Raw])
        self._category = msgspec.json.Decoder(_Category, strict=False)
        self._event = msgspec.json.Decoder(Event, strict=False)
        self._learn(())

    def _learn(self, tags: tuple[str, ...]) -> None:
        self.kind_of |= {_variant(Skipped, tag): Skipped for tag in tags}
        types = tuple(kind for kind in self.kind_of if kind is not Event)
        self._tags = {kind.__struct_config__.tag for kind in types}
        union: Any = Union[types]  # noqa: UP007 - made of a list
        self._one = msgspec.json.Decoder(union, strict=False)
        self._all = msgspec.json.Decoder(list[union], strict=False)

    def decode(self, body: bytes) -> list[Event] | None:
        """The events between an array's brackets; None if one is no JSON or has a wrong type."""
        try:
            events: list[Event] = self._all.decode(b"[" + body + b"]")
        except FAILURES:
            return self._one_by_one(body)
        return events

    def _one_by_one(self, body: bytes) -> list[Event] | None:
        unknown: dict[str, None] = {}
        try:
            texts = self._any.decode(b"[" + body + b"]")
            events = [self._decode(text, unknown) for text in texts]
        except FAILURES:
            return None
        if unknown and len(self.kind_of) + len(unknown) < _MOST_LEARNT:
            self._learn(tuple(unknown))
        return events

    def _decode(self, text: Raw, unknown: dict[str, None]) -> Event:
        category = self._category.decode(text).cat
        if category in self._tags:
            event: Event = self._one.decode(text)
            return event
        if category is not None:
            unknown[category] = None
        return self._event.decode(text)
