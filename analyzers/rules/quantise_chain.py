"""Dynamic quantisation in pieces: largest magnitude, a scale from it, the cast by that scale."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence, Finding
from advisor.model.graph import Node
from advisor.model.optable import FLOAT_DTYPES, item_bytes, spec_of
from advisor.model.sizes import ONE, product
from advisor.units import counted, format_fraction
from analyzers.library_ops import call_of
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
from analyzers.rules.chains import in_pieces, units_of
from analyzers.rules.walk import calls, elements, is_gemm, moves_only, operands, producer, readers
from analyzers.subject import GraphFacts, Subject

_NARROW = (
    "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip
_CASTS = frozenset({"copy_", "_to_copy", "to", "convert_element_type"})
_ROUNDINGS = frozenset({"round", "clamp", "clamp_"})
_MAXIMA = frozenset({"max", "amax"})
_MOST_STEPS = 12


@dataclass(frozen=True)
class _Chain:
    """From the largest magnitude to the cast: `fused` nodes, the cast's copies among them."""

    facts: GraphFacts
    cast: Node
    fused: frozenset[str]
    root: Node
    reduction: Node
    copies: tuple[Node, ...]

    @property
    def whole(self) -> bool:
        """Whether the tensor has one scale; else a row or a group of a row has."""
        return elements(self.facts, self.reduction) == ONE

    @property
    def products(self) -> frozenset[str]:
        """Matrix products that read the narrow tensor."""
        users = [r for node in (self.cast, *self.copies) for r in readers(self.facts, node)]
        return frozenset(node.id for node in users if is_gemm(node))

    def scale_readers(self) -> int:
        """Ops outside the chain that read a small value of it: the scale is theirs too."""
        flow = self.facts.flow
        small = [
            flow.nodes[n]
            for n in self.fused
            if elements(self.facts, flow.nodes[n]) == elements(self.facts, self.reduction)
        ]
        outside = {r.id for node in small for r in readers(self.facts, node)} - self.fused
        return len(outside)


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for each kind of quantisation: its dtype, and what one scale is for."""
    found: dict[tuple[str, bool], list[_Chain]] = {}
    for facts in subject.graphs:
        maxima = list(_maxima(facts))
        for node in facts.graph.nodes:
            chain = _chain(subject, facts, node, maxima) if maxima else None
            if chain is not None:
                subject = subject.without(Place(facts, chain.fused).nodes)
                key = (node.outputs[0].dtype, chain.whole)
                found.setdefault(key, []).append(chain)
    matches = []
    for (dtype, whole), chains in found.items():
        places = [Place(chain.facts, chain.fused) for chain in chains]
        cost = _cost(subject, places, chains if whole else [])
        if is_worth(subject, cost):
            matches.append(_match(subject, dtype, chains, places, cost))
    return tuple(matches)


def _cost(subject: Subject, places: list[Place], read_twice: list[_Chain]) -> Cost:
    """One pass over the tensor, but two where a single scale has to be known before the cast."""
    cost = cost_of(subject, places)
    again = sum(_root_bytes(chain) for chain in read_twice)
    after = min(cost.bytes_after + again, cost.bytes_before)
    share = 1 - after / cost.bytes_before if cost.bytes_before else 0.0
    gone = min(round(cost.time_ns * share), cost.saved_ns.high)
    return replace(
        cost, bytes_after=after, saved_ns=Range(low=0, mid=gone, high=cost.saved_ns.high)
    )


def _root_bytes(chain: _Chain) -> int:
    """What one read of the tensor to be quantised moves."""
    meta = chain.root.outputs[0]
    return chain.facts.flow.hint(product(meta.shape), unknown=0) * item_bytes(meta.dtype)


def _match(
    subject: Subject, dtype: str, chains: list[_Chain], places: list[Place], cost: Cost
) -> Match:
    first = chains[0]
    ops = max(units_of(chain.facts, chain.fused) for chain in chains)
    kind = "one scale a tensor" if first.whole else "a scale a row or group"
    copied = any(chain.copies for chain in chains)
    products = _product_time(chains)
    share = cost.time_ns / (cost.time_ns + products) if products else None
    others = sum(chain.scale_readers() for chain in chains)
    match = opportunity(
        RULE.id,
        subject,
        places,
        cost,
        title=(
            f"Quantisation to {dtype}, {kind}, {in_pieces(chains[0].facts, ops)}, "
            f"{counted(len(chains), 'site')}"
        ),
        action=_action(first.whole, copied),
        dataflow=(
            "largest magnitude → scale → cast"
            + (" → copy in the other order" if copied else "")
            + ": each op passes over the tensor again"
        ),
        values={"scale_readers": others, "products_ns": products},
        alternatives=_alternatives(first.whole, copied),
        key=f"{dtype}|{kind}",
    )
    return replace(match, finding=_with_bounds(match, share, others))


def _with_bounds(match: Match, share: float | None, others: int) -> Finding:
    """What bounds the gain, and what a second reader of the scale bars and does not bar."""
    more = []
    if share is not None:
        text = (
            f"these ops are {format_fraction(share)} of the time of quantisation and matrix "
            "product together: the gain is at most that, however few kernels are left"
        )
        more.append(Evidence(kind="time", text=text, values={"overhead_fraction": share}))
    if others:
        text = (
            f"{counted(others, 'other op')} read the scale: it has to be stored, once; that bars "
            "leaving the store out, not the fusion"
        )
        more.append(Evidence(kind="legality", text=text, values={"scale_readers": others}))
    head, *rest = match.finding.evidence
    return msgspec.structs.replace(match.finding, evidence=(head, *more, *rest))


def _action(whole: bool, copied: bool) -> str:
    tiles = "; write both orders of the narrow tensor from one tile" if copied else ""
    if whole:
        return (
            "compute the maximum where the tensor is written (an epilogue), or reuse the scale of "
            f"the step before (delayed scaling); then the cast is one pass{tiles}"
        )
    return (
        "one kernel a row: maximum, scale and cast in one pass (torch.compile, a generated kernel, "
        f"or the quantiser of the inference engine){tiles}"
    )


def _alternatives(whole: bool, copied: bool) -> tuple[Alternative, ...]:
    found = []
    if whole:
        text = (
            "all into one kernel: with one scale a tensor, its last element may change the scale, "
            "so the maximum needs a whole pass before the first cast"
        )
        found.append(Alternative(route="do_not_fuse", text=text))
    if copied:
        text = (
            "the copy in the other order into a row kernel: it needs tiles; Inductor keeps it apart"
        )
        found.append(Alternative(route="do_not_fuse", text=text))
    return tuple(found)


def _product_time(chains: list[_Chain]) -> int:
    """Kernel time of the matrix products that read what the chains wrote."""
    wanted: dict[str, tuple[GraphFacts, set[str]]] = {}
    for chain in chains:
        facts = chain.facts
        wanted.setdefault(facts.graph.id, (facts, set()))[1].update(chain.products)
    return sum(
        facts.prices.price(facts.flow, frozenset(names)).time_ns for facts, names in wanted.values()
    )


# --- the pattern ----------------------------------------------------------------------------------


def _maxima(facts: GraphFacts) -> Iterator[tuple[Node, tuple[str, ...], Node]]:
    """(reduction, the nodes from the tensor to it, the tensor) for each largest magnitude."""
    for node in facts.graph.nodes:
        if not (node.op == "amax" or calls(node, _MAXIMA)) or not node.value_args:
            continue
        inside = [node.id]
        at = producer(facts, node.value_args[0])
        magnitude = False
        while at.op in ("abs", "cast") and at.value_args:
            inside.append(at.id)
            magnitude |= at.op == "abs"
            at = producer(facts, at.value_args[0])
        if magnitude:
            yield node, tuple(inside), at


def _chain(
    subject: Subject,
    facts: GraphFacts,
    cast: Node,
    maxima: list[tuple[Node, tuple[str, ...], Node]],
) -> _Chain | None:
    """The chain that ends in this cast, or None."""
    if not _narrows(facts, cast):
        return None
    size = elements(facts, cast)
    members, small = [cast.id], list[Node]()
    at = producer(facts, cast.value_args[0])
    for _ in range(_MOST_STEPS):
        for reduction, inside, root in maxima:
            path = _path(facts, small, reduction) if _same(facts, root, at) else None
            if path is not None and facts.flow.index[reduction.id] < facts.flow.index[cast.id]:
                fused = frozenset({*members, *inside, *path})
                copies = tuple(r for r in readers(facts, cast) if moves_only(facts, r))
                fused |= {copy.id for copy in copies}
                free = all(subject.free(facts, name) for name in fused)
                return _Chain(facts, cast, fused, at, reduction, copies) if free else None
        if not (is_pointwise(facts, at.id) or calls(at, _ROUNDINGS)) or not at.value_args:
            return None
        sides = list(operands(facts, at))
        wide = [node for node in sides if elements(facts, node) == size]
        if len(wide) != 1:
            return None
        small += [node for node in sides if node is not wide[0]]
        members.append(at.id)
        at = wide[0]
    return None


def _narrows(facts: GraphFacts, node: Node) -> bool:
    """A conversion of floating-point numbers to eight bits."""
    if not (node.op == "cast" or calls(node, _CASTS)) or not node.value_args or not node.outputs:
        return False
    meta = facts.flow.meta(node.value_args[0])
    return node.outputs[0].dtype in _NARROW and meta is not None and meta.dtype in FLOAT_DTYPES


def _same(facts: GraphFacts, first: Node, second: Node) -> bool:
    """One value; two reads of a value of unknown origin are one if they look the same."""
    if first.id == second.id:
        return True
    return (
        facts.graph.source == "inferred"
        and _is_input(facts, first)
        and _is_input(facts, second)
        and first.outputs == second.outputs
    )


def _is_input(facts: GraphFacts, node: Node) -> bool:
    return node.id in facts.graph.inputs


def _path(facts: GraphFacts, small: list[Node], reduction: Node) -> frozenset[str] | None:
    """The ops from the reduction to a scale among `small`, or None if it leads to none.

    A bare trace does not link values without axes: there a lone number stands for the scale.
    """
    for scale in small:
        seen: dict[str, Node] = {}
        pending = [scale]
        while pending and len(seen) <= _MOST_STEPS:
            node = pending.pop()
            if node.id == reduction.id:
                return frozenset(seen)
            if spec_of(node.op).kind in ("pointwise", "reduction") or call_of(node) in _ROUNDINGS:
                seen[node.id] = node
                pending += operands(facts, node)
        lone = _is_input(facts, scale) and elements(facts, scale) == ONE
        if lone and facts.graph.source == "inferred" and elements(facts, reduction) == ONE:
            return frozenset()
    return None


RULE = Rule(
    id="quantise-chain",
    title="Dynamic quantisation in pieces",
    explanation=(
        "To quantise a tensor at run time, its largest magnitude gives a scale, and a cast applies "
        "it. As separate ops each passes over the tensor, and a copy in the other order for the "
        "second matrix product passes once more. With a scale a row or group, one kernel does all; "
        "with one scale a tensor two passes remain. What can be gained is the share of these ops, "
        "not the number of kernels. A scale that the matrix product reads too is stored once."
    ),
    bad="abs, max, clamp, reciprocal, mul, clamp, to(float8_e4m3fn), t().contiguous()",
    good="a fused quantiser that writes both orders and the scale; or delayed scaling",
    find=find,
)
