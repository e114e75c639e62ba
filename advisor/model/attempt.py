"""`attempt.json`: an application that is not at its end, so that the next goes on from there."""

from __future__ import annotations

from advisor.model.actions import ActionKind
from advisor.model.applied import Comparison, KernelResources, KernelTiming, Numerics, RankVote
from advisor.model.base import Record
from advisor.model.cures import Retuned, Split
from advisor.model.launch import LaunchConfig


class ReadyPlan(Record, frozen=True, kw_only=True):
    """What the stages before any trial found out about one plan; `refused` says why it is out."""

    plan_id: str
    refused: str | None = None
    launch: LaunchConfig | None = None
    numerics: Numerics | None = None
    resources: tuple[KernelResources, ...] = ()
    timings: tuple[KernelTiming, ...] = ()


class JudgedTrial(Record, frozen=True, kw_only=True):
    """A trial and its judgement; what was not tried for want of time is in no record."""

    finding: str
    plan_ids: tuple[str, ...] = ()
    action: ActionKind | None = None
    keep: bool
    reason: str
    applies: bool = True
    comparison: Comparison | None = None
    step: Comparison | None = None
    swapped: dict[str, int] = {}
    absent: dict[str, str] = {}
    details: tuple[str, ...] = ()
    pool_bytes: int | None = None
    peak_bytes: tuple[int, int] | None = None
    votes: tuple[RankVote, ...] = ()
    splits: tuple[Split, ...] = ()
    retuned: tuple[Retuned, ...] = ()
    with_loss: bool = False


class Attempt(Record, frozen=True, kw_only=True):
    """How far an application has come.

    It holds for one run as it was signed, one request (`only`), one device and one set of versions.
    `running` names what is being run at this moment, `died` what ended the process, and how.
    """

    signature: str | None
    only: tuple[str, ...]
    device: str
    versions: dict[str, str]
    plans: tuple[ReadyPlan, ...] = ()
    trials: tuple[JudgedTrial, ...] = ()
    running: str = ""
    died: dict[str, str] = {}
