"""Timelines of runs, made by a child with limits at the first look and kept in the user's cache.

The server itself never reads a trace: it maps the arrays that the child wrote.
"""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from advisor.errors import AdvisorError
from advisor.folders import cache_folder
from advisor.store.directory import RunDirectory
from advisor.store.timeline import TIMELINE_VERSION, Timeline, drop_oldest, open_timeline

MAX_SECONDS, MAX_MEMORY_BYTES, MAX_FILE_BYTES = 600, 16 << 30, 4 << 30
_KEPT_ON_DISK, _KEPT_OPEN, _AT_ONCE = 32, 8, 2
_MAX_ERROR_BYTES = 2_000
Build = Callable[[Path, Path], Sequence[str]]


class State(NamedTuple):
    """Where a timeline stands; `text` says why there is none."""

    kind: Literal["ready", "building", "failed", "absent"]
    timeline: Timeline | None = None
    text: str = ""


def cli_build(run: Path, place: Path) -> Sequence[str]:
    """The command line of the child."""
    return [sys.executable, "-m", "advisor.pipeline.timeline", str(run), str(place)]


class Timelines:
    """Opens timelines, has them made, and forgets those unused; safe from any thread."""

    def __init__(self, folder: Path | None = None, build: Build = cli_build) -> None:
        self._folder = folder or cache_folder() / "timelines"
        self._build = build
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(_AT_ONCE)
        self._open: OrderedDict[Path, Timeline] = OrderedDict()
        self._building: set[Path] = set()
        self._failed: dict[Path, str] = {}

    def of(self, run: RunDirectory) -> State:
        """The timeline of a run; the first call for a trace starts the making of it."""
        place = self._place(run)
        if place is None:
            return State("absent")
        with self._lock:
            if place in self._open:
                self._open.move_to_end(place)
                return State("ready", self._open[place])
            if place in self._building:
                return State("building")
            if place in self._failed:
                return State("failed", text=self._failed[place])
            if not place.is_dir():
                self._building.add(place)
                work = (run.path, place)
                threading.Thread(target=self._make, args=work, daemon=True).start()
                return State("building")
        return self._opened(place)

    def _opened(self, place: Path) -> State:
        try:
            timeline = open_timeline(place)
        except AdvisorError as error:
            return State("failed", text=error.line())
        with self._lock:
            self._open[place] = timeline
            while len(self._open) > _KEPT_OPEN:
                self._open.popitem(last=False)
        return State("ready", timeline)

    def _place(self, run: RunDirectory) -> Path | None:
        """Where the timeline of these very files lies; None where the run has no trace."""
        facts = [str(TIMELINE_VERSION)]
        for path in run.traces():
            status = path.stat()
            facts.append(f"{path.resolve()} {status.st_mtime_ns} {status.st_size}")
        if len(facts) == 1:
            return None
        return self._folder / hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]

    def _make(self, run: Path, place: Path) -> None:
        why = "the reader did not start"
        try:
            with self._slots:
                why = _run(self._build(run, place))
                if not why:
                    drop_oldest(self._folder, _KEPT_ON_DISK)
        except OSError as error:
            why = str(error)
        finally:
            with self._lock:
                self._building.discard(place)
                if why:
                    self._failed[place] = why


def _run(command: Sequence[str]) -> str:
    """Run the child within its limits; why it failed, empty if it did not."""
    status, _, said = run_limited(command, MAX_SECONDS)
    if status is None:
        return f"reading the trace took more than {MAX_SECONDS} s"
    if status == 0:
        return ""
    lines = said[-_MAX_ERROR_BYTES:].decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"the reader ended with status {status}"


class Ended(NamedTuple):
    """How a child ended, None if it took too long, and what it wrote."""

    status: int | None
    output: bytes
    errors: bytes


def run_limited(command: Sequence[str], seconds: float, *, output: bool = False) -> Ended:
    """Run a child within limits of memory, files and time; its `output` only where it is asked."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if output else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    limit_memory(child.pid)
    try:
        written, said = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return Ended(None, b"", f"it took more than {seconds:g} s".encode())
    return Ended(child.returncode, written or b"", said)


def limit_memory(pid: int) -> None:
    """Bound what a child may hold and write; one that is already gone needs no bound."""
    try:
        resource.prlimit(pid, resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
        os.setpriority(os.PRIO_PROCESS, pid, 10)
    except (ProcessLookupError, PermissionError):
        return
