"""`progress.jsonl`: what a job reports while it works, one event a line."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

import msgspec

from advisor.errors import InvalidRecordError
from advisor.model.base import decode
from advisor.model.run import JobState, Progress
from advisor.store.files import create_regular, open_regular, unwritten

MAX_READ_BYTES = 4 << 20
FINAL_STAGE = "done"


class ProgressWriter:
    """Appends events and flushes each, so that a reader sees it at once and a crash loses none.

    `fresh` starts the file anew; otherwise events are appended.
    """

    def __init__(self, path: Path, job: str, *, fresh: bool = True) -> None:
        self.job, self._path = job, path
        try:
            self._handle = create_regular(path, append=not fresh)
        except OSError as error:
            raise unwritten(path, error) from error

    def emit(
        self,
        stage: str,
        state: JobState,
        *,
        plan: str | None = None,
        value: float | int | str | None = None,
        message: str = "",
    ) -> Progress:
        """Write one event stamped with the current time (UTC).

        Raises what `unwritten` says where the disk takes no more.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        event = Progress(
            time=now,
            job=self.job,
            stage=stage,
            state=state,
            plan=plan,
            value=value,
            message=message,
        )
        try:
            self._handle.write(msgspec.json.encode(event) + b"\n")
            self._handle.flush()
        except OSError as error:
            raise unwritten(self._path, error) from error
        return event

    def close(self) -> None:
        """Close the file; what it had no room for was told when it was written."""
        with suppress(OSError):
            self._handle.close()

    def __enter__(self) -> ProgressWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_progress(path: Path, offset: int = 0) -> tuple[tuple[Progress, ...], int]:
    """Whole events from byte `offset` on, and the offset to go on from; at most 4 MiB a call.

    A last line without its newline is still being written: it is left for the next call. A line
    that is no event is passed over, whatever is in the file. A file that cannot be read has none.
    """
    try:
        with open_regular(path) as handle:
            handle.seek(offset)
            data = handle.read(MAX_READ_BYTES)
    except OSError:
        return (), offset
    end = data.rfind(b"\n") + 1
    if end == 0:
        overlong = len(data) == MAX_READ_BYTES
        return (), offset + (MAX_READ_BYTES if overlong else 0)
    events: list[Progress] = []
    for line in data[:end].splitlines():
        try:
            events.append(decode(line, Progress))
        except InvalidRecordError:
            continue
    return tuple(events), offset + end


def is_final(event: Progress) -> bool:
    """True for the event that ends a job: stage `done`, or a failure of no single plan."""
    if event.stage == FINAL_STAGE:
        return event.state in ("done", "failed", "cancelled")
    return event.plan is None and event.state in ("failed", "cancelled")
