"""How a child process ended, in words: the line of its standard error that says most."""

from __future__ import annotations

import re
import signal

# Of a CUDA error only the first line tells what happened; advice for debugging follows it.
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b")
_MOST_CHARACTERS = 300


def how_it_ended(status: int, errors: str) -> str:
    """A process that gave no result, by its `Popen.returncode` and what it wrote on stderr."""
    names = {number.value: number.name for number in signal.Signals}
    ended = (
        f"was killed by signal {-status} ({names.get(-status, 'unknown')})"
        if status < 0
        else f"ended with status {status}"
    )
    said = last_words(errors)
    return f"the kernel's process {ended}{f': {said}' if said else ''}"


def last_words(errors: str) -> str:
    """The last error that was raised, else the last line; "" where there is none."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or [""])[-1][:_MOST_CHARACTERS]
