"""How long an application may take: what is begun must end in time for the last measurement."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from advisor.model.actions import ActionKind
from advisor.pipeline.measure import STEP_ROUNDS, Variant
from advisor.units import NS_PER_S

# A whole step is compiled and measured; tuning matrix kernels compiles each many times.
COMPILATIONS = 1.5
TUNING_COMPILATIONS = 4.5
# At the end what won is compiled and measured. A training step is compiled once more, its kernels
# known by then, and trained by three copies; one that drops is compiled without, as it is and as it
# came. On an H200 four training steps of 14 to 21 s of compilation took 1.4 to 1.7 compilations.
AT_THE_END, FOR_LOSSES, FOR_DROPOUT = 1.0, 0.75, 0.75
# A timed step follows one that is not; profiling, checking results and reading traces cost about as
# much as the timed steps, twice over.
MEASURED_STEPS = 9 * STEP_ROUNDS
OVERHEAD_S = 3.0
# What runs in the model and is not at its end after so long never ends.
LEAST_LIMIT_S = 120.0
PATIENCE = 5.0


@dataclass
class Budget:
    """`seconds` from `started` (both by the clock, s); None is no limit.

    `reserved_s` is kept for the final measurement, `compile_s` and `step_s` are those of the plain
    step, `longest_s` of the trials of kernels so far; 0 until they are known.
    """

    seconds: float | None
    started: float
    clock: Callable[[], float] = time.monotonic
    reserved_s: float = 0.0
    compile_s: float = 0.0
    step_s: float = 0.0
    longest_s: float = 0.0

    def late(self, expected_s: float = 0.0) -> bool:
        """Whether something that takes so long would not leave time for the end."""
        if self.seconds is None:
            return False
        return self.clock() + expected_s + self.reserved_s > self.started + self.seconds

    def reserve_for(self, plain: Variant, *, trains: bool, draws: bool = False) -> None:
        """Learn from the plain step what compiling, a trial and the final measurement take."""
        self.compile_s = plain.compile_ns / NS_PER_S
        self.step_s = plain.step_ns / NS_PER_S
        times = AT_THE_END + (FOR_LOSSES if trains else 0.0) + (FOR_DROPOUT if draws else 0.0)
        self.reserved_s = times * (self.compile_s + self._measuring_s)

    @property
    def _measuring_s(self) -> float:
        return OVERHEAD_S + MEASURED_STEPS * self.step_s

    def action_s(self, kind: ActionKind) -> float:
        """What trying an action takes, about."""
        times = TUNING_COMPILATIONS if kind == "autotune" else COMPILATIONS
        return times * self.compile_s + self._measuring_s

    def kernels_s(self) -> float:
        """What trying kernels takes: as long as the longest time before, at first a guess."""
        return self.longest_s or self.compile_s / 2 + self._measuring_s

    def limit_s(self, expected_s: float) -> float:
        """After how long something that was expected to take so long is taken for endless."""
        return LEAST_LIMIT_S + PATIENCE * expected_s
