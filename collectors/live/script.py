"""A script run as if by `python script.py`, its marked steps handed to a listener.

The script is unchanged but for its marks: `advisor.step()`, or the `step()` of a `torch.profiler`
that it uses already. That profiler is held back while we listen: only one can record.
"""

from __future__ import annotations

import builtins
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import profile

from advisor import steps
from collectors.live.failures import BY_ITSELF, failure
from collectors.live.target import Target, no_such_file


class StepListener(steps.Listener, Protocol):
    """Also told of steps of the script's own profiler, which count while nothing else does."""

    def enter_profiled(self) -> None:
        """A step of the script's profiler begins."""

    def leave_profiled(self, completed: bool) -> None:
        """It ends."""


class ScriptStopped(BaseException):
    """Raised in a mark when enough steps have run; `finally` and `with` of the script still run."""


def run_script(target: Target, name: str, listener: StepListener, *, seed: int = 0) -> bool:
    """Run a script until the listener raises `ScriptStopped`; False if it came to its own end.

    `name` is how the user wrote the target. Raises `UsageError` if there is no such file,
    `WorkloadError` for what the script raises, `sys.exit` with a status included.
    """
    path = target.file
    if path is None or not path.is_file():
        raise no_such_file(target.place)
    torch.manual_seed(seed)
    with _as_main(path, target.arguments) as main, _profiler_marks(listener):
        steps.listen(listener)
        try:
            exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)
        except ScriptStopped:
            return True
        except SystemExit as error:
            if error.code not in (None, 0):
                raise failure("the script failed", error, where=name, remedy=BY_ITSELF) from error
        except Exception as error:
            place = _where(error, path, name)
            raise failure("the script failed", error, where=place, remedy=BY_ITSELF) from error
        finally:
            steps.listen(None)
    return False


def _where(error: Exception, path: Path, name: str) -> str:
    """The line of the script that the error came through, `name` where it did not run at all."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else name


@contextmanager
def _as_main(path: Path, arguments: tuple[str, ...]) -> Iterator[types.ModuleType]:
    """The script as `__main__`, with its own arguments and its folder first on the module path."""
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    main.__dict__["__builtins__"] = builtins
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    sys.modules["__main__"] = main
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield main
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before


@contextmanager
def _profiler_marks(listener: StepListener) -> Iterator[None]:
    """Make profilers of the script record nothing and mark steps instead."""

    def start(self: Any) -> None:
        listener.enter_profiled()

    def step(self: Any) -> None:
        listener.leave_profiled(True)
        listener.enter_profiled()

    def stop(self: Any) -> None:
        listener.leave_profiled(False)

    original = {name: getattr(profile, name) for name in ("start", "step", "stop")}
    for function in (start, step, stop):
        setattr(profile, function.__name__, function)
    try:
        yield
    finally:
        for name, method in original.items():
            setattr(profile, name, method)
