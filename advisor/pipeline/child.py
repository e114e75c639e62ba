"""The process that runs the user's code: it does one job and tells its parent how it went.

It is started by `advisor.pipeline.supervisor`, leads a process group of its own, and takes that
group down with it when the parent dies.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from advisor.errors import EXIT_OK, AdvisorError, UnreadableError, WorkloadError
from advisor.model.run import Emit, JobState
from advisor.pipeline.job import (
    Finished,
    Happened,
    Interrupted,
    Job,
    Message,
    ProfileJob,
    Watched,
    failed_of,
)
from advisor.pipeline.storage import blame_error
from advisor.store import RunDirectory
from advisor.units import counted

EXIT_INTERRUPTED = 130


def main() -> None:
    """Arguments: the numbers of the pipe for messages and of the leash, and the job as JSON."""
    messages, leash = (int(number) for number in sys.argv[1:3])
    job = msgspec.json.decode(sys.argv[3], type=Job)
    del sys.argv[1:]
    for descriptor in (messages, leash):
        os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with_parent, args=(leash,), daemon=True).start()
    # Whoever started the parent may have told it to ignore these.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    faulthandler.enable(all_threads=False)
    sys.exit(_run(job, messages))


def _run(job: Job, messages: int) -> int:
    def tell(message: Message) -> None:
        os.write(messages, msgspec.json.encode(message) + b"\n")

    def emit(
        stage: str,
        state: JobState,
        *,
        plan: str | None = None,
        value: float | int | str | None = None,
        message: str = "",
    ) -> None:
        tell(Happened(stage=stage, state=state, plan=plan, value=value, message=message))

    def abandon(error: WorkloadError) -> NoReturn:
        tell(failed_of(error))
        os._exit(error.exit_code)

    def watch(what: str, limit_s: float | None) -> None:
        tell(Watched(what=what, limit_s=limit_s))

    try:
        with _telling_of_storage(Path(job.run)):
            _do(job, emit, abandon, watch)
            sys.stdout.flush()
    except AdvisorError as error:
        tell(failed_of(error))
        return error.exit_code
    except KeyboardInterrupt:
        tell(Interrupted())
        return EXIT_INTERRUPTED
    except Exception as error:
        tell(failed_of(error))
        raise
    except BaseException as error:
        name = type(error).__name__
        tell(failed_of(WorkloadError(f"the workload raised {name}, which is no Exception")))
        raise
    tell(Finished())
    return EXIT_OK


@contextmanager
def _telling_of_storage(run: Path) -> Iterator[None]:
    """Raises `StorageError` where there is no place to write: it is no fault of a program.

    PyTorch's compiler makes its folder while it is imported.
    """
    try:
        yield
    except (WorkloadError, UnreadableError, OSError) as error:
        blame_error(error, run)
        raise


def _do(
    job: Job,
    emit: Emit,
    abandon: Callable[[WorkloadError], NoReturn],
    watch: Callable[[str, float | None], None],
) -> None:
    if isinstance(job, ProfileJob):
        from advisor.pipeline.profile import profile

        def announce(stage: str, text: str) -> None:
            emit(stage, "running", message=text)

        run = RunDirectory(Path(job.run))
        report = profile(job.options, run, announce, abandon)
        found = f"{counted(len(report.findings), 'finding')}, {counted(len(report.plans), 'plan')}"
        emit("done", "done", message=found)
    else:
        from advisor.pipeline.apply import apply_run

        left_s = None if job.ends_at is None else job.ends_at - time.time()
        apply_run(RunDirectory.at(Path(job.run)), job.only, emit, left_s, watch=watch)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _end_with_parent(leash: int) -> None:
    """The parent never writes: the read returns when it is gone, however it went."""
    os.read(leash, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)
