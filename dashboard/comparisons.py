"""Two runs compared by a child with limits: the server itself judges no launches."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec

from advisor.errors import EXIT_OK, EXIT_UNREADABLE, UnreadableError
from advisor.model.base import decode
from advisor.model.comparison import ReportComparison
from advisor.store.directory import RunDirectory
from dashboard.timelines import run_limited

MAX_SECONDS, MAX_BYTES = 60, 64 << 20
_KEPT, _AT_ONCE, _MAX_ERROR_BYTES = 16, 2, 2_000
_TOLD = {EXIT_OK, EXIT_UNREADABLE}  # of the same work, and not
Key = tuple[str, str, tuple[str, ...], tuple[tuple[int, int], ...]]
Command = Callable[[Path, Path, Sequence[str]], Sequence[str]]


def cli_compare(before: Path, after: Path, accepted: Sequence[str]) -> Sequence[str]:
    """The command line of the child; paths of runs can never be options."""
    options = [f"--accept={name}" for name in accepted]
    return [sys.executable, "-m", "advisor.cli.main", "compare", "--format=json", *options,
            "--", str(before), str(after)]  # fmt: skip


class Comparisons:
    """What `fusion-advisor compare` says of two runs of a store, the last ones held; safe from any
    thread.
    """

    def __init__(self, command: Command = cli_compare) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(_AT_ONCE)
        self._made: OrderedDict[Key, Future[ReportComparison]] = OrderedDict()

    def of(
        self, before: RunDirectory, after: RunDirectory, accepted: Sequence[str] = ()
    ) -> ReportComparison:
        """The comparison, with what lost and what the change of the step is made of.

        The first to ask for a pair has it made, at most two at a time; others of the same pair
        wait for it, and one that is there already is given at once. Raises `UnreadableError` where
        the child fails or takes too long: so does everybody who waited, but not who asks later.
        """
        key = (before.id, after.id, tuple(accepted), (*_stamps(before), *_stamps(after)))
        with self._lock:
            found = self._made.get(key)
            first = found is None
            if found is None:
                found = self._made[key] = Future()
            self._made.move_to_end(key)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        if first:
            self._fill(found, key, before, after, accepted)
        return found.result()

    def _fill(
        self,
        future: Future[ReportComparison],
        key: Key,
        before: RunDirectory,
        after: RunDirectory,
        accepted: Sequence[str],
    ) -> None:
        """Settle `future` whatever happens, as others wait for it; a failure is not held."""
        try:
            with self._slots:
                future.set_result(self._make(before, after, accepted))
        except BaseException as error:
            with self._lock:
                self._made.pop(key, None)
            future.set_exception(error)
            raise

    def _make(
        self, before: RunDirectory, after: RunDirectory, accepted: Sequence[str]
    ) -> ReportComparison:
        command = self._command(before.path, after.path, accepted)
        status, data, said = run_limited(command, MAX_SECONDS, output=True)
        if status not in _TOLD or len(data) > MAX_BYTES or not data:
            why = said[-_MAX_ERROR_BYTES:].decode(errors="replace").strip()
            raise UnreadableError("their launches cannot be compared", where=after.id, why=why)
        for run in (before, after):
            # Where the store lies is nothing that its viewers are told.
            data = data.replace(msgspec.json.encode(str(run.path))[1:-1], run.id.encode())
        return decode(data, ReportComparison, f"{before.id} and {after.id}")


def _stamps(run: RunDirectory) -> list[tuple[int, int]]:
    """Times and sizes of what a comparison reads; absent files have none."""
    found = []
    for name in ("report.json", "step.json"):
        path: Path = run.path / name
        if path.exists():
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size))
    return found
