"""torch.profiler around a workload: a trace of some steps, or variants recorded in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from advisor.model.range_names import STEP_PREFIX

# Steps in the trace of one way to run a workload: before and after are recorded alike.
TRACED_STEPS = 4
VARIANT_PREFIX = "fusion_advisor.variant:"


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def record_steps(step: Callable[[], object], path: Path, steps: int) -> None:
    """Write a Kineto trace of `steps` `ProfilerStep#k` ranges, with shapes.

    Without Python stacks, which cost the host several times the step; the graphs know where their
    ops come from.
    """
    with recorded(path, stacks=False, warm_up=step) as range_of:
        for number in range(steps):
            with range_of(number):
                step()


@contextmanager
def recorded(
    path: Path, *, stacks: bool, warm_up: Callable[[], object] | None = None
) -> Iterator[Callable[[int], AbstractContextManager[None]]]:
    """Record the block into `path`; what it yields surrounds step `k`.

    `warm_up` runs while the profiler sets itself up, and is not recorded. Nothing is written if the
    block raises.
    """
    # Not its start and stop: those of a script's own profiler may be held back meanwhile.
    profiler = profile(
        activities=_activities(), record_shapes=True, with_stack=stacks, with_modules=stacks
    )
    profiler.prepare_trace()
    try:
        try:
            if warm_up is not None:
                warm_up()
                synchronize()
        finally:
            profiler.start_trace()
        yield _step_range
    finally:
        profiler.stop_trace()
    profiler.export_chrome_trace(str(path))


@contextmanager
def _step_range(number: int) -> Iterator[None]:
    with record_function(f"{STEP_PREFIX}{number}"):
        yield
        synchronize()


def record_variants(
    variants: Mapping[str, Callable[[], object]],
    path: Path,
    rounds: int,
    before: Callable[[], object] | None = None,
) -> None:
    """Write a trace: every round runs each variant once, in alternating order, in its own range.

    `before` runs before each variant, outside its range (to flush caches, say).
    """
    names = list(variants)
    with profile(activities=_activities()) as profiler:
        for number in range(rounds):
            for name in names if number % 2 == 0 else reversed(names):
                if before is not None:
                    before()
                synchronize()
                with record_function(VARIANT_PREFIX + name):
                    variants[name]()
                    synchronize()
    profiler.export_chrome_trace(str(path))


def _activities() -> list[ProfilerActivity]:
    found = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        found.append(ProfilerActivity.CUDA)
    return found
