"""`job.json`: a job of the dashboard, so that a page reload or a server restart finds it again."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.base import Record
from advisor.model.findings import FINDING_ID

JOB_SCHEMA_VERSION = 1
JobKind = Literal["apply", "revert", "analyze", "cliff"]
# A day: what takes longer is a typing error.
MAX_BUDGET_S = 86_400
_JOB_ID = re.compile(r"[0-9a-f]{16}")


class ProcessIdentity(Record, frozen=True, kw_only=True):
    """A process that cannot be confused with a later one of the same number.

    `start_ticks` is field 22 of `/proc/PID/stat`, clock ticks after the boot that `boot_id` names.
    """

    pid: int
    start_ticks: int
    boot_id: str

    def check(self) -> None:
        if self.pid <= 1:
            raise InvalidRecordError(f"{self.pid} is no process id of a job")


class JobRecord(Record, frozen=True, kw_only=True):
    """When a job was asked for, started and seen to end (UTC, ISO 8601).

    `only` names findings, plans or actions, all where it is empty; `budget_s` bounds an
    application.
    """

    schema_version: int = JOB_SCHEMA_VERSION
    id: str
    kind: JobKind
    only: tuple[str, ...] = ()
    budget_s: int | None = None
    queued: str
    started: str | None = None
    process: ProcessIdentity | None = None
    cancel_requested: str | None = None
    ended: str | None = None
    exit_status: int | None = None
    error: str | None = None

    def check(self) -> None:
        if self.schema_version != JOB_SCHEMA_VERSION:
            raise InvalidRecordError(
                f"job.json schema {self.schema_version} is not {JOB_SCHEMA_VERSION}"
            )
        if not _JOB_ID.fullmatch(self.id):
            raise InvalidRecordError("a job id is 16 hex digits")
        if not all(FINDING_ID.fullmatch(name) for name in self.only):
            raise InvalidRecordError("a job names findings by their ids")
        if self.budget_s is not None and not 0 < self.budget_s <= MAX_BUDGET_S:
            raise InvalidRecordError(f"a budget is between 1 and {MAX_BUDGET_S} s")
        for time in (self.queued, self.started, self.cancel_requested, self.ended):
            _check_time(time)
        if self.process is not None:
            self.process.check()


def _check_time(text: str | None) -> None:
    try:
        aware = text is None or datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise InvalidRecordError("a time of the job is not ISO 8601 with its zone")
