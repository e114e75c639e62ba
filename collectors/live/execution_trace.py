"""One step under the execution trace observer and the profiler at once, joined by op ids.

The step is one of its own: the observer writes every op down, which stretches the host's time, and
the timed traces are recorded without it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ExecutionTraceObserver, profile, record_function

from advisor.model.execution import ExecutionTrace
from advisor.model.range_names import CAPTURED_RANGE, STEP_PREFIX
from advisor.model.trace import Trace
from collectors import read_trace
from collectors.execution_trace import read_execution_trace
from collectors.live.loss_calls import LossOfParts
from collectors.live.recorder import synchronize
from collectors.live.workload import Workload

STEP_RANGE = f"{STEP_PREFIX}0"


@dataclass(frozen=True)
class Execution:
    """What one observed step did; `decomposed` are the overloads that ran as other ops.

    `timeline` is the profiler's trace of the same run, None where none was asked for.
    """

    trace: ExecutionTrace
    timeline: Trace | None
    decomposed: frozenset[str]


def record_execution(
    step: Callable[[], object], path: Path, device: str, *, timeline: bool = True
) -> Execution:
    """Run a step, observed; the execution trace is written to `path` and read."""
    observer = _Quiet()
    observer.register_callback(str(path))
    recorded = None
    if timeline:
        recorded = _profiled(step, path, observer)
    else:
        _observed(step, observer)
    trace = read_execution_trace(path)
    return Execution(trace, recorded, decomposed_ops(trace, device))


def _observed(step: Callable[[], object], observer: ExecutionTraceObserver) -> None:
    observer.start()
    try:
        with record_function(STEP_RANGE):
            step()
    finally:
        observer.stop()
        observer.unregister_callback()


def _profiled(step: Callable[[], object], path: Path, observer: ExecutionTraceObserver) -> Trace:
    timeline = path.with_name(f"{path.name}.timeline.json")
    with (
        profile(
            record_shapes=True,
            with_stack=True,
            with_modules=True,
            execution_trace_observer=observer,
        ) as profiler,
        record_function(STEP_RANGE),
    ):
        step()
        synchronize()
    try:
        profiler.export_chrome_trace(str(timeline))
        return read_trace(timeline)
    finally:
        timeline.unlink(missing_ok=True)


def decomposed_ops(trace: ExecutionTrace, device: str) -> frozenset[str]:
    """The overloads of the trace without a kernel for the device: they run as other ops.

    All that the dispatcher does not know are taken to do their work themselves.
    """
    has_kernel = getattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", None)
    has_op = getattr(torch._C, "_dispatch_has_kernel", None)
    if has_kernel is None or has_op is None:
        return frozenset()
    key = {"cuda": "CUDA", "cpu": "CPU"}.get(device, "CPU")
    names = {op.overload for op in trace.ops if op.schema}
    return frozenset(name for name in names if has_op(name) and not has_kernel(name, key))


@contextlib.contextmanager
def marked(workload: Workload) -> Iterator[Callable[[], Any]]:
    """A step whose compiled part runs inside a range of its own, so that it can be told apart."""
    part = workload.part
    if not isinstance(part, nn.Module):
        yield workload.step_of(_in_range)
        return
    loss = workload.loss
    if isinstance(loss, LossOfParts) and loss.goes_through(part):
        # The loss is what is compiled: nothing calls the model.
        yield replace(workload, loss=_in_range(loss)).step_of()
        return
    open_: list[Any] = []

    def enter(*_: Any) -> None:
        open_.append(record_function(CAPTURED_RANGE))
        open_[-1].__enter__()

    def leave(*_: Any) -> None:
        open_.pop().__exit__(None, None, None)

    # Hooks, not a wrapper: a loss may look at the model's attributes.
    hooks = (
        part.register_forward_pre_hook(enter),
        part.register_forward_hook(leave, always_call=True),
    )
    try:
        yield workload.step_of()
    finally:
        for hook in hooks:
            hook.remove()


def _in_range(part: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with record_function(CAPTURED_RANGE):
            return part(*args, **kwargs)

    return run


class _Quiet(ExecutionTraceObserver):
    """The observer without its remarks on standard error."""

    def start(self) -> None:
        with _silent():
            super().start()

    def stop(self) -> None:
        with _silent():
            super().stop()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Nothing reaches standard error: the observer reports from C++ that it starts and stops."""
    held = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(held, 2)
        os.close(held)
        os.close(nowhere)
