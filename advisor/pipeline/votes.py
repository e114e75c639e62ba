"""One verdict of all ranks: kept only if every rank would keep it, and on record what each saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from advisor.apply.judge import Judgement
from advisor.errors import WorkloadError
from advisor.model.actions import ActionKind
from advisor.model.applied import Comparison, RankVote
from advisor.model.base import Record
from advisor.model.launch import LaunchConfig
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.peers import Peers, hear, of_rank
from advisor.pipeline.trials import Trial
from advisor.store import RunDirectory

Votes = tuple[RankVote, ...]


def vote(
    peers: Peers,
    topic: str,
    judgement: Judgement,
    gpu_time: Comparison | None = None,
    step: Comparison | None = None,
) -> tuple[Judgement, Votes]:
    """The common judgement and what it is made of; of a process alone, its own and nothing.

    A rank that would not keep it vetoes; where all keep it, the one that gains least gives the
    reason.
    """
    mine = RankVote(
        rank=peers.rank,
        keep=judgement.keep,
        reason=judgement.reason,
        gpu_time=gpu_time,
        step=step,
    )
    votes = tuple(hear(peers, topic, mine, RankVote))
    if peers.count == 1:
        return judgement, ()
    against = [item for item in votes if not item.keep]
    told = against[0] if against else min(votes, key=_gain)
    reason = of_rank(peers, told.rank, told.reason)
    return Judgement(not against, reason, applies=judgement.applies), votes


def _gain(item: RankVote) -> int:
    compared = item.step or item.gpu_time
    return compared.gain_mid_ns if compared is not None else 0


def objection(peers: Peers, topic: str, why: str) -> str:
    """The first rank's objection; "" if none has any."""
    said = enumerate(hear(peers, topic, why, str))
    return next((of_rank(peers, rank, text) for rank, text in said if text), "")


def same_sites(peers: Peers, swapped: dict[str, int]) -> None:
    """Raises `WorkloadError` if the ranks would run graphs with different sites changed."""
    said = hear(peers, "sites", swapped, dict[str, int])
    for rank, theirs in enumerate(said):
        if theirs != said[0]:
            raise WorkloadError(
                "the ranks would run different graphs",
                why=f"rank 0 changes {_sites(said[0])}, rank {rank} {_sites(theirs)}",
            )


def _sites(swapped: dict[str, int]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in sorted(swapped.items())) or "nothing"


# --- what is tried --------------------------------------------------------------------------------


class _Asked(Record, frozen=True, kw_only=True):
    """What tells one trial from another."""

    finding: str
    plan_ids: tuple[str, ...]
    action: ActionKind | None


def same_trials(peers: Peers, run: RunDirectory, trials: Sequence[Trial]) -> list[Trial]:
    """The lead's trials: ranks price alike findings differently, and so order them differently.

    A trial with a plan that some rank has not, or has otherwise, is judged already: it is out.
    """
    mine = [_Asked(finding=t.finding, plan_ids=t.plan_ids, action=t.action) for t in trials]
    lead = hear(peers, "trials", mine, list[_Asked])[0]
    wanted = list(dict.fromkeys(name for item in lead for name in item.plan_ids))
    own = set(run.plan_ids())
    signatures = {name: run.plan(name).signature() for name in wanted if name in own}
    everywhere = hear(peers, "plans", signatures, dict[str, str])
    # A trial of our own also says what was chosen before, and of which kernel.
    own_trials = dict(zip(mine, trials, strict=True))
    found = []
    for item in lead:
        trial = own_trials.get(item) or Trial(item.finding, item.plan_ids, item.action)
        why = _not_common(peers, item.plan_ids, everywhere)
        if why:
            trial.judgement = Judgement(False, why, applies=False)
        found.append(trial)
    return found


def _not_common(peers: Peers, names: Sequence[str], everywhere: Sequence[dict[str, str]]) -> str:
    for rank, theirs in enumerate(everywhere):
        for name in names:
            if theirs.get(name) != everywhere[0].get(name):
                return of_rank(peers, rank, "its graphs have no such plan as rank 0's")
    return ""


class _Seen(Record, frozen=True, kw_only=True):
    """What a rank found out about a plan before any trial."""

    refused: str | None
    postponed: bool
    launch: LaunchConfig | None


def same_candidates(peers: Peers, found: Mapping[str, Candidate], folder: Path) -> None:
    """What one rank refuses is refused on all; the kernels run in the lead's configuration."""
    mine = {
        name: _Seen(refused=item.refused, postponed=item.postponed, launch=item.config)
        for name, item in found.items()
    }
    said = hear(peers, "candidates", mine, dict[str, _Seen])
    if peers.count == 1:
        return
    for name, item in found.items():
        seen = [(rank, theirs[name]) for rank, theirs in enumerate(said) if name in theirs]
        against = [of_rank(peers, rank, one.refused) for rank, one in seen if one.refused]
        item.refused = _once(against[0]) if against else None
        item.postponed = any(one.postponed for _, one in seen)
        lead = seen[0][1].launch
        if item.refused is None and lead is not None and lead != item.config:
            item.choose(lead, folder)


def _once(reason: str) -> str:
    """A reason that was shared before names its rank already."""
    _, _, rest = reason.partition(": ")
    return rest if rest.startswith("rank ") else reason
