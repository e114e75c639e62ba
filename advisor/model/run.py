"""`run.json` and `progress.jsonl`: what a run says about itself and about work in flight."""

from __future__ import annotations

from typing import Literal, Protocol

from advisor.errors import InvalidRecordError
from advisor.model.base import Record

RUN_SCHEMA_VERSION = 1
JobState = Literal["queued", "running", "done", "failed", "cancelled"]
# Between a script and its arguments, in a target kept as one text.
ARGUMENTS = " -- "


def names_script(target: str) -> bool:
    """Whether a target is a program that is run as it stands, not a factory."""
    return target.partition(ARGUMENTS)[0].endswith(".py")


class Emit(Protocol):
    """Reports one event of a job: the fields of `Progress` but time and job."""

    def __call__(
        self,
        stage: str,
        state: JobState,
        *,
        plan: str | None = None,
        value: float | int | str | None = None,
        message: str = "",
    ) -> object: ...


class RunInfo(Record, frozen=True, kw_only=True):
    """How a run was made; `signature` is a keyed hash of the rest, its key outside the store."""

    schema_version: int = RUN_SCHEMA_VERSION
    id: str
    created: str
    target: str
    arguments: tuple[str, ...]
    working_directory: str
    mode: str
    gpu: str | None
    gpu_present: bool
    seed: int
    versions: dict[str, str]
    plans: dict[str, str] = {}
    signature: str | None = None

    def check(self) -> None:
        if self.schema_version != RUN_SCHEMA_VERSION:
            raise InvalidRecordError(
                f"run.json schema {self.schema_version} is not {RUN_SCHEMA_VERSION}"
            )


class Progress(Record, frozen=True, kw_only=True):
    """One event of a job: `value` is the stage's headline figure, `message` a sentence.

    Durations are ns and errors ulps; `advisor.report.progress` names the unit of every stage.
    """

    time: str
    job: str
    stage: str
    state: JobState
    plan: str | None = None
    value: float | int | str | None = None
    message: str = ""
