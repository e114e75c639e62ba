"""Runs a job in a child process and says how it ended. Needs no torch: user code is the child's.

The child leads a process group. Whatever ends it (its own error, a signal, Ctrl-C here), the whole
group goes with it, and the reason is one error.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from advisor.errors import WorkloadError
from advisor.model.run import Emit
from advisor.pipeline.job import (
    Ended,
    Failed,
    Happened,
    Interrupted,
    Job,
    JobError,
    Message,
    Watched,
)
from advisor.pipeline.storage import blame_writing

# The module path is handed over, so that the child finds what the parent found and nothing else.
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from advisor.pipeline.child import main; main()"
)
POLL_S = 0.1
# Shorter than what the dashboard gives a job that it cancels.
GRACE_S = 3.0
READ_BYTES = 1 << 16


@dataclass
class _Watched:
    """The child and what has been heard of it."""

    process: subprocess.Popen[bytes]
    messages: int
    emit: Emit
    output: Callable[[bytes], object]
    stage: str = "start"
    ended: Ended | None = None
    ended_at: float = 0.0
    unread: bytes = b""
    limit_s: float = 0.0
    must_end_at: float | None = None
    line_open: bool = field(default=False)

    def hear(self, data: bytes) -> None:
        """Take in bytes of the message pipe."""
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            message = msgspec.json.decode(line, type=Message)
            if isinstance(message, Happened):
                self.stage = message.stage
                self.emit(
                    message.stage,
                    message.state,
                    plan=message.plan,
                    value=message.value,
                    message=message.message,
                )
            elif isinstance(message, Watched):
                self.limit_s = message.limit_s or 0.0
                within = message.limit_s
                self.must_end_at = None if within is None else time.monotonic() + within
            else:
                self.ended, self.ended_at = message, time.monotonic()

    @property
    def overdue(self) -> bool:
        """Whether what was begun should have ended."""
        return self.must_end_at is not None and time.monotonic() > self.must_end_at

    def pass_on(self, data: bytes) -> None:
        """Take in bytes that the user's code printed."""
        self.line_open = not data.endswith(b"\n")
        self.output(data)


def supervise(
    job: Job,
    emit: Emit,
    output: Callable[[bytes], object],
    *,
    where: str,
    directory: Path | None = None,
) -> None:
    """Run `job` in a child, in `directory` or here; its events go to `emit`.

    `output` gets what the child prints, stdout and stderr in one, as it comes. Raises the error of
    the job as `JobError`, `WorkloadError` naming `where` if the child died, `StorageError` if it
    was killed and has no place to write, `KeyboardInterrupt` if it or we were interrupted.
    """
    kills = oom_kills()
    with _terminable(), _started(job, emit, output, directory) as watched:
        _watch(watched)
        if watched.line_open:
            output(b"\n")
    if isinstance(watched.ended, Failed):
        raise JobError(watched.ended)
    if isinstance(watched.ended, Interrupted):
        raise KeyboardInterrupt
    if watched.ended is None and watched.overdue:
        raise endless(watched.limit_s, watched.stage, where)
    if watched.ended is None:
        if watched.process.returncode < 0:
            # Native code aborts on a full disk; nobody asked it to write there.
            blame_writing("", Path(job.run))
        raise death(watched.process.returncode, watched.stage, where, oom_kills() > kills)


@contextmanager
def _started(
    job: Job, emit: Emit, output: Callable[[bytes], object], directory: Path | None
) -> Iterator[_Watched]:
    """The child; nothing of it is left when the block is left."""
    heard, told = os.pipe()
    leash, held = os.pipe()
    try:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", START, json.dumps(sys.path), str(told), str(leash)),
                msgspec.json.encode(job).decode(),
            ],
            cwd=directory,
            # Unbuffered: what a dying process printed last is what one wants to read.
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            # A terminal would stop a process of another group that reads from it.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(told, leash),
            start_new_session=True,
        )
    finally:
        os.close(told)
        os.close(leash)
    try:
        yield _Watched(process, heard, emit, output)
    finally:
        _end(process)
        for descriptor in (heard, held):
            os.close(descriptor)


def _watch(watched: _Watched) -> None:
    """Pass on what the child says until it is gone, or has finished and does not go."""
    printed = watched.process.stdout
    if printed is None:
        raise ValueError("the child was started without a pipe for its output")
    takers = {watched.messages: watched.hear, printed.fileno(): watched.pass_on}
    with selectors.DefaultSelector() as selector:
        for descriptor in takers:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(POLL_S)
            for key, _ in ready:
                data = os.read(key.fd, READ_BYTES)
                if data:
                    takers[key.fd](data)
                else:
                    selector.unregister(key.fd)
            # Processes that the child left behind hold its pipes open.
            if not ready and _is_gone(watched.process):
                return
            if watched.ended is not None and time.monotonic() > watched.ended_at + GRACE_S:
                return
            if watched.ended is None and watched.overdue:
                return


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child, gently at first, then its group, and reap it."""
    deadline = time.monotonic() + GRACE_S
    if not _is_gone(process):
        # Directly: its own children would complain to it if they were told first.
        process.terminate()
    try:
        while not _is_gone(process) and time.monotonic() < deadline:
            time.sleep(POLL_S / 4)
    finally:
        # Not reaped yet, so the number of the group is still its own.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _is_gone(process: subprocess.Popen[bytes]) -> bool:
    """Whether the child has ended; it is left to be reaped."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM to this process is Ctrl-C while a child runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def endless(limit_s: float, stage: str, where: str) -> WorkloadError:
    """The error of a child that was ended because what it ran had no end."""
    return WorkloadError(
        f"it has no end within {limit_s:.0f} s",
        where=where,
        why=f"during the stage {stage!r}",
        remedy="a kernel loops, or a collective waits for a rank that is not in it",
    )


def death(status: int, stage: str, where: str, out_of_memory: bool) -> WorkloadError:
    """The error of a child that said nothing before it ended; `status` as `Popen.returncode`."""
    during = f"during the stage {stage!r}"
    if status >= 0:
        return WorkloadError(
            f"the workload ended its process with exit code {status}",
            where=where,
            why=f"{during}, by os._exit or from native code",
            remedy="run it once without the advisor",
        )
    number = -status
    name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
    what = f"the workload's process was killed by signal {number} ({name})"
    if number == signal.SIGKILL and out_of_memory:
        return WorkloadError(
            "the machine ran out of memory",
            where=where,
            why=f"the kernel killed the workload's process {during}",
            remedy="use a smaller batch or model, or a machine with more memory",
        )
    remedy = "the stack of Python is above" if number != signal.SIGKILL else "often it is memory"
    return WorkloadError(what, where=where, why=during, remedy=remedy)


def oom_kills() -> int:
    """How many processes the kernel has killed for memory since boot; 0 where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line[:9] == "oom_kill "), 0)
