"""Patches to download, made by a child with limits: the server itself generates no code."""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from advisor.errors import UnreadableError, UsageError
from advisor.store.directory import RunDirectory
from advisor.store.files import read_bounded
from dashboard.timelines import run_limited

MAX_SECONDS, MAX_BYTES = 60, 64 << 20
_KEPT, _MAX_ERROR_BYTES = 8, 2_000
Command = Callable[[Path, str | None, Path], Sequence[str]]


def cli_patch(run: Path, only: str | None, place: Path) -> Sequence[str]:
    """The command line of the child; names and the run can never be options."""
    options = [] if only is None else [f"--only={only}"]
    return [sys.executable, "-m", "advisor.cli.main", "patch", *options, f"--out={place}",
            "--", str(run)]  # fmt: skip


class Patches:
    """Archives of what runs kept, one made at a time, the last ones held; safe from any thread."""

    def __init__(self, command: Command = cli_patch) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[str, str | None, int, int], bytes] = OrderedDict()

    def archive(self, run: RunDirectory, only: str | None = None) -> bytes:
        """The zip file of what a run kept, or of what it kept for one finding.

        Raises `UsageError` where there is none, `UnreadableError` where it cannot be made.
        """
        applied = run.applied()
        if applied is None or applied.set.verdict != "kept":
            raise UsageError("nothing is kept in this run, so there is no patch", where=run.id)
        status = (run.path / "applied.json").stat()
        key = (str(run.path), only, status.st_mtime_ns, status.st_size)
        with self._lock:
            if key not in self._made:
                self._made[key] = self._make(run, only)
            self._made.move_to_end(key)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
            return self._made[key]

    def _make(self, run: RunDirectory, only: str | None) -> bytes:
        with tempfile.TemporaryDirectory(prefix="fusion-patch-") as folder:
            place = Path(folder) / "patch.zip"
            status, _, said = run_limited(self._command(run.path, only, place), MAX_SECONDS)
            if status != 0:
                why = said[-_MAX_ERROR_BYTES:].decode(errors="replace").strip()
                raise UnreadableError("the patch cannot be made", where=run.id, why=why)
            return read_bounded(place, MAX_BYTES)
