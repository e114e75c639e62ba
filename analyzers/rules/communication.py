"""Communication that nothing hides: exposed, never overlapped, or waiting for a late rank."""

from __future__ import annotations

import numpy as np

from advisor.model.base import Range
from advisor.model.findings import Evidence, Finding, finding_id
from advisor.units import format_fraction, format_ns
from analyzers.activities import NONE, activities, step_of
from analyzers.intervals import any_overlap
from analyzers.replay_changes import Change
from analyzers.rules.base import Match, Rule, exposure, note
from analyzers.subject import Subject

_SHARE = 0.05
# Exposed for so much of its time, communication is not overlapped at all.
_ALL = 0.97


def find(subject: Subject) -> tuple[Match, ...]:
    """Exposed communication as an opportunity, or a note where no overlap was even tried."""
    comm, exposed = subject.metric("comm_union_ns"), subject.metric("exposed_comm_ns")
    balance = subject.balance
    if not comm or not exposed or balance is None or exposed < _SHARE * balance.device_ns:
        return ()
    evidence = Evidence(
        kind="time",
        text=(
            f"{format_ns(exposed)} of {format_ns(comm)} in collectives {subject.when} run while "
            "nothing else does"
        ),
        values={"comm_ns": round(comm), "exposed_ns": round(exposed)},
    )
    if exposed >= _ALL * comm and _behind_everything(subject):
        return (_lost_overlap(subject, evidence),)
    wait = _waiting(subject)
    high = max(round(exposed) - (wait or 0), 0)
    values: dict[str, float | int | str | None] = {"waiting_ns": wait}
    waiting = "waiting for other ranks is included"
    if wait is not None:
        waiting = f"{format_ns(wait)} are spent waiting for another rank"
    text = (
        "how much of it can hide depends on what is free to run beside it, and on how far it slows "
        f"compute down: half is taken; {waiting}"
    )
    change = Change(
        sites=tuple((row,) for row in _collectives(subject)),
        saved_ns=Range(low=0, mid=high // 2, high=high),
    )
    saving, judged = exposure(subject, change)
    return (
        Match(
            Finding(
                id=finding_id("exposed-communication", ""),
                rule=RULE.id,
                kind="opportunity",
                title=f"Communication exposed for {format_fraction(exposed / comm)} of its time",
                exposed_saving_ns=saving,
                evidence=(evidence, Evidence(kind="host", text=text, values=values), judged),
                provenance=subject.provenance,
                action=(
                    "start collectives earlier (gradient buckets, prefetch of shards) and check "
                    "which rank comes last"
                ),
            ),
            change=change,
        ),
    )


def _collectives(subject: Subject) -> list[int]:
    """The rows of all communication kernels; those of the replayed step count."""
    if subject.trace is None:
        return []
    return np.flatnonzero(activities(subject.trace).communication).tolist()


def _waiting(subject: Subject) -> int | None:
    """How much longer this rank sits in collectives than the one that comes last to them.

    None of a single rank: nothing then tells waiting from moving data.
    """
    if len(subject.ranks) < 2:
        return None
    return subject.ranks[0].comm_ns - min(rank.comm_ns for rank in subject.ranks)


def _behind_everything(subject: Subject) -> bool:
    """Whether the large collectives of a step only start when the computation before is done."""
    trace = subject.trace
    if trace is None:
        return False
    found = activities(trace)
    comm = found.communication
    lengths = (found.end - found.start)[comm]
    if not len(lengths):
        return False
    large = np.flatnonzero(comm)[lengths >= 0.5 * lengths.max()]
    owner = step_of(found, trace.steps(subject.step_prefix))
    compute = found.kernel & ~comm
    for step in np.unique(owner[large]):
        rows = large[owner[large] == step]
        beside = np.flatnonzero(compute & (owner == step) if step != NONE else compute)
        if any_overlap(found.start[rows], found.end[rows], found.start[beside], found.end[beside]):
            return False
    return True


def _lost_overlap(subject: Subject, evidence: Evidence) -> Match:
    judged = Evidence(
        kind="cannot_judge",
        text=(
            "overlap slows the computation beside it, so what it would save cannot be told from "
            "one trace; on fast links one late collective may cost nothing: compare step times"
        ),
        values={"needs": "a second run with smaller buckets"},
    )
    return note(
        RULE.id,
        subject,
        identity="lost-overlap",
        title="No overlap of communication with computation, by construction",
        action=(
            "compare with smaller buckets (bucket_cap_mb), or check that gradients are reduced as "
            "they become ready"
        ),
        evidence=(evidence, judged),
    )


RULE = Rule(
    id="exposed-communication",
    title="Exposed communication and lost overlap",
    explanation=(
        "A collective costs the step only while no computation runs beside it. One that starts "
        "after the last backward kernel overlaps nothing, whatever its bandwidth: often one bucket "
        "for all gradients, or a compiled graph that keeps collectives at its end."
    ),
    bad="one all-reduce of all gradients behind the backward pass",
    good="buckets reduced while earlier layers still compute",
    find=find,
)
