"""The rank that all others wait for."""

from __future__ import annotations

from statistics import median

from advisor.model.base import Range
from advisor.model.findings import Evidence, Finding, finding_id
from advisor.units import format_ns
from analyzers.rules.base import Match, Rule
from analyzers.subject import Subject

_SHARE = 0.1


def find(subject: Subject) -> tuple[Match, ...]:
    """The rank with the least time in collectives, if the others spend clearly more there."""
    ranks = [rank for rank in subject.ranks if rank.comm_ns > 0]
    if len(ranks) < 2:
        return ()
    late = min(ranks, key=lambda rank: rank.comm_ns)
    others = [rank.comm_ns for rank in ranks if rank is not late]
    wait, most = round(median(others)) - late.comm_ns, max(others) - late.comm_ns
    longest = max(rank.busy_ns for rank in ranks)
    if wait < _SHARE * longest:
        return ()
    listed = ", ".join(
        f"rank {r.rank} {format_ns(r.comm_ns)}" for r in sorted(ranks, key=lambda r: r.rank)
    )
    return (
        Match(
            Finding(
                id=finding_id(RULE.id, ""),
                rule=RULE.id,
                kind="opportunity",
                title=f"Rank {late.rank} is the straggler: the others wait for it",
                exposed_saving_ns=Range(low=0, mid=wait, high=most),
                evidence=(
                    Evidence(
                        kind="time",
                        text=(
                            f"time in collectives {subject.when}: {listed}; who comes last waits "
                            "least"
                        ),
                        values={
                            **{f"rank{rank.rank}_comm_ns": rank.comm_ns for rank in ranks},
                            "straggler": late.rank,
                        },
                    ),
                ),
                provenance=subject.provenance,
                action=(
                    f"look at what rank {late.rank} does before it enters the collectives: more "
                    "data, a slower host, other work"
                ),
            )
        ),
    )


RULE = Rule(
    id="straggler-rank",
    title="A rank that the others wait for",
    explanation=(
        "A collective ends when the last rank has joined, so ranks that come early spend the "
        "difference inside it. The straggler is the rank with the least time in collectives, not "
        "the one with the most."
    ),
    bad="5.8 ms and 11.3 ms in collectives on two ranks, 1.7 ms on the third: the third is late",
    good="about the same time in collectives everywhere",
    find=find,
)
