"""Jobs: detached children that apply or revert a run, one at a time, found again after a restart.

The record of a job is `job.json` in its run directory; an empty file of the run's name in `.jobs/`
of the store marks it unfinished, so that finding the queue does not mean reading every run. The
child writes its own events to `progress.jsonl`: nothing here invents one.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from filelock import FileLock
from msgspec.structs import replace

from advisor.errors import AdvisorError, RefusedError
from advisor.store.directory import RunDirectory
from advisor.store.jobrecord import JobKind, JobRecord
from advisor.store.progress import read_progress
from advisor.store.signing import verify
from advisor.store.store import RunStore
from dashboard.jobview import JobView, view_of
from dashboard.processes import identify, is_alive, signal_group
from dashboard.timelines import MAX_SECONDS, limit_memory

_LOGGER = logging.getLogger(__name__)
TICK_S = 0.5
TERMINATE_GRACE_S = 5.0
Command = Callable[[JobRecord, Path], Sequence[str]]


def cli_command(job: JobRecord, run: Path) -> Sequence[str]:
    """The command line of a job.

    The run directory stands behind `--`, and ids within their option: neither is ever an option.
    """
    if job.kind == "analyze":
        return [sys.executable, "-m", "advisor.pipeline.stored", str(run)]
    options = [f"--only={name}" for name in job.only]
    if job.kind == "apply":
        options += ["--progress", "json"]
        options += [] if job.budget_s is None else [f"--budget={job.budget_s}s"]
    if job.kind == "cliff":
        options.append("--save")
    return [sys.executable, "-m", "advisor.cli.main", job.kind, *options, "--", str(run)]


class JobRunner:
    """Starts, watches and cancels the jobs of one store, from any number of threads and servers.

    A `read_only` runner shows jobs and touches none, so that a server without --allow-apply does
    not start what an earlier one left in the queue.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        command: Command = cli_command,
        key_path: Path | None = None,
        read_only: bool = False,
    ) -> None:
        self.store = store
        self._read_only = read_only
        self._command = command
        self._key_path = key_path
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the queue in the background until `stop`."""
        if self._read_only:
            return
        self._thread = threading.Thread(target=self._loop, name="job-runner", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; running jobs go on, and the next server finds them."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def refusal(self, run: RunDirectory) -> RefusedError | None:
        """Why this run cannot be applied here, None if it can."""
        return verify(run, self._key_path)

    def _refused(self, run: RunDirectory, kind: JobKind) -> RefusedError | None:
        """Only what executes the user's code needs a run of ours; an analysis reads a file."""
        return None if kind == "analyze" else self.refusal(run)

    def submit(
        self,
        run: RunDirectory,
        kind: JobKind,
        only: Sequence[str] = (),
        budget_s: int | None = None,
    ) -> JobRecord:
        """Queue a job; raises `RefusedError` if the run is not ours or has an unfinished job."""
        refused = self._refused(run, kind)
        if refused is not None:
            raise refused
        with self._locked():
            if self._marker(run).exists():
                raise RefusedError(
                    "this run already has a job", where=run.id, remedy="wait for it, or cancel it"
                )
            record = JobRecord(
                id=secrets.token_hex(8),
                kind=kind,
                only=tuple(only),
                budget_s=budget_s,
                queued=_now(),
            )
            run.write_job(record)
            self._marker(run).touch()
        self.tick()
        return record

    def cancel(self, run: RunDirectory) -> None:
        """Take a job out of the queue or end its process group; `RefusedError` without one."""
        with self._locked():
            record = run.job()
            refused = self._refused(run, record.kind if record else "apply")
            if refused is not None:
                raise refused
            if record is None or not self._marker(run).exists():
                raise RefusedError("this run has no job to cancel", where=run.id)
            if record.cancel_requested is None:
                record = replace(record, cancel_requested=_now())
            if record.started is None:
                self._finish(run, record)
                return
            run.write_job(record)
            if record.process is not None and is_alive(record.process):
                signal_group(record.process, signal.SIGTERM)

    def tick(self) -> None:
        """Record what ended, press on with what was cancelled, start the next job if none runs."""
        with self._locked():
            waiting: list[tuple[JobRecord, RunDirectory]] = []
            busy = False
            self._forget_finished()
            for run, record in self._unfinished():
                if record.started is None:
                    waiting.append((record, run))
                else:
                    busy = not self._settle(run, record) or busy
            waiting.sort(key=lambda pair: (pair[0].queued, pair[0].id))
            for record, run in waiting:
                if busy:
                    break
                busy = self._launch(run, record)

    def view(self, run: RunDirectory) -> JobView | None:
        """What the page shows of the latest job of a run, None if it never had one."""
        record = run.job()
        if record is None:
            return None
        # Liveness is read before the events: a process that is gone has written its last one. And
        # its end is on record before it is shown, so that the next job can be asked for at once.
        # At most twice: the record of a copied run is unfinished for ever.
        alive = _lives(record)
        for _ in range(2):
            if alive or self._read_only or record.started is None or record.ended is not None:
                break
            self.tick()
            record = run.job() or record
            alive = _lives(record)
        events, _ = read_progress(run.progress_path)
        return view_of(record, events, alive=alive, ahead=self._ahead(record))

    def _ahead(self, record: JobRecord) -> int:
        """How many jobs run or wait before a queued one."""
        if record.started is not None or record.ended is not None:
            return 0
        key = (record.queued, record.id)
        others = (other for _, other in self._unfinished() if other.id != record.id)
        return sum(o.started is not None or (o.queued, o.id) < key for o in others)

    def _loop(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                self.tick()
            except AdvisorError as error:
                # One run that cannot be written must not end the watch over the others.
                _LOGGER.warning("%s", error.line())

    def _unfinished(self) -> list[tuple[RunDirectory, JobRecord]]:
        return [pair for pair in map(self._marked, self._markers()) if pair is not None]

    def _forget_finished(self) -> None:
        """Remove markers without an unfinished job behind them; only under the lock."""
        for marker in self._markers():
            if self._marked(marker) is None:
                marker.unlink(missing_ok=True)

    def _markers(self) -> list[Path]:
        directory = self.store.root / ".jobs"
        return sorted(directory.iterdir()) if directory.is_dir() else []

    def _marked(self, marker: Path) -> tuple[RunDirectory, JobRecord] | None:
        try:
            run = self.store.open(marker.name)
            record = run.job()
        except AdvisorError:
            return None
        return None if record is None or record.ended is not None else (run, record)

    def _settle(self, run: RunDirectory, record: JobRecord) -> bool:
        """Record the end of a started job whose process is gone; False while it runs."""
        process = record.process
        if process is None:
            self._finish(run, replace(record, error="the server stopped while it started the job"))
            return True
        if is_alive(process):
            if record.cancel_requested and _age_s(record.cancel_requested) > TERMINATE_GRACE_S:
                signal_group(process, signal.SIGKILL)
            if record.kind == "analyze" and _age_s(record.started or "") > MAX_SECONDS:
                run.write_job(replace(record, error=f"it took more than {MAX_SECONDS} s"))
                signal_group(process, signal.SIGKILL)
            return False
        child = self._children.pop(record.id, None)
        if child is not None:
            # Not yet reaped, so its number is still its own: end what it left behind, then reap.
            signal_group(process, signal.SIGKILL)
            record = replace(record, exit_status=child.wait())
        self._finish(run, record)
        return True

    def _launch(self, run: RunDirectory, record: JobRecord) -> bool:
        """Start a queued job; False if it could not be."""
        refused = self._refused(run, record.kind)
        if refused is not None:
            self._finish(run, replace(record, error=refused.line()))
            return False
        record = replace(record, started=_now())
        try:
            run.write_job(record)
        except AdvisorError:
            self._marker(run).unlink(missing_ok=True)
            raise
        try:
            child = self._spawn(run, record)
        except OSError as error:
            self._finish(run, replace(record, error=f"the job did not start: {error}"))
            return False
        self._children[record.id] = child
        if record.kind == "analyze":
            limit_memory(child.pid)
        run.write_job(replace(record, process=identify(child.pid)))
        return True

    def _spawn(self, run: RunDirectory, record: JobRecord) -> subprocess.Popen[bytes]:
        run.progress_path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        log = os.open(run.log_path, flags, 0o644)
        try:
            return subprocess.Popen(
                self._command(record, run.path),
                # Unbuffered, so that the log on the page is not a block behind.
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(log)

    def _finish(self, run: RunDirectory, record: JobRecord) -> None:
        try:
            run.write_job(replace(record, ended=_now()))
        finally:
            self._marker(run).unlink(missing_ok=True)

    def _marker(self, run: RunDirectory) -> Path:
        return self.store.root / ".jobs" / run.id

    @contextmanager
    def _locked(self) -> Iterator[None]:
        directory = self.store.root / ".jobs"
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(self.store.root / ".jobs.lock"):
            yield


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def _lives(record: JobRecord) -> bool:
    return record.process is not None and is_alive(record.process)


def _age_s(time: str) -> float:
    return (datetime.now(timezone.utc) - datetime.fromisoformat(time)).total_seconds()
