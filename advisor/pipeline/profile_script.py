"""`profile` of a script: its own marked steps are looked at, captured, timed and traced in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import NoReturn

from msgspec.structs import replace

from advisor.errors import UsageError, WorkloadError
from advisor.model.base import Warning_
from advisor.pipeline.device_state import device_state
from advisor.pipeline.recording import (
    MODE_NEEDS_GPU,
    Announce,
    Recording,
    capture_warnings,
    clean_metrics,
    counted_steps,
    device_here,
    read_recorded,
    take_counters,
)
from advisor.pipeline.run_notes import between_steps, within_step
from advisor.pipeline.source_commit import commit_of
from advisor.pipeline.storage import blame_writing
from advisor.store import RunDirectory
from advisor.units import counted
from analyzers.step_sizes import CODE
from collectors.live.conductor import Conductor, Repeat, ScriptPhase
from collectors.live.nvml import GpmSampler, GpuSnapshot, snapshot
from collectors.live.recorder import TRACED_STEPS, recorded, synchronize
from collectors.live.script import run_script
from collectors.live.script_graphs import (
    Again,
    CaptureModules,
    Compiles,
    Watch,
    compiled_regions,
)
from collectors.live.target import parse_target, source_file

NO_MARK = (
    "put `with advisor.step():` around a step, or write `for batch in advisor.step(loader):`; "
    "the step() of torch.profiler.profile counts too. Or give a factory, file.py:NAME"
)
# Ends the process with this error, from within code that would catch it.
Abandon = Callable[[WorkloadError], NoReturn]
# At most: one to see what the script compiles, one to see what it calls, one to capture that.
TO_CAPTURE = 3


class _Clean(ScriptPhase):
    """Steps timed without a profiler."""

    def __init__(self, recording: Recording, announce: Announce, keep: Callable[[], None]) -> None:
        self._recording, self._announce, self._keep = recording, announce, keep
        self._times_ns: list[int] = []
        self._started_ns = 0

    def begin(self, undo: ExitStack) -> int:
        steps = self._recording.options.steps
        self._keep()
        self._recording.state_before = device_state(snapshot(device_here()))
        self._announce("time", f"timing {steps} clean steps")
        # Also of a script that fails half-way.
        undo.callback(self._take)
        return steps

    def enter(self) -> None:
        synchronize()
        self._started_ns = time.perf_counter_ns()

    def leave(self, completed: bool) -> None:
        if completed:
            synchronize()
            self._times_ns.append(time.perf_counter_ns() - self._started_ns)

    def end(self) -> None:
        self._keep()

    def _take(self) -> None:
        if self._times_ns:
            self._recording.metrics |= clean_metrics(self._times_ns)


class _Traced(ScriptPhase):
    """Steps recorded by the profiler into the run."""

    def __init__(
        self, recording: Recording, run: RunDirectory, announce: Announce, keep: Callable[[], None]
    ) -> None:
        self._recording, self._run = recording, run
        self._announce, self._keep = announce, keep
        self._range_of: Callable[[int], AbstractContextManager[None]] | None = None
        self._range = ExitStack()
        self._number = 0

    def begin(self, undo: ExitStack) -> int:
        self._announce("trace", "recording a trace")
        self._range_of = undo.enter_context(
            # Graphs know where their ops come from; without any, only stacks do.
            recorded(self._run.trace_path, stacks=not self._recording.captured.graphs)
        )
        return TRACED_STEPS

    def enter(self) -> None:
        if self._range_of is not None:
            self._range.enter_context(self._range_of(self._number))

    def leave(self, completed: bool) -> None:
        self._range.close()
        self._number += completed

    def end(self) -> None:
        read_recorded(self._recording, self._run)
        self._keep()


class _Counted(ScriptPhase):
    """Steps that run while the GPU's counters are sampled."""

    def __init__(self, recording: Recording, announce: Announce) -> None:
        self._recording, self._announce = recording, announce
        self._sampler: GpmSampler | None = None
        self._state: GpuSnapshot | None = None

    def begin(self, undo: ExitStack) -> int:
        self._announce("counters", "sampling the GPU's counters")
        self._sampler = undo.enter_context(GpmSampler(device_here()))
        undo.callback(self._look)
        return counted_steps(self._recording)

    def end(self) -> None:
        if self._sampler is not None and self._state is not None:
            take_counters(self._recording, self._sampler, self._state)

    def _look(self) -> None:
        # While the GPU is at work: an idle one is not held back.
        self._state = snapshot(device_here())
        synchronize()


def record_script(
    recording: Recording,
    run: RunDirectory,
    announce: Announce,
    keep: Callable[[], None],
    abandon: Abandon,
) -> None:
    """Run a script, give its steps to one phase after the other, and stop it.

    Graphs are those of the regions that it compiles, else of the modules that its step calls. With
    neither, the trace alone is left. Raises `UsageError` if it marks no step, `WorkloadError` if it
    fails or ends before enough steps, `StorageError` where the compiler could not write; what was
    recorded by then stays in `recording`.
    """
    options, gpu_here = recording.options, recording.device.type == "cuda"
    announce("load", f"running {options.target}")
    recording.commit = commit_of(source_file(options.target))
    found = recording.captured
    found.on_gpu = gpu_here
    compiles, watch = Compiles(found), Watch(found)
    capture = CaptureModules(
        found,
        watch,
        generate_code=gpu_here and options.mode == "compile",
        announce=partial(announce, "capture", "compiling and reading the graphs"),
    )
    later = _timed(recording, run, announce, keep) if gpu_here else (Again(compiles),)
    phases = (compiles, watch, capture, *later)
    conductor = Conductor(phases, partial(_give_up, recording, keep, abandon))
    stopped = False
    try:
        with compiled_regions(found, generate_code=gpu_here):
            try:
                stopped = run_script(
                    parse_target(options.target), options.target, conductor, seed=options.seed
                )
            finally:
                conductor.close()
    finally:
        _conclude(recording, watch, capture, compiles)
    # What could not be compiled ran as it was written: that is no fact about it on a full disk.
    for said in found.failures:
        blame_writing(said, run.path)
    _check_complete(recording, watch, conductor.completed, stopped=stopped)


