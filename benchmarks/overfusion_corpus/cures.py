"""The cures that the product proposes for a case, as ways to run it beside the case itself.

Nothing here knows the neutral value of a knob: launches come from `launch_cures` for the cause that
was named, settings and kinds from `REMEDIES`, cuts from the compiler's own graph, pieces of a
transfer from `best_pieces` on the case's trace. To keep things separate is to run the members.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import msgspec
import torch

from advisor.model.base import Record
from advisor.model.overfusion import Cause
from advisor.model.remedies import REMEDIES, RemedyKind
from advisor.pipeline.backend import SwapLog, Told
from advisor.pipeline.curing import cuts_by_kernel
from advisor.pipeline.launch_cures import Relaunch, grown
from advisor.pipeline.switch import PLAIN, GraphSwitch, Selection
from advisor.verify.kernel_tiles import tiles_of
from advisor.verify.resources import ResourceRequest
from analyzers.bucket_advice import best_pieces
from collectors import read_trace
from collectors.live.capture import no_compile_caches

from . import build, compiled, streams
from .frozen import Recording
from .model import Case, Pair, Run, Scalar, Scope, _request, as_op
from .streams import LAYERS

# What starting a transfer costs beside its bytes.
TRANSFER_OVERHEAD_NS = 3_000
# Launches and cuts of one kernel that are timed: the likeliest.
MOST_LAUNCHES, MOST_CUTS = 3, 2


class Way(Record, frozen=True, kw_only=True):
    """One cure of a case in words, and the GPU-busy time of a run with it, ns."""

    kind: RemedyKind
    words: str
    time_ns: int | None = None


@dataclass(frozen=True)
class Noted:
    """One launch of a case: what to compile, and its run-time sizes by argument."""

    request: ResourceRequest
    known: dict[str, int]


@dataclass
class Relaunching(Scope):
    """A scope that notes the launches of a case, and launches some kernels in another way."""

    notes: list[Noted] = field(default_factory=list)
    override: Mapping[str, Relaunch] = field(default_factory=dict)

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        *args: torch.Tensor | int | float,
        num_warps: int = 4,
        num_stages: int = 3,
        max_registers: int | None = None,
        **constants: Scalar,
    ) -> None:
        """As every launch, unless its kernel is to be launched otherwise."""
        name = kernel.fn.__name__
        if self.dry:
            request = _request(kernel, args, constants, num_warps, num_stages, max_registers)
            names = inspect.signature(kernel.fn).parameters
            known = {n: v for n, v in zip(names, args, strict=False) if isinstance(v, int)}
            self.notes.append(Noted(request, known))
            return
        other = self.override.get(name)
        if other is not None:
            source = Path(str(inspect.getsourcefile(kernel.fn))).read_text()
            sizes = grown(other, tiles_of(source, name))
            grid = tuple(
                -(-programs * old // new)
                for axis, programs in enumerate(grid)
                for old, new in (sizes.get(axis, (1, 1)),)
            )
            num_warps, num_stages = other.request.num_warps, other.request.num_stages
            max_registers = other.request.max_registers
            constants = {**constants, **{tile: new for tile, (_, new) in other.tiles.items()}}
        super().launch(
            kernel, grid, *args, num_warps=num_warps, num_stages=num_stages,
            max_registers=max_registers, **constants,
        )  # fmt: skip


def noted(case: Case) -> list[Noted]:
    """What the fused way of a case launches of its user's kernels, found without a GPU."""
    if case.engine != "triton":
        return []
    scope = Relaunching(torch.device("meta"))
    pair = build(case, scope)
    scope.notes.clear()
    pair.fused()
    return list({note.request.kernel: note for note in scope.notes}.values())


def ways_of(
    case: Case,
    cause: Cause,
    launches: Sequence[Relaunch],
    scope: Relaunching,
    recording: Recording,
) -> tuple[Pair, list[tuple[Way, Run]]]:
    """A case built, and every cure of its cause in the order of `REMEDIES`."""
    functions: list[_Compiled] = []
    if case.engine == "inductor":
        with _noting(functions):
            pair = build(case, scope)
    else:
        pair = build(case, scope)
    found: list[tuple[Way, Run]] = []
    for remedy in REMEDIES[cause]:
        if remedy.kind == "launch":
            found += _relaunched(pair, scope, launches)
        elif remedy.kind == "setting" and functions:
            first = functions[0]
            settings = {**first.options, **remedy.settings}
            words = ", ".join(f"{name}={value}" for name, value in remedy.settings.items())
            run = first.compiled(torch.compile(first.function, dynamic=False, options=settings))
            found.append((Way(kind="setting", words=words), run))
        elif remedy.kind == "split" and functions:
            found += _cut(functions[0])
        elif remedy.kind == "buckets" and "buckets" in case.sizes:
            found.append(_in_pieces(case, recording, scope.device))
        elif remedy.kind in ("separate", "streams"):
            found.append((Way(kind=remedy.kind, words=remedy.text), pair.members))
    return pair, found


