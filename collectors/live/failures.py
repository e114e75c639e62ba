"""What the user's code may raise, as one clear line: its own error, its exit, memory run out."""

from __future__ import annotations

import re
import sys

import torch

from advisor.errors import WorkloadError

# How PyTorch says that the host has no memory left; it raises a plain RuntimeError.
HOST_MEMORY = ("can't allocate memory", "not enough memory: you tried to allocate")
MOST_SAID = 400
_QUOTED = re.compile(r"Explanation: .*: got (?P<error>\w+\(.*\))")
SMALLER = "use a smaller batch or model"
BY_ITSELF = "run it by itself to see the whole traceback"


def failure(
    what: str, error: BaseException, *, where: str, remedy: str = "", why: str | None = None
) -> WorkloadError:
    """The error of a workload that raised `error` while `what` was going on.

    `why` is what it says, where that is not its first line.
    """
    error = _raised(error)
    line = first_line(error) if why is None else why
    if isinstance(error, torch.OutOfMemoryError):
        return WorkloadError(f"{what}: out of GPU memory", where=where, why=line, remedy=SMALLER)
    if isinstance(error, MemoryError) or any(words in line for words in HOST_MEMORY):
        return WorkloadError(f"{what}: out of host memory", where=where, why=line, remedy=SMALLER)
    if isinstance(error, ModuleNotFoundError):
        remedy = f"install it where fusion-advisor is installed: {sys.prefix}"
    return WorkloadError(what, where=where, why=line, remedy=remedy)


def not_compiled(target: str, error: BaseException) -> WorkloadError:
    """The error of a step that the compiler refused.

    It says what the user's code did wrong, as Dynamo quotes it at its end, else the first line.
    """
    quoted = _QUOTED.search(str(error))
    return failure(
        "the step cannot be compiled",
        error,
        where=target,
        why=first_line(error) if quoted is None else shortened(quoted["error"]),
        remedy="run it by itself, then under torch.compile alone, to see the whole traceback",
    )


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    error = _raised(error)
    if isinstance(error, SystemExit):
        return f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {shortened(lines[0])}" if lines else type(error).__name__


def _raised(error: BaseException) -> BaseException:
    """What was raised in a backend: of that, Dynamo's own error says only which backend it was."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, Exception) and type(error).__module__.startswith("torch."):
        return inner
    return error


def shortened(line: str) -> str:
    """At most as much of a line as can be read as one."""
    return line if len(line) <= MOST_SAID else f"{line[:MOST_SAID]}… ({len(line)} characters)"
