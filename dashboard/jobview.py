"""What a page shows of a job: a pure function of its record, its events and whether it lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.model.run import JobState, Progress
from advisor.store.jobrecord import JobKind, JobRecord
from advisor.store.progress import FINAL_STAGE, is_final
from dashboard.processes import describe_exit

# The stages of `apply`, in order: name, words for a person.
APPLY_STAGES: tuple[tuple[str, str], ...] = (
    ("load", "Load the run"),
    ("generate", "Generate kernels"),
    ("resources", "Compile for each GPU"),
    ("verify", "Check numerics"),
    ("time", "Time the kernel"),
    ("rewrite", "Put it into the model"),
    ("measure", "Measure region and step"),
    ("decide", "Keep or take out"),
    ("done", "Finish"),
)
ACTIVE: tuple[JobState, ...] = ("queued", "running")


@dataclass(frozen=True)
class StageView:
    """One stage: its latest event and that of each plan; `state` is None before it begins."""

    name: str
    label: str
    state: JobState | None
    latest: Progress | None
    plans: tuple[Progress, ...]


@dataclass(frozen=True)
class JobView:
    """A job as it stands; `ahead` counts the jobs before a queued one.

    A `finishing` one runs, but has said how it ended.
    """

    id: str
    kind: JobKind
    state: JobState
    message: str
    stages: tuple[StageView, ...]
    ahead: int
    cancelling: bool
    finishing: bool

    @property
    def active(self) -> bool:
        """It waits or runs."""
        return self.state in ACTIVE


def view_of(
    record: JobRecord, events: Sequence[Progress], *, alive: bool, ahead: int = 0
) -> JobView:
    """The job as a page shows it; a process that is gone without a final event is a failure."""
    replaced = _replaced(record, events)
    shown = events if record.started is not None and not replaced else ()
    state, message = _outcome(record, shown, alive=alive, ahead=ahead)
    if replaced:
        state = "done" if record.exit_status == 0 else state
        message = "A later command in a shell has replaced what this job reported."
    return JobView(
        id=record.id,
        kind=record.kind,
        state=state,
        message=message,
        stages=stages_of(record.kind, shown, state),
        ahead=ahead,
        # The result is there; the next job can be asked for when the process is gone.
        finishing=state == "running" and any(map(is_final, shown)),
        cancelling=record.cancel_requested is not None and state in ACTIVE,
    )


def _replaced(record: JobRecord, events: Sequence[Progress]) -> bool:
    """Whether the events are of a command that someone ran in a shell after this job ended."""
    # Both are written in UTC and one form, so that they sort as text; the file may hold anything.
    return record.ended is not None and bool(events) and events[0].time > record.ended


def stages_of(kind: JobKind, events: Sequence[Progress], job: JobState) -> tuple[StageView, ...]:
    """The stages in order: the known ones of the job's kind, then any other that occurred."""
    labels = dict(APPLY_STAGES) if kind == "apply" else {}
    for event in events:
        labels.setdefault(event.stage, event.stage.replace("_", " ").capitalize())
    return tuple(_stage(name, label, events, job) for name, label in labels.items())


def _stage(name: str, label: str, events: Sequence[Progress], job: JobState) -> StageView:
    own = [event for event in events if event.stage == name]
    by_plan = {event.plan: event for event in own if event.plan is not None}
    latest = own[-1] if own else None
    return StageView(
        name=name,
        label=label,
        state=_stage_state(latest, events, job) if latest else None,
        latest=latest,
        plans=tuple(by_plan.values()),
    )


def _stage_state(latest: Progress, events: Sequence[Progress], job: JobState) -> JobState:
    """A stage has ended when another began after it; the last one shares the fate of the job."""
    if latest.state != "running":
        return latest.state
    begun = [event.stage for event in events if event.stage != FINAL_STAGE]
    return job if begun and begun[-1] == latest.stage else "done"


def _outcome(
    record: JobRecord, events: Sequence[Progress], *, alive: bool, ahead: int
) -> tuple[JobState, str]:
    if record.error is not None:
        return "failed", record.error
    if record.started is None:
        if record.ended is not None:
            return "cancelled", "Cancelled before it started."
        waits = f"behind {ahead} other job{'s' * (ahead != 1)}" if ahead else "about to start"
        return "queued", f"Waiting, {waits}; one GPU job runs at a time."
    final = next((event for event in reversed(events) if is_final(event)), None)
    if alive or (record.process is None and record.ended is None):
        # Also after the final event: the next job starts when this process is gone.
        return "running", events[-1].message if events else "The process started."
    if final is not None:
        return final.state, final.message
    if record.cancel_requested is not None:
        return "cancelled", "Cancelled on request."
    return (
        "failed",
        f"The job process ended before it finished: {describe_exit(record.exit_status)}.",
    )
