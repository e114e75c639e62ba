"""Leads a script through phases (warm-up, clean steps, traced steps), then stops it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NoReturn

from collectors.live.script import ScriptStopped

# A script may catch what stops it, once or twice in earnest; a loop that always does is endless.
MOST_STOPS = 8


class ScriptPhase:
    """Some steps in a row with the same purpose; what a phase does not care for does nothing."""

    def begin(self, undo: ExitStack) -> int:
        """Called before the first step; how many steps the phase takes, 0 to be left out.

        What is pushed on `undo` is undone after the last step, or when the script ends early.
        """
        raise NotImplementedError

    def enter(self) -> None:
        """A step begins."""

    def leave(self, completed: bool) -> None:
        """A step ends; only completed ones count."""

    def end(self) -> None:
        """The last step has ended, and what `begin` did is undone."""


class Conductor:
    """A listener that gives the steps of a script to one phase after the other.

    A script that goes on after it was stopped several times is left to `abandon`, which must not
    return and cannot raise: the script would catch that too.
    """

    def __init__(self, phases: Sequence[ScriptPhase], abandon: Callable[[], NoReturn]) -> None:
        self._phases = list(phases)
        self._abandon = abandon
        self._phase: ScriptPhase | None = None
        self._undo = ExitStack()
        self._left = 0
        self._open = False
        self._marked = False
        self._stops = 0
        self.completed = 0

    def enter(self) -> None:
        """A step marked by `advisor.step()` begins; from now on only those count."""
        if not self._marked and self._open:
            self._leave(False)
        self._marked = True
        self._enter()

    def leave(self, completed: bool) -> None:
        """A marked step ends."""
        self._leave(completed)

    def enter_profiled(self) -> None:
        """A step of the script's own profiler begins."""
        if not self._marked:
            self._enter()

    def leave_profiled(self, completed: bool) -> None:
        """A step of the script's own profiler ends."""
        if not self._marked:
            self._leave(completed)

    def close(self) -> None:
        """The script has ended: undo what the present phase has begun."""
        self._undo.close()

    def _enter(self) -> None:
        if self._phase is None:
            self._next()
        if self._phase is not None:
            self._phase.enter()
            self._open = True

    def _leave(self, completed: bool) -> None:
        if not self._open or self._phase is None:
            return
        self._open = False
        self._phase.leave(completed)
        self.completed += completed
        self._left -= completed
        if self._left == 0:
            phase, self._phase = self._phase, None
            self._undo.close()
            phase.end()
            self._next()

    def _next(self) -> None:
        """Begin the next phase that has steps; without one, stop the script."""
        while self._phases:
            phase = self._phases.pop(0)
            self._left = phase.begin(self._undo)
            if self._left > 0:
                self._phase = phase
                return
        self._stops += 1
        if self._stops > MOST_STOPS:
            self._abandon()
        raise ScriptStopped


class Repeat(ScriptPhase):
    """A phase of plain steps, of which nothing is wanted but that they run."""

    def __init__(self, steps: int, announce: Callable[[], None]) -> None:
        self._steps, self._announce = steps, announce

    def begin(self, undo: ExitStack) -> int:
        """Announce the phase."""
        self._announce()
        return self._steps
