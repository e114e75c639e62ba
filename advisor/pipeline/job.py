"""What a job's parent and child say to each other: the job, its events, and how it ended."""

from __future__ import annotations

from advisor.errors import EXIT_UNREADABLE, AdvisorError
from advisor.model.base import Record
from advisor.model.run import JobState
from advisor.pipeline.options import ProfileOptions


class ProfileJob(Record, frozen=True, kw_only=True, tag="profile"):
    """Record a workload into the empty run directory `run`."""

    run: str
    options: ProfileOptions


class ApplyJob(Record, frozen=True, kw_only=True, tag="apply"):
    """Apply what a run calls for, or `only` these findings, plans or actions.

    It is to be at its end at `ends_at`, by the wall clock (s since the epoch).
    """

    run: str
    only: tuple[str, ...] = ()
    ends_at: float | None = None


Job = ProfileJob | ApplyJob


class Happened(Record, frozen=True, kw_only=True, tag="happened"):
    """An event of the job: the fields of `Progress` but time and job."""

    stage: str
    state: JobState
    plan: str | None = None
    value: float | int | str | None = None
    message: str = ""


class Watched(Record, frozen=True, kw_only=True, tag="watched"):
    """Something begins that must end within so many seconds; None says that it has ended."""

    what: str
    limit_s: float | None = None


class Failed(Record, frozen=True, kw_only=True, tag="failed"):
    """The job ended with an error that it could still describe."""

    code: str
    exit_code: int
    what: str
    where: str = ""
    why: str = ""
    remedy: str = ""


class Finished(Record, frozen=True, kw_only=True, tag="finished"):
    """The job has done what it was asked; nothing of the run will change any more."""


class Interrupted(Record, frozen=True, kw_only=True, tag="interrupted"):
    """The job was told to stop, and did."""


Ended = Failed | Finished | Interrupted
Message = Happened | Watched | Failed | Finished | Interrupted


class JobError(AdvisorError):
    """A failure of the child, with the code and the exit status that it had there."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.what, where=failed.where, why=failed.why, remedy=failed.remedy)
        self.code, self.exit_code = failed.code, failed.exit_code


def failed_of(error: BaseException) -> Failed:
    """How to tell the parent of an error; one that is not ours is a fault of this program."""
    if isinstance(error, AdvisorError):
        return Failed(
            code=error.code,
            exit_code=error.exit_code,
            what=error.what,
            where=error.where,
            why=error.why,
            remedy=error.remedy,
        )
    return Failed(
        code=AdvisorError.code,
        exit_code=EXIT_UNREADABLE,
        what="internal error",
        why=f"{type(error).__name__}: {error}",
        remedy="the traceback is above; please report it",
    )
