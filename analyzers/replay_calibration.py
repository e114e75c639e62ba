"""The host's clean time from a profiled step: what recording costs, and one factor for the rest.

Recording stretches the host: each operator costs time of its own (more with Python stacks), and
whatever runs between is slower too (callbacks, tracing of the driver's calls, cold caches). The
first is taken off operator by operator (`OVERHEAD`), the rest is one factor on all host time. Where
a clean step was timed, the factor is the one that reproduces it, and has to be a possible one; else
it is the usual one, with the whole possible range as its interval.

The constants are fitted to one half of recorded workloads and scored on the other: see
`benchmarks/replay.md`, which `benchmarks/replay.py` writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from analyzers.replay import Step, replay
from analyzers.replay_step import Overhead

OVERHEAD = Overhead(op_ns=250, stacked_op_ns=3_250, call_ns=0)
# Clean over profiled host time, after that: usual, and what recorded steps ever reach.
USUAL_SCALE = 0.65
LEAST_SCALE, MOST_SCALE = 1 / 3, 1.0
# Whole host-bound steps: the profiled one takes up to 2.1 times the clean one.
CAUTIOUS_SCALE = 1 / 2.1
# Another host, another run: the factor of one step is known to this share.
SCALE_SHARE = 0.1
# A replay that misses the clean step by more does not say what waits for what.
TOLERANCE = 0.05
_ROUNDS = 12


@dataclass(frozen=True)
class HostScale:
    """The factor on profiled host time (low, mid, high), and the step replayed with the middle."""

    low: float
    mid: float
    high: float
    replayed_ns: int
    clean_ns: int | None = None

    @property
    def error(self) -> float | None:
        """By which share the replay misses the clean step; None where none was timed."""
        return None if self.clean_ns is None else self.replayed_ns / self.clean_ns - 1

    @property
    def holds(self) -> bool:
        """Whether the replay reproduces the clean step, if one was timed."""
        return self.error is None or abs(self.error) <= TOLERANCE


def host_scale(step: Step, clean_ns: int | None) -> HostScale:
    """The factor by which a step's host time is to be scaled."""
    if clean_ns is None:
        usual = round(replay(step, USUAL_SCALE).step_ns)
        return HostScale(LEAST_SCALE, USUAL_SCALE, MOST_SCALE, usual)
    low, high = LEAST_SCALE, MOST_SCALE
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        if replay(step, middle).step_ns < clean_ns:
            low = middle
        else:
            high = middle
    best = (low + high) / 2
    return HostScale(
        best * (1 - SCALE_SHARE),
        best,
        best * (1 + SCALE_SHARE),
        round(replay(step, best).step_ns),
        clean_ns,
    )
