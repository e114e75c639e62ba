"""The parent's side of the child that times kernels: ask with a limit, replace it when it died."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import IO

import msgspec

from advisor.errors import IllegalFusionError
from advisor.model.applied import KernelTiming
from advisor.model.base import Record
from advisor.model.launch import LaunchConfig, Scheme
from advisor.verify.child import end, line_of
from advisor.verify.endings import how_it_ended

WORKER = "advisor.verify._timing_worker"
READY = b"ready\n"
START_LIMIT_S = 120.0
# All configurations of a plan are compiled and run in this time, and eager and Inductor beside it.
LIMIT_S = 180.0


class TimingRequest(Record, frozen=True, kw_only=True):
    """The file of a plan, its kernel files by scheme, and the configurations to choose from."""

    plan: str
    sources: dict[Scheme, str]
    usable: tuple[LaunchConfig, ...]
    bytes_moved: int


class TimingAnswer(Record, frozen=True, kw_only=True):
    """The configuration that is fastest, and its time."""

    config: LaunchConfig
    timing: KernelTiming


class TimingProcess:
    """A child that times one plan after the other; started when it is first needed, or before."""

    def __init__(self, device: str, worker: str = WORKER) -> None:
        self._device, self._worker = device, worker
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._ready = False

    def __enter__(self) -> TimingProcess:
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
        """Start the child and go on: it imports what it needs while others compile."""
        if self._process is None:
            self._spawn()

    def time(self, request: TimingRequest, limit_s: float | None = None) -> TimingAnswer:
        """The answer to a request.

        Raises `IllegalFusionError` with how the child died over it, or that it did not end within
        `limit_s` (else `LIMIT_S`).
        """
        limit_s = LIMIT_S if limit_s is None else limit_s
        try:
            self.begin()
            self._await_ready()
            process = self._process
            assert process is not None
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
            line = line_of(self._answers, limit_s)
        except TimeoutError:
            self._stop()
            raise IllegalFusionError(f"timed alone, it has no end within {limit_s:g} s") from None
        except BrokenPipeError:
            line = b""
        if not line:
            raise IllegalFusionError(f"timed alone: {self._died()}")
        return msgspec.json.decode(line, type=TimingAnswer)

    def _spawn(self) -> None:
        self._errors.seek(0)
        self._errors.truncate()
        answers, told = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._worker, str(told), self._device],
                stdin=subprocess.PIPE,
                # What compilers print is for nobody.
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
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
        return how_it_ended(-signal.SIGKILL if status is None else status, errors)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        end(process)
        os.close(self._answers)
