"""`RunDirectory`: one run on disk, each file by its type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from advisor.errors import InvalidRecordError, RefusedError, UnreadableError, UsageError
from advisor.model.applied import Applied
from advisor.model.attempt import Attempt
from advisor.model.base import MAX_RECORD_BYTES, Record, decode, encode
from advisor.model.forward import Forwards
from advisor.model.plan import FusionPlan
from advisor.model.report import Report
from advisor.model.resources import Cliff
from advisor.model.run import RunInfo
from advisor.model.step_record import StepRecord
from advisor.store.files import make_directory, read_bounded, read_tail, write_atomic
from advisor.store.jobrecord import JobRecord

MAX_SMALL_BYTES = 4 << 20
MAX_LOG_TAIL_BYTES = 64 << 10
GPU_KEY = re.compile(r"[a-z0-9-]{1,40}")
PLAN_ID = re.compile(r"[0-9a-f]{16}")

T = TypeVar("T", bound=Record)


def _holds_run(path: Path) -> bool:
    return (path / "run.json").is_file() or (path / "report.json").is_file()


def _meant(path: Path) -> str:
    """What may be meant by a path that is no run: the run that it is a file of, or one inside."""
    if path.is_file() and _holds_run(path.resolve().parent):
        return f"give the directory that it is in: {path.parent}"
    with suppress(OSError):
        inside = sorted(place.name for place in path.iterdir() if _holds_run(place))
        if inside:
            return f"give one of the runs in it, such as {path / inside[0]}"
    return "give the directory that `fusion-advisor profile` printed"


class RunDirectory:
    """The typed files of one run; every read is bounded, every write atomic.

    `id` names it within a store; a directory given by its path is named by its last component.
    """

    def __init__(self, path: Path, made: tuple[Path, ...] = ()) -> None:
        self.path = path
        self.id = path.name
        self._made = made

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    @classmethod
    def at(cls, path: Path) -> RunDirectory:
        """An existing run by its path; raises `UsageError` if there is none."""
        resolved = path.resolve()
        if not _holds_run(resolved):
            why = "it holds neither run.json nor report.json"
            if not resolved.is_dir():
                why = "it is no directory" if resolved.exists() else "there is no such directory"
            raise UsageError(
                "not a run directory",
                where=str(path),
                why=why,
                remedy=_meant(path),
            )
        return cls(resolved)

    @classmethod
    def create_at(cls, path: Path) -> RunDirectory:
        """A new run in an absent or empty directory; raises `UsageError` if it is in use."""
        resolved = path.resolve()
        try:
            made = tuple(p for p in (resolved, *resolved.parents) if not p.exists())
            resolved.mkdir(parents=True, exist_ok=True)
            used = any(resolved.iterdir())
        except OSError as error:
            raise UsageError(
                "cannot create the run directory",
                where=str(path),
                why=error.strerror or str(error),
                remedy="choose another --out",
            ) from error
        if used:
            raise UsageError(
                "the run directory is not empty",
                where=str(path),
                remedy="choose another --out, or remove it first",
            )
        return cls(resolved, made)

    def discard(self) -> None:
        """Undo the creation of a run that came to nothing: its trace, then directories it made.

        A directory that existed before, or that holds anything else, stays.
        """
        self.trace_path.unlink(missing_ok=True)
        (self.path / ".lock").unlink(missing_ok=True)
        with suppress(OSError):
            for directory in self._made:
                directory.rmdir()

    @property
    def trace_path(self) -> Path:
        """Where the Kineto trace is, or would be."""
        return self.path / "trace.json.gz"

    @property
    def progress_path(self) -> Path:
        """The events of the latest job."""
        return self.path / "progress.jsonl"

    @property
    def log_path(self) -> Path:
        """Everything the latest job printed."""
        return self.path / "log.txt"

    def upload_part(self, number: int) -> Path:
        """Where a file that is uploaded waits to be analysed; several are numbered from 0."""
        return self.path / f"upload{number}.part"

    def uploads(self) -> tuple[Path, ...]:
        """The files that were uploaded and are not analysed yet, in the order they came in."""
        found: list[Path] = []
        while (path := self.upload_part(len(found))).is_file():
            found.append(path)
        return tuple(found)

    @property
    def plans_path(self) -> Path:
        """The directory of the plans."""
        return self.path / "plans"

    def report(self) -> Report:
        """`report.json`."""
        return self._read("report.json", Report)

    def write_report(self, report: Report) -> None:
        """Replace `report.json`."""
        self._write("report.json", report)

    def step(self) -> StepRecord | None:
        """`step.json`: the launches of a step, None where no step was recorded."""
        return self._read_optional("step.json", StepRecord)

    def write_step(self, step: StepRecord) -> None:
        """Replace `step.json`."""
        self._write("step.json", step)

    def forwards(self) -> Forwards | None:
        """`forwards.json`: which plans are whole forwards, None where that was not looked at."""
        return self._read_optional("forwards.json", Forwards)

    def write_forwards(self, forwards: Forwards) -> None:
        """Replace `forwards.json`."""
        self._write("forwards.json", forwards)

    def info(self) -> RunInfo:
        """`run.json`."""
        return self._read("run.json", RunInfo, MAX_SMALL_BYTES)

    def write_info(self, info: RunInfo) -> None:
        """Replace `run.json`."""
        self._write("run.json", info)

    def applied(self) -> Applied | None:
        """`applied.json`, None where nothing is applied."""
        return self._read_optional("applied.json", Applied)

    def write_applied(self, applied: Applied) -> None:
        """Replace `applied.json`."""
        self._write("applied.json", applied)

    def remove_applied(self) -> None:
        """Remove `applied.json`; without one, nothing."""
        (self.path / "applied.json").unlink(missing_ok=True)

    def attempt(self) -> Attempt | None:
        """`attempt.json`: an application that is not at its end, None where there is none."""
        return self._read_optional("attempt.json", Attempt)

    def write_attempt(self, attempt: Attempt) -> None:
        """Replace `attempt.json`."""
        self._write("attempt.json", attempt)

    def remove_attempt(self) -> None:
        """Remove `attempt.json`; without one, nothing."""
        (self.path / "attempt.json").unlink(missing_ok=True)

    def traces(self) -> tuple[Path, ...]:
        """The traces of a run in the order of their ranks: its own, and those of other ranks."""
        others = [
            (int(path.parent.name.removeprefix("rank")), path)
            for path in self.path.glob("rank*/trace.json.gz")
            if path.parent.name.removeprefix("rank").isdecimal()
        ]
        return tuple(
            path for path in (self.trace_path, *(p for _, p in sorted(others))) if path.is_file()
        )

    def job(self) -> JobRecord | None:
        """`job.json`: the latest job of the dashboard, None where there was none."""
        return self._read_optional("job.json", JobRecord, MAX_SMALL_BYTES)

    def write_job(self, job: JobRecord) -> None:
        """Replace `job.json`."""
        self._write("job.json", job)

    def plan_ids(self) -> tuple[str, ...]:
        """Ids of the plan files, sorted; files whose name is no id are not plans."""
        if not self.plans_path.is_dir():
            return ()
        stems = (p.stem for p in self.plans_path.iterdir() if p.suffix == ".json")
        return tuple(sorted(stem for stem in stems if PLAN_ID.fullmatch(stem)))

    def plan(self, plan_id: str) -> FusionPlan:
        """`plans/ID.json`; raises `InvalidRecordError` if the plan inside has another id."""
        plan = self._read(f"plans/{checked_plan_id(plan_id)}.json", FusionPlan)
        if plan.id != plan_id:
            raise InvalidRecordError(
                f"the plan inside has the id {plan.id}", where=f"plans/{plan_id}.json"
            )
        return plan

    def write_plan(self, plan: FusionPlan) -> None:
        """Write `plans/ID.json`."""
        make_directory(self.plans_path)
        self._write(f"plans/{checked_plan_id(plan.id)}.json", plan)

    def plan_bytes(self, plan_id: str) -> bytes:
        """The file of a plan as it is on disk (what the signature covers)."""
        return read_bounded(self.plans_path / f"{checked_plan_id(plan_id)}.json", MAX_RECORD_BYTES)

    def kernel(self, plan_id: str) -> str | None:
        """`kernels/ID.py` as text, None where there is none; to be read, never imported."""
        path = self.path / "kernels" / f"{checked_plan_id(plan_id)}.py"
        if not path.exists():
            return None
        return read_bounded(path, MAX_SMALL_BYTES).decode(errors="replace")

    def write_kernel(self, plan_id: str, source: str) -> None:
        """Write `kernels/ID.py`."""
        directory = self.path / "kernels"
        make_directory(directory)
        write_atomic(directory / f"{checked_plan_id(plan_id)}.py", source.encode())

    def cliffs(self, plan_id: str) -> tuple[Cliff, ...]:
        """`cliffs/ID.GPU.json`: what each op of a plan costs, of every GPU it was asked for."""
        folder = self.path / "cliffs"
        if not folder.is_dir():
            return ()
        files = sorted(folder.glob(f"{checked_plan_id(plan_id)}.*.json"))
        found = (self._read(f"cliffs/{file.name}", Cliff, MAX_SMALL_BYTES) for file in files)
        return tuple(cliff for cliff in found if cliff.plan_id == plan_id)

    def write_cliff(self, cliff: Cliff) -> None:
        """Write `cliffs/ID.GPU.json`."""
        make_directory(self.path / "cliffs")
        name = f"{checked_plan_id(cliff.plan_id)}.{checked_gpu_key(cliff.gpu)}.json"
        self._write(f"cliffs/{name}", cliff)

    def log_tail(self) -> str:
        """The end of `log.txt`, at most 64 KiB."""
        return read_tail(self.log_path, MAX_LOG_TAIL_BYTES).decode(errors="replace")

    @contextmanager
    def lock(self, timeout_s: float = 0.0) -> Iterator[None]:
        """Hold the run against other writers; `RefusedError` after `timeout_s` if it is held."""
        try:
            held = FileLock(self.path / ".lock").acquire(timeout=timeout_s)
        except Timeout:
            raise RefusedError(
                "another process is working on this run",
                where=self.id,
                remedy="wait for it, or cancel it",
            ) from None
        except OSError as error:
            raise UnreadableError(
                "cannot lock the run", where=str(self.path), why=error.strerror or str(error)
            ) from error
        with held:
            yield

    def _read(self, name: str, kind: type[T], limit: int = MAX_RECORD_BYTES) -> T:
        path = self.path / name
        return decode(read_bounded(path, limit), kind, str(path))

    def _read_optional(self, name: str, kind: type[T], limit: int = MAX_RECORD_BYTES) -> T | None:
        return self._read(name, kind, limit) if (self.path / name).exists() else None

    def _write(self, name: str, record: Record) -> None:
        record.check()
        write_atomic(self.path / name, encode(record))


def checked_gpu_key(key: str) -> str:
    """The key itself; raises `UsageError` for what could be more than a part of a file's name."""
    if not GPU_KEY.fullmatch(key):
        raise UsageError(f"{key[:40]!r} is no key of a GPU")
    return key


def checked_plan_id(plan_id: str) -> str:
    """The id itself; raises `UsageError` for anything that is not 16 hex digits."""
    if not PLAN_ID.fullmatch(plan_id):
        raise UsageError(f"{plan_id[:40]!r} is not a plan id", why="it is not 16 hex digits")
    return plan_id
