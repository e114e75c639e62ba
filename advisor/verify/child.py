"""A child process that answers a line at a time: hear it within a limit, end it and its own."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time


def line_of(descriptor: int, limit_s: float) -> bytes:
    """One line of a child's answers, empty if it ended; raises `TimeoutError` after `limit_s`."""
    line, deadline = b"", time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            if not (part := os.read(descriptor, 1 << 16)):
                return b""
            line += part
    return line


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a child that leads a process group, and all in it."""
    with contextlib.suppress(ProcessLookupError):  # already gone with all its children
        os.killpg(process.pid, signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a child, wait for it and close the pipes to it."""
    kill(process)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        # A job may still be buffered for a child that is gone.
        with contextlib.suppress(BrokenPipeError):
            if pipe is not None:
                pipe.close()