def _timed(
    recording: Recording, run: RunDirectory, announce: Announce, keep: Callable[[], None]
) -> tuple[ScriptPhase, ...]:
    """What a GPU's steps are for, after the capture: warm-up, clean, traced and counted ones."""
    warming = partial(announce, "warmup", "running steps to warm up")
    return (
        Repeat(recording.options.warmup, warming),
        _Clean(recording, announce, keep),
        _Traced(recording, run, announce, keep),
        _Counted(recording, announce),
    )


def _give_up(recording: Recording, keep: Callable[[], None], abandon: Abandon) -> NoReturn:
    keep()
    abandon(
        WorkloadError(
            "the script cannot be stopped",
            where=recording.options.target,
            why="it catches every exception in its loop, BaseException included",
            remedy="let it catch Exception only",
        )
    )


def _conclude(
    recording: Recording, watch: Watch, capture: CaptureModules, compiles: Compiles
) -> None:
    """Put on record of which step and sizes the graphs are, and what no finding covers."""
    gpu_here = recording.device.type == "cuda"
    recording.shapes = capture.shapes if capture.used else watch.shapes
    latest = not capture.used and compiles.settle(timed=gpu_here) and gpu_here and compiles.again
    _describe(recording, watch, by_modules=capture.used)
    recording.captured.runs.latest = latest
    recording.warnings += within_step(recording.captured)
    recording.warnings += between_steps(recording.captured) or _changes(
        watch, capture, compiles, latest
    )


def _describe(recording: Recording, watch: Watch, *, by_modules: bool) -> None:
    """Say where the graphs come from, and what therefore no finding covers."""
    found, gpu_here = recording.captured, recording.device.type == "cuda"
    if not found.graphs:
        note = f"{_no_graphs(watch)}: findings are of an inferred graph, advice only"
        recording.warnings.append(Warning_(code="no-graphs", message=note))
        return
    found.device_is_assumed = not gpu_here
    recording.warnings += capture_warnings(found)
    if by_modules:
        code, note = (
            "modules-only",
            f"graphs are of the modules that the step calls ({_names(watch)})",
        )
    else:
        code, note = "regions-only", "graphs are of the regions that the script compiles itself"
        if gpu_here:
            recording.options = replace(recording.options, mode="compile")
        else:
            recording.warnings.append(Warning_(code="mode-needs-gpu", message=MODE_NEEDS_GPU))
    outside = "what the step does outside of them (data, optimizer) no finding covers"
    recording.warnings.append(Warning_(code=code, message=f"{note}; {outside}"))


def _changes(
    watch: Watch, capture: CaptureModules, compiles: Compiles, latest: bool
) -> list[Warning_]:
    """Which step the graphs are of, where modules were given something else in another, or regions
    were compiled again; `latest` says that graphs are then those of the last.
    """
    if capture.used and capture.shapes != watch.shapes:
        before, now = (", ".join(shapes) or "nothing" for shapes in (watch.shapes, capture.shapes))
        note = (
            f"sizes vary between steps: modules were given {before}, then {now}; graphs, findings "
            "and plans are of the latter alone"
        )
        return [Warning_(code=CODE, message=note)]
    if not compiles.again:
        return []
    note = (
        "regions were compiled again after the first step, for sizes or values that changed; "
        f"graphs, findings and plans are of the {'last' if latest else 'first'} time alone"
    )
    return [Warning_(code="recompiled", message=note)]


def _names(watch: Watch) -> str:
    return ", ".join(dict.fromkeys(type(module).__name__ for module in watch.modules))


def _no_graphs(watch: Watch) -> str:
    if watch.modules:
        return f"nothing of {_names(watch)} could be compiled"
    return "the step calls no module and compiles nothing"


def _check_complete(recording: Recording, watch: Watch, completed: int, *, stopped: bool) -> None:
    """Raise `UsageError` for a script without marks, `WorkloadError` for one without enough.

    One that we have `stopped` had enough, however few there was anything to do with.
    """
    options, gpu_here = recording.options, recording.device.type == "cuda"
    if completed == 0:
        raise UsageError("the script marked no step", where=options.target, remedy=NO_MARK)
    steps, why = TO_CAPTURE, f"{TO_CAPTURE} to capture"
    if gpu_here:
        steps += options.warmup + options.steps + TRACED_STEPS
        why += f", {options.warmup} to warm up, {options.steps} to time, {TRACED_STEPS} to trace"
    done = recording.trace is not None if gpu_here else bool(recording.captured.graphs)
    if done:
        return
    if completed < steps and not stopped:
        raise WorkloadError(
            f"the script ended after {counted(completed, 'step')}",
            where=options.target,
            why=f"up to {steps} are needed: {why}",
            remedy="let it run for longer, or ask for fewer with --steps and --warmup",
        )
    raise WorkloadError(
        "nothing of the step can be looked at",
        where=options.target,
        why=f"{_no_graphs(watch)}, and without a GPU there is no trace",
        remedy="run it where there is a GPU, or give a factory",
    )
