"""Two reductions over different axes of the same tensors: each row, and each column over the rows.

The gradients of a norm are the usual case: that of its input reduces along the hidden axis, that of
its weight over all tokens, and both read the same two tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from advisor.model.base import Range
from advisor.model.findings import Alternative
from advisor.model.graph import Node
from advisor.model.optable import item_bytes, spec_of
from advisor.model.sizes import ONE, product
from advisor.units import counted
from analyzers.rules.base import (
    Cost,
    Match,
    Place,
    Rule,
    cost_of,
    is_pointwise,
    is_worth,
    opportunity,
)
from analyzers.rules.walk import elements, producer
from analyzers.subject import GraphFacts, Subject

_REDUCTIONS = ("sum", "mean", "amax", "amin")
_MOST_NODES = 12


@dataclass(frozen=True)
class _Reduction:
    """`inside`: the pointwise ops that feed it; `read`: the tensors of full size behind them."""

    node: Node
    inside: frozenset[str]
    read: frozenset[str]

    @property
    def touched(self) -> frozenset[str]:
        """Every value of full size that it passes over."""
        return self.inside | self.read


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for all columns whose tensors a reduction along the rows reads as well."""
    places: list[Place] = []
    again = 0
    for facts in subject.graphs:
        rows = [_reduction(facts, n) for n in facts.graph.nodes if _reduces(facts, n, rows=True)]
        for column in _columns(subject, facts):
            partner = _partner(facts, column, rows)
            if partner is not None:
                free = {n for n in column.inside - partner.touched if subject.free(facts, n)}
                fused = frozenset({column.node.id, *free})
                # What a row program computes for the columns, it holds as it holds its own.
                held = partner.touched | column.inside - free
                places.append(Place(facts, fused))
                again += _bytes(facts, _operands(facts, fused) & held)
    if not places:
        return ()
    cost = _cost(subject, places, again)
    return (_match(subject, places, cost, again),) if is_worth(subject, cost) else ()


def _cost(subject: Subject, places: list[Place], again: int) -> Cost:
    """What the rows have read already is not read again."""
    cost = cost_of(subject, places)
    after = max(cost.bytes_after - again, 0)
    share = 1 - after / cost.bytes_before if cost.bytes_before else 0.0
    gone = max(round(cost.time_ns * share), cost.saved_ns.mid)
    high = max(gone, cost.saved_ns.high)
    return replace(cost, bytes_after=after, saved_ns=Range(low=0, mid=gone, high=high))


def _match(subject: Subject, places: list[Place], cost: Cost, again: int) -> Match:
    return opportunity(
        RULE.id,
        subject,
        places,
        cost,
        title=f"Reductions over both axes of the same tensors, {counted(len(places), 'site')}",
        action=(
            "one kernel for both: each program takes some rows, and adds its part to the columns "
            "(Liger's or Apex's norm, or a compiler that mixes orders of reduction)"
        ),
        dataflow=(
            "one reduction runs along the rows, the other over the rows; both read the same "
            "tensors, which one pass would read once"
        ),
        values={"bytes_read_again": again},
        alternatives=(
            Alternative(
                route="do_not_fuse",
                text="few rows: the columns' partial sums cost more than the second read",
            ),
        ),
    )


def _columns(subject: Subject, facts: GraphFacts) -> Iterator[_Reduction]:
    for node in facts.graph.nodes:
        if _reduces(facts, node, rows=False) and subject.free(facts, node.id):
            yield _reduction(facts, node)


def _reduces(facts: GraphFacts, node: Node, *, rows: bool) -> bool:
    """Whether a node reduces the last axis alone, or (not `rows`) all axes but the last."""
    axes = node.attributes.get("axes")
    if node.op not in _REDUCTIONS or not isinstance(axes, tuple) or not node.outputs:
        return False
    meta = facts.flow.meta(node.value_args[0])
    rank = len(meta.shape) if meta is not None else 0
    wanted = (rank - 1,) if rows else tuple(range(rank - 1))
    return rank > 1 and axes == wanted and product(node.outputs[0].shape) != ONE


def _reduction(facts: GraphFacts, node: Node) -> _Reduction:
    first = producer(facts, node.value_args[0])
    size = elements(facts, first)
    inside: set[str] = set()
    read: set[str] = set()
    pending = [first]
    while pending:
        at = pending.pop()
        if len(inside) < _MOST_NODES and is_pointwise(facts, at.id):
            if at.id not in inside:
                inside.add(at.id)
                behind = (producer(facts, value) for value in at.value_args)
                pending += [other for other in behind if elements(facts, other) == size]
        else:
            read.add(at.id)
    return _Reduction(node, frozenset(inside), frozenset(read))


def _partner(facts: GraphFacts, column: _Reduction, rows: list[_Reduction]) -> _Reduction | None:
    """The reduction along rows that shares most with this one and needs no library call between."""
    sharing = [
        row
        for row in rows
        if row.touched & column.touched and not _separated(facts, row.node.id, column.node.id)
    ]
    return max(sharing, key=lambda row: len(row.touched & column.touched), default=None)


def _separated(facts: GraphFacts, first: str, second: str) -> bool:
    between = facts.flow.between(frozenset({first, second}))
    return any(spec_of(facts.flow.nodes[name].op).kind == "opaque" for name in between)


def _operands(facts: GraphFacts, names: frozenset[str]) -> frozenset[str]:
    """What these nodes read."""
    values = (value for name in names for value in facts.flow.nodes[name].value_args)
    return frozenset(producer(facts, value).id for value in values)


def _bytes(facts: GraphFacts, names: frozenset[str]) -> int:
    metas = [facts.flow.nodes[name].outputs[0] for name in names if facts.flow.nodes[name].outputs]
    hint = facts.flow.hint
    return sum(hint(product(m.shape), unknown=0) * item_bytes(m.dtype) for m in metas)


RULE = Rule(
    id="two-axes",
    title="Reductions over both axes of the same tensors",
    explanation=(
        "The gradient of a norm's input reduces along each row, that of its weight over all rows, "
        "and both read the same activations and gradients. Apart, these largest tensors are read "
        "twice or more; one kernel that walks over rows and keeps partial sums of the columns "
        "reads them once."
    ),
    bad="dx = f(g, x, sum(g * x, -1)); dw = sum(g * x * rstd, (0, 1)): g and x are read twice",
    good="a norm backward that returns dx and partial dw from one pass",
    find=find,
)
