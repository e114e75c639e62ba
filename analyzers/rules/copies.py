"""Copies: the same data moved again and again, and copies as large as a cache."""

from __future__ import annotations

from advisor.model.base import Range
from advisor.model.findings import Evidence, Finding, Member, finding_id
from advisor.model.graph import Node
from advisor.units import format_bytes, format_fraction, format_ns
from analyzers.program_cost import nodes_bytes
from analyzers.rules.base import (
    Match,
    Place,
    Rule,
    change_of,
    exposure,
    members_of,
    note,
)
from analyzers.rules.walk import moves_only
from analyzers.subject import GraphFacts, Subject

_SHARE = 0.03
_FEWEST = 4
# A device-to-device copy of this size moves a cache or a whole buffer, not an activation.
_CACHE_BYTES = 256 << 20


def find(subject: Subject) -> tuple[Match, ...]:
    """Copies that take a noticeable share of the step, and cache-sized copies."""
    return (*_repeated(subject), *_cache_sized(subject))


def _repeated(subject: Subject) -> tuple[Match, ...]:
    places = [
        Place(facts, nodes)
        for facts in subject.graphs
        if (nodes := frozenset(n.id for n in facts.graph.nodes if _free_copy(subject, facts, n)))
    ]
    count = sum(len(place.fused) * place.facts.graph.executions for place in places)
    time = sum(p.facts.prices.price(p.facts.flow, p.fused).time_ns for p in places)
    busy = subject.balance.device_ns if subject.balance else 0
    if count < _FEWEST or not busy or time < _SHARE * busy:
        return ()
    moved = sum(
        nodes_bytes(p.facts.flow, {n}) * p.facts.graph.executions for p in places for n in p.fused
    )
    # Which of them can go is not known: the middle of the range is half of each.
    each = [Place(p.facts, frozenset((name,))) for p in places for name in p.fused]
    change = change_of(each, Range(low=0, mid=time // 2, high=time))
    exposed, host = exposure(subject, change)
    finding = Finding(
        id=finding_id("repeated-copies", ""),
        rule=RULE.id,
        kind="opportunity",
        title=(
            f"{count} copies that only move elements, {format_fraction(time / busy)} of kernel time"
        ),
        exposed_saving_ns=exposed,
        evidence=(
            Evidence(
                kind="traffic",
                text=(
                    f"{format_bytes(moved)} moved by clone, contiguous and copy_ without a change "
                    "of dtype"
                ),
                values={"bytes_moved": moved, "copies": count},
            ),
            Evidence(
                kind="time",
                text=(
                    f"{format_ns(time)} {subject.when}; those that the next op could read in "
                    "place, or write in the wanted order, can go: which is not known, half is taken"
                ),
                values={"before_ns": time, "kernel_saving_ns": time // 2},
            ),
            host,
        ),
        members=members_of(places),
        provenance=subject.provenance,
        action=(
            "find the .contiguous(), repeat and reshape calls behind them; most library ops read "
            "strided tensors"
        ),
    )
    spoken_for = frozenset(k for p in places for k in p.nodes)
    return (Match(finding, spoken_for, change.saved_ns, change=change),)


def _free_copy(subject: Subject, facts: GraphFacts, node: Node) -> bool:
    return moves_only(facts, node) and subject.free(facts, node.id)


def _cache_sized(subject: Subject) -> tuple[Match, ...]:
    if subject.trace is None:
        return ()
    copies = subject.trace.copies
    large = copies[(copies["direction"] == "DtoD") & (copies["bytes"] >= _CACHE_BYTES)]
    if not len(large):
        return ()
    total, moved = int(large["duration_ns"].sum()), int(large["bytes"].sum())
    text = (
        f"{len(large)} device-to-device copies move {format_bytes(moved)} in {format_ns(total)}: "
        "buffers of this size (a KV cache, say) are copied when an op writes through a view of "
        "them under compilation"
    )
    return (
        note(
            RULE.id,
            subject,
            identity="cache-sized-copy",
            title=f"{len(large)} copies as large as a cache: remove them, do not fuse them",
            action=(
                "write into the buffer inside the custom op instead of through a slice outside it"
            ),
            evidence=(
                Evidence(
                    kind="traffic", text=text, values={"bytes_moved": moved, "time_ns": total}
                ),
            ),
            members=(Member(name="Memcpy DtoD", count=len(large), time_ns=total),),
        ),
    )


RULE = Rule(
    id="repeated-copies",
    title="Copies that only move elements",
    explanation=(
        "clone, contiguous, repeat and copy_ between equal dtypes compute nothing. Some are "
        "needed; many exist because one op wrote another order than the next one wants, or because "
        "a head is repeated that the kernel could broadcast. Copies as large as a cache are a "
        "mistake to remove, not work to fuse."
    ),
    bad=(
        "keys and values of grouped-query attention repeated for every query head, then made "
        "contiguous"
    ),
    good="an attention kernel that broadcasts heads and reads strides",
    find=find,
)
