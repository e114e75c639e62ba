"""A child process that answers a line at a time: hear it within a limit, end it and its own."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from types import TracebackType
from typing import IO, TypeVar

from advisor.folders import written_by_compilers
from advisor.store.writable import blame_storage, temporary_files
from advisor.verify.endings import how_it_ended, last_words

READY = b"ready\n"
START_LIMIT_S = 120.0
Child = TypeVar("Child", bound="AnsweringChild")


class DiedError(Exception):
    """A child that ended without an answer, and how."""


class AnsweringChild:
    """`python -m WORKER PIPE ARGUMENTS`: answers each line of its standard input by one in PIPE.

    It is started by the first request, or by `begin`; after a request that ended it, by the next.
    It says `READY` when it has imported what it needs. What it prints otherwise is for nobody.
    """

    def __init__(
        self, worker: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._worker, self._arguments, self._environment = worker, arguments, environment
        with temporary_files():
            self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._ready = False

    def __enter__(self: Child) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._errors.close()

    def begin(self) -> None:
        """Start the child and go on: it imports what it needs meanwhile."""
        if self._process is None:
            self._spawn()

    def ask(self, request: bytes, limit_s: float) -> bytes:
        """The answer to a line, from when the child is ready at most `limit_s` seconds later.

        Raises `TimeoutError`, `DiedError` with how the child ended over it, or `StorageError` where
        that was for want of a place to write.
        """
        try:
            self.begin()
            self._await_ready()
            process = self._process
            assert process is not None
            assert process.stdin is not None
            process.stdin.write(request + b"\n")
            process.stdin.flush()
        except TimeoutError:
            self._stop()
            raise
        except BrokenPipeError:
            raise DiedError(self._died()) from None
        return self.hear(limit_s)

    def hear(self, limit_s: float) -> bytes:
        """What the child says next, within `limit_s` seconds: a line, or as many as it has said.

        Raises as `ask` does.
        """
        try:
            line = line_of(self._answers, limit_s)
        except TimeoutError:
            self._stop()
            raise
        if not line:
            raise DiedError(self._died())
        return line

    def _spawn(self) -> None:
        self._errors.seek(0)
        self._errors.truncate()
        answers, told = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._worker, str(told), *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=self._environment,
                pass_fds=(told,),
                start_new_session=True,
            )
        finally:
            os.close(told)
            self._answers, self._ready = answers, False

    def _await_ready(self) -> None:
        if self._ready:
            return
        if line_of(self._answers, START_LIMIT_S) != READY:
            raise BrokenPipeError
        self._ready = True

    def _died(self) -> str:
        """How the child ended, once its pipe is closed."""
        process = self._process
        assert process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
        status = process.returncode
        self._stop()
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace")
        environment = os.environ if self._environment is None else self._environment
        blame_storage(last_words(errors), written_by_compilers(environment))
        return how_it_ended(-signal.SIGKILL if status is None else status, errors)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        end(process)
        os.close(self._answers)


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
