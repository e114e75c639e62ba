"""`RunStore`: a directory of runs, each found by an id that is never a path."""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from pathlib import Path

from advisor.errors import UnreadableError, UsageError
from advisor.store.directory import RunDirectory
from advisor.store.files import sync_directory

DEFAULT_ROOT = Path("runs")
MAX_ID = 120  # letters
RUN_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_ID - 1}}}")
_CREATE_ATTEMPTS = 16


class RunStore:
    """The runs below `root`; ids are checked and resolved here and nowhere else."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def create(self, target: str, *, when: datetime | None = None) -> RunDirectory:
        """A new, empty run directory; its id sorts by time and names the target.

        Raises `UnreadableError` where the store cannot be written.
        """
        try:
            above = tuple(p for p in (self.root, *self.root.parents) if not p.exists())
            self.root.mkdir(parents=True, exist_ok=True)
            for _ in range(_CREATE_ATTEMPTS):
                path = self.root / new_run_id(target, when or datetime.now())
                if not path.exists():
                    path.mkdir()
                    sync_directory(self.root)
                    return RunDirectory(path, (path, *above))
        except OSError as error:
            raise UnreadableError(
                "cannot create a run", where=str(self.root), why=error.strerror or str(error)
            ) from error
        raise UnreadableError("cannot create a run", where=str(self.root), why="its names are used")

    def runs(self) -> tuple[RunDirectory, ...]:
        """All runs, the newest id first; other files and symbolic links are not runs."""
        if not self.root.is_dir():
            return ()
        names = sorted((p.name for p in self.root.iterdir() if _is_run(p)), reverse=True)
        return tuple(RunDirectory(self.root / name) for name in names)

    def unnamed(self) -> tuple[str, ...]:
        """Folders that hold a run and whose names are no ids, so that `runs` leaves them out."""
        if not self.root.is_dir():
            return ()
        return tuple(
            sorted(p.name for p in self.root.iterdir() if _holds_run(p) and not _is_run(p))
        )

    def open(self, run_id: str) -> RunDirectory:
        """The run with this id; `UsageError` if malformed, `UnreadableError` if unknown."""
        if not RUN_ID.fullmatch(run_id):
            raise UsageError(
                f"{run_id[:40]!r} is not a run id", remedy="an id is a name in the run store"
            )
        path = self.root / run_id
        if not _is_run(path):
            raise UnreadableError("no such run", where=run_id, remedy="it may have been removed")
        return RunDirectory(path)


def new_run_id(target: str, when: datetime) -> str:
    """A sortable id such as `20261129-173000-transformer_block-ab12`."""
    last = target.rstrip("/").rsplit("/", 1)[-1].removesuffix(".py").rsplit(":", 1)[-1]
    slug = re.sub(r"[^A-Za-z0-9]+", "_", last).strip("_")[:40] or "run"
    return f"{when:%Y%m%d-%H%M%S}-{slug}-{secrets.token_hex(2)}"


def _is_run(path: Path) -> bool:
    return bool(RUN_ID.fullmatch(path.name)) and _holds_run(path)


def _holds_run(path: Path) -> bool:
    files = (path / "run.json", path / "report.json")
    return not path.is_symlink() and any(file.is_file() for file in files)
