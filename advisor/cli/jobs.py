"""How commands run a job: events to the terminal and to `progress.jsonl`, output as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import click

from advisor.errors import AdvisorError, UnreadableError
from advisor.model.base import encode
from advisor.model.run import JobState, Progress
from advisor.pipeline.job import Job
from advisor.pipeline.supervisor import supervise
from advisor.report.progress import progress_line
from advisor.report.text import render
from advisor.store import ProgressWriter
from advisor.store.files import create_regular, unwritten

# Every new start is without what ended the one before.
MOST_STARTS = 20

# A script that prints without end must not fill the disk.
MOST_LOGGED_BYTES = 64 << 20


def run_job(
    job: Job,
    writer: ProgressWriter,
    form: str,
    *,
    where: str,
    log: Path | None = None,
    directory: Path | None = None,
    goes_on: Callable[[AdvisorError], bool] | None = None,
) -> None:
    """Run a job in a child process; `form` is `text` or `json`. Raises what `supervise` raises.

    What the child prints goes to stderr and, as far as it is given, into the file `log`. After a
    failure that it `goes_on` from, the job is started again in a new child.
    """

    def emit(
        stage: str,
        state: JobState,
        *,
        plan: str | None = None,
        value: float | int | str | None = None,
        message: str = "",
    ) -> None:
        event = writer.emit(stage, state, plan=plan, value=value, message=message)
        # How a job ended without a result is the one line on stderr that any failure gets.
        if form == "json" or state not in ("failed", "cancelled") or plan is not None:
            _show(event, form)

    def tell_end(state: JobState, message: str) -> None:
        # On a full disk not even this has room; why the job ended is what is raised.
        with suppress(UnreadableError):
            emit("done", state, message=message)

    def run_again(starts: int) -> None:
        try:
            with _output(log) as output:
                supervise(job, emit, output, where=where, directory=directory)
        except AdvisorError as error:
            if goes_on is None or starts >= MOST_STARTS or not goes_on(error):
                raise
            emit("load", "running", message=f"{error.what}: going on without what was tried")
            run_again(starts + 1)

    try:
        run_again(1)
    except AdvisorError as error:
        tell_end("failed", error.line())
        raise
    except KeyboardInterrupt:
        tell_end("cancelled", "interrupted")
        raise
    except Exception as error:
        tell_end("failed", f"{type(error).__name__}: {error}")
        raise


@contextmanager
def _output(log: Path | None) -> Iterator[Callable[[bytes], None]]:
    if log is None:
        yield lambda data: click.echo(data, nl=False, err=True)
        return
    file = create_regular(log)
    try:
        yield lambda data: _both(data, file, log)
    finally:
        with suppress(OSError):  # told where it was written
            file.close()


def _both(data: bytes, file: BinaryIO, log: Path) -> None:
    click.echo(data, nl=False, err=True)
    try:
        file.write(data[: max(0, MOST_LOGGED_BYTES - file.tell())])
        file.flush()
    except OSError as error:
        raise unwritten(log, error) from error


def _show(event: Progress, form: str) -> None:
    if form == "json":
        click.echo(encode(event).decode().replace("\n", "").strip())
    else:
        click.echo(render(progress_line(event), width=120).rstrip(), err=True)
