"""The child that times kernels: begun early, asked in turn, replaced when one plan ended it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from advisor.errors import IllegalFusionError
from advisor.model.launch import LaunchConfig
from advisor.verify.timing_process import LAUNCH_LIMIT_S, LIMIT_S, TimingProcess, TimingRequest
from tests.verify.timing_child import LATE_S

CONFIG = LaunchConfig(block_rows=1, num_warps=4, num_stages=1)


@pytest.fixture
def process() -> Iterator[TimingProcess]:
    with TimingProcess("cpu", "tests.verify.timing_child") as held:
        yield held


def pid(
    process: TimingProcess,
    plan: str = "any",
    limit_s: float = LIMIT_S,
    launch_limit_s: float = LAUNCH_LIMIT_S,
) -> int:
    """The child that answered: it gives its own number for a time."""
    request = TimingRequest(plan=plan, sources={}, usable=(CONFIG,), bytes_moved=8)
    return process.time(request, limit_s, launch_limit_s).timing.kernel.median_ns


def test_a_child_that_was_begun_is_the_one_that_answers_and_is_not_waited_for(
    process: TimingProcess,
) -> None:
    started = time.monotonic()
    process.begin()
    process.begin()
    assert time.monotonic() - started < LATE_S
    assert pid(process) == pid(process)


def test_a_crash_costs_its_plan_and_the_next_has_a_child_again(process: TimingProcess) -> None:
    first = pid(process)
    with pytest.raises(IllegalFusionError, match=r"timed alone: .*SIGSEGV"):
        pid(process, "crash")
    assert pid(process) != first


def test_a_plan_without_an_end_costs_its_limit(process: TimingProcess) -> None:
    with pytest.raises(IllegalFusionError, match=r"no end within 0\.1 s"):
        pid(process, "loop", limit_s=0.1)
    assert pid(process) > 0


def test_a_launch_without_an_end_costs_less_than_compiling_may(process: TimingProcess) -> None:
    with pytest.raises(IllegalFusionError, match=r"timed alone, it has no end within 0\.1 s"):
        pid(process, "endless", launch_limit_s=0.1)
    assert pid(process, "slow to compile", launch_limit_s=0.1) > 0
    with pytest.raises(IllegalFusionError, match=r"timed alone, it has no end within 0\.2 s"):
        pid(process, "endless", limit_s=0.2)


def test_a_child_that_cannot_start_is_said() -> None:
    with (
        TimingProcess("cpu", "tests.verify.no_such_module") as broken,
        pytest.raises(IllegalFusionError, match="no_such_module"),
    ):
        pid(broken)
