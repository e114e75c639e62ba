"""How far an application has come, on disk after every trial, so that nothing is judged twice.

What runs inside the model may end the process, by an illegal access, or never end. The journal says
what was running: the parent starts again without it, and so does the next application.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from advisor.apply.judge import Judgement
from advisor.errors import AbortedError, AdvisorError, StorageError, WorkloadError
from advisor.model.attempt import Attempt, JudgedTrial, ReadyPlan
from advisor.pipeline.peers import Peers, hear
from advisor.pipeline.trials import Trial
from advisor.store import RunDirectory

# Told what is begun and within how many seconds it must end; None when it has ended.
Watch = Callable[[str, float | None], object]
# Why nothing can run on the device any more; "" while it can.
Lost = Callable[[], str]


class Journal(Protocol):
    """What a search tells of its progress."""

    def begin(self, label: str, limit_s: float) -> None:
        """Something starts that may end the process; raises `WorkloadError` if it once did."""
        ...

    def end(self) -> None:
        """It has ended, well or with an error of its own."""
        ...

    def failed(self, error: AdvisorError) -> None:
        """Raises `AbortedError` if what failed took the device with it."""
        ...

    def aborted(self, error: AbortedError) -> None:
        """This process is to end; if what was tried failed here, that is the reason."""
        ...

    def judged(self, trial: Trial) -> None:
        """A trial has its judgement."""
        ...


class Unwritten:
    """No journal: for searches that nobody continues."""

    def begin(self, label: str, limit_s: float) -> None:
        """Nothing is watched."""

    def end(self) -> None:
        """Nothing was."""

    def failed(self, error: AdvisorError) -> None:
        """The next trial shows."""

    def aborted(self, error: AbortedError) -> None:
        """Nobody goes on."""

    def judged(self, trial: Trial) -> None:
        """Nobody asks."""


def unwatched(what: str, limit_s: float | None) -> None:
    """For a process without a parent that could end it."""


class Written:
    """The journal of a run, in its `attempt.json`."""

    def __init__(
        self, run: RunDirectory, attempt: Attempt, watch: Watch = unwatched, lost: Lost = str
    ) -> None:
        self._run, self._watch, self._lost = run, watch, lost
        self.attempt = replace(attempt, running="")

    def begin(self, label: str, limit_s: float) -> None:
        """Say on disk what is about to run; the parent ends it after `limit_s`."""
        if label in self.attempt.died:
            raise WorkloadError(self.attempt.died[label])
        self._write(replace(self.attempt, running=label))
        self._watch(label, limit_s)

    def end(self) -> None:
        """Nothing runs that was tried."""
        self._watch("", None)
        self._write(replace(self.attempt, running=""))

    def failed(self, error: AdvisorError) -> None:
        """After an error on the device nothing runs there: say what it was, and end."""
        why = self._lost()
        if why:
            self._blame(error)
            raise AbortedError("this process has lost its GPU", why=why)

    def aborted(self, error: AbortedError) -> None:
        """The others do not answer after a failure here: the failure is what counts."""
        if isinstance(error.__cause__, AdvisorError):
            self._blame(error.__cause__)

    def _blame(self, error: AdvisorError) -> None:
        died = self.attempt.died | {self.attempt.running: error.line()}
        self._write(replace(self.attempt, died=died, running=""))

    def judged(self, trial: Trial) -> None:
        """Keep a judgement."""
        self._write(replace(self.attempt, trials=(*self.attempt.trials, _recorded(trial))))

    def ready(self, plans: Sequence[ReadyPlan]) -> None:
        """Keep what the stages before the trials found out."""
        self._write(replace(self.attempt, plans=tuple(plans)))

    def _write(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self._run.write_attempt(attempt)


def begun(
    run: RunDirectory, only: Sequence[str], device: str, versions: Mapping[str, str], peers: Peers
) -> Attempt:
    """What there is to go on from; of several ranks, what all of them have."""
    attempt = left_of(run, only, device, versions) or _fresh(run, only, device, versions)
    trials = hear(peers, "judged before", [_key(item) for item in attempt.trials], list[_Key])
    plans = hear(peers, "ready before", [item.plan_id for item in attempt.plans], list[str])
    return replace(
        attempt,
        trials=tuple(t for t in attempt.trials if all(_key(t) in theirs for theirs in trials)),
        plans=tuple(p for p in attempt.plans if all(p.plan_id in theirs for theirs in plans)),
    )


def left_of(
    run: RunDirectory, only: Sequence[str], device: str, versions: Mapping[str, str]
) -> Attempt | None:
    """An application of the same on this device with these versions that is not at its end."""
    found, fresh = run.attempt(), _fresh(run, only, device, versions)
    same = found is not None and (found.signature, found.only, found.device, found.versions) == (
        fresh.signature,
        fresh.only,
        fresh.device,
        fresh.versions,
    )
    return found if same else None


def _fresh(
    run: RunDirectory, only: Sequence[str], device: str, versions: Mapping[str, str]
) -> Attempt:
    return Attempt(
        signature=run.info().signature,
        only=tuple(only),
        device=device,
        versions=dict(versions),
    )


def restore(trials: Sequence[Trial], attempt: Attempt) -> None:
    """Give trials the judgements that they had when the process ended."""
    judged = {_key(item): item for item in attempt.trials}
    for trial in trials:
        item = judged.get((trial.finding, trial.plan_ids, trial.action or ""))
        if item is None:
            continue
        trial.judgement = Judgement(item.keep, item.reason, applies=item.applies)
        trial.comparison, trial.step, trial.votes = item.comparison, item.step, item.votes
        trial.swapped, trial.details = dict(item.swapped), item.details
        trial.absent = dict(item.absent)
        trial.pool_bytes, trial.peak_bytes = item.pool_bytes, item.peak_bytes
        trial.splits, trial.retuned = item.splits, item.retuned
        trial.with_loss = item.with_loss


def survive(run: RunDirectory, error: AdvisorError) -> bool:
    """Whether an application that was ended goes on in a new process, without what ended it.

    What was running is then on record as what did. False where nothing that was tried was running,
    or where it ended a process before, and where there is no place to write.
    """
    attempt = run.attempt()
    if attempt is None or error.code == StorageError.code:
        return False
    if error.code == AbortedError.code:
        return bool(attempt.died) and not attempt.running
    if not attempt.running or attempt.running in attempt.died:
        return False
    died = attempt.died | {attempt.running: _ending(error)}
    run.write_attempt(replace(attempt, died=died, running=""))
    return True


def _ending(error: AdvisorError) -> str:
    return f"tried in the model, {error.what}{f': {error.why}' if error.why else ''}"


_Key = tuple[str, tuple[str, ...], str]


def _key(item: JudgedTrial) -> _Key:
    return item.finding, item.plan_ids, item.action or ""


def _recorded(trial: Trial) -> JudgedTrial:
    judgement = trial.judgement
    assert judgement is not None
    return JudgedTrial(
        finding=trial.finding,
        plan_ids=trial.plan_ids,
        action=trial.action,
        keep=judgement.keep,
        reason=judgement.reason,
        applies=judgement.applies,
        comparison=trial.comparison,
        step=trial.step,
        swapped=trial.swapped,
        absent=trial.absent,
        details=trial.details,
        pool_bytes=trial.pool_bytes,
        peak_bytes=trial.peak_bytes,
        votes=trial.votes,
        splits=trial.splits,
        retuned=trial.retuned,
        with_loss=trial.with_loss,
    )