def _relaunched(
    pair: Pair, scope: Relaunching, launches: Sequence[Relaunch]
) -> Iterator[tuple[Way, Run]]:
    for launch in launches[:MOST_LAUNCHES]:

        def run(launch: Relaunch = launch) -> tuple[torch.Tensor, ...]:
            scope.override = {launch.request.kernel: launch}
            try:
                return pair.fused()
            finally:
                scope.override = {}

        yield Way(kind="launch", words=launch.words), run


def _in_pieces(case: Case, recording: Recording, device: torch.device) -> tuple[Way, Run]:
    """The transfers in as many pieces as the trace of the case says are best."""
    trace = read_trace(recording.trace(case.id, "fused"))
    layer = round(median(trace.kernels["duration_ns"]))
    copies = trace.copies[trace.copies["kind"].astype(str) != "set"]
    transfer = round(copies["duration_ns"].sum() / len(trace.steps()))
    wanted = best_pieces([layer] * LAYERS, transfer, TRANSFER_OVERHEAD_NS)
    # The case can send pieces of equal size only.
    pieces = min(n for n in range(1, LAYERS + 1) if LAYERS % n == 0 and n >= wanted)
    other = msgspec.structs.replace(case, sizes={**case.sizes, "buckets": pieces})
    # Ops are registered by name: those of the case itself must stay what they are.
    with mock.patch.object(streams, "as_op", lambda name, *rest: as_op(f"{name}_again", *rest)):
        pair = build(other, Scope(device))
    return Way(kind="buckets", words=f"{pieces} pieces"), pair.fused


# --- the compiler's kernels -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Compiled:
    """A function that a case compiles, what it is given, and the options of the compiler."""

    function: Callable[..., Any]
    given: list[torch.Tensor]
    options: dict[str, Any]

    def compiled(self, function: Callable[..., Any]) -> Run:
        """The function, compiled in another way, as a way to run the case."""

        def run() -> tuple[torch.Tensor, ...]:
            with torch.no_grad():
                found = function(*self.given)
            return found if isinstance(found, tuple) else (found,)

        return run


class _noting:  # noqa: N801 - a context
    """While this lasts, what a case compiles is noted, first the fused way."""

    def __init__(self, into: list[_Compiled]) -> None:
        self._into, self._original = into, compiled._compiled

    def __enter__(self) -> None:
        def note(function: Callable[..., Any], given: list[torch.Tensor], options: Any) -> Run:
            self._into.append(_Compiled(function, given, dict(options)))
            return self._original(function, given, options)

        compiled._compiled = note

    def __exit__(self, *_: object) -> None:
        compiled._compiled = self._original


def _cut(one: _Compiled) -> Iterator[tuple[Way, Run]]:
    """Every way to cut the kernels of a compiled function, each as its own selection of graphs."""
    switch = GraphSwitch(**one.options)
    part = one.compiled(torch.compile(one.function, backend=switch.backend(), dynamic=False))
    # A graph from a cache has run no pass: nothing of it would be known.
    with no_compile_caches():
        part()
    seen = switch.seen()
    names = dict.fromkeys(kernel.name for look in seen for kernel in look.kernels)
    for name in names:
        for way in cuts_by_kernel([(look, name) for look in seen])[:MOST_CUTS]:
            selection = switch.with_kernels((), SwapLog(), Told(splits=way.splits))
            if selection.graphs:
                yield Way(kind="split", words=way.words), _selected(switch, selection, part)


def _selected(switch: GraphSwitch, selection: Selection, part: Run) -> Run:
    def run() -> tuple[torch.Tensor, ...]:
        switch.select(selection)
        try:
            return part()
        finally:
            switch.select(PLAIN)

    return run
