"""Attention written out: matrix product, scaling and mask, softmax, matrix product."""

from __future__ import annotations

from advisor.model.findings import Alternative
from advisor.model.graph import Node, node_of
from advisor.model.optable import spec_of
from advisor.model.sizes import Dim
from advisor.units import counted
from analyzers.library_ops import DROPOUTS
from analyzers.rules.base import (
    Match,
    Place,
    Rule,
    cost_of,
    is_pointwise,
    is_worth,
    opportunity,
)
from analyzers.rules.softmaxes import Softmax, softmaxes
from analyzers.rules.walk import calls, elements, is_copy, is_gemm, operands, readers
from analyzers.subject import GraphFacts, Subject

_MOST_OPS = 16


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for all attention blocks of the step, one for calls of SDPA that became such."""
    places = [
        place
        for facts in subject.graphs
        for item in softmaxes(facts)
        if (place := _block(facts, item)) is not None
    ]
    called = [place for place in places if _is_one_call(place)]
    written = [place for place in places if place not in called]
    return (*_written_out(subject, written), *_fallen_back(subject, called))


def _written_out(subject: Subject, places: list[Place]) -> tuple[Match, ...]:
    if not places:
        return ()
    cost = cost_of(subject, places)
    if not is_worth(subject, cost):
        return ()
    count, masked = len(places), sum(_has_mask(place.facts, place) for place in places)
    title = f"Attention written out, {counted(count, 'site')}"
    text = (
        f"{counted(count, 'softmax', 'softmaxes')} between two matrix products: the score matrix "
        "is written and read by every op in between; fused attention never stores it"
    )
    return (
        opportunity(
            RULE.id,
            subject,
            places,
            cost,
            title=title,
            action="call torch.nn.functional.scaled_dot_product_attention"
            + (" with the mask (is_causal=True where it is the causal one)" if masked else ""),
            dataflow=text,
            values={"masked_sites": masked},
            route="library",
            alternatives=(
                Alternative(
                    route="library",
                    text="FlexAttention for masks and biases SDPA's fast kernels refuse",
                ),
                Alternative(
                    route="generated_kernel",
                    text="scaling, mask, softmax and casts as one kernel between the two products",
                ),
                Alternative(
                    route="do_not_fuse",
                    text=(
                        "if the attention weights themselves are returned or dropped by module "
                        "hooks"
                    ),
                ),
            ),
        ),
    )


def _fallen_back(subject: Subject, places: list[Place]) -> tuple[Match, ...]:
    """`scaled_dot_product_attention` that PyTorch ran as products and a softmax ("math")."""
    if not places:
        return ()
    cost = cost_of(subject, places)
    if not is_worth(subject, cost):
        return ()
    strides = {_stride_of_mask(place) for place in places} - {None}
    text = (
        "none of the fused kernels takes these calls of scaled_dot_product_attention, so the score "
        "matrix is written and read by every op"
    )
    if strides:
        text += f"; they ask for a mask whose last axis has stride 1, here {_in_words(strides)}"
    return (
        opportunity(
            RULE.id,
            subject,
            places,
            cost,
            title=f"SDPA falls back to math, {counted(len(places), 'site')}",
            action=(
                "call .contiguous() on the mask before scaled_dot_product_attention"
                if strides
                else "give scaled_dot_product_attention arguments that a fused kernel takes"
            ),
            dataflow=text,
            values={"sdpa_math_sites": len(places)},
            route="library",
            alternatives=(
                Alternative(
                    route="library",
                    text="torch.nn.attention.sdpa_kernel without MATH tells what each refuses",
                ),
                Alternative(
                    route="do_not_fuse", text="if scores are wanted in float64, or have no batch"
                ),
            ),
        ),
    )


def _is_one_call(place: Place) -> bool:
    """Whether both products come from one op of the program, which must be library attention."""
    nodes = place.facts.flow.nodes
    origins = {nodes[name].origin for name in place.kept}
    return len(origins) == 1 and None not in origins


def _stride_of_mask(place: Place) -> Dim | None:
    """The last stride of what is added to the scores, where it is known and not 1."""
    facts = place.facts
    for name in place.fused:
        node = facts.flow.nodes[name]
        if node.op != "add" or len(node.value_args) != 2:
            continue
        for value in node.value_args:
            source, output = node_of(value)
            if source in place.fused | place.kept or source not in facts.flow.nodes:
                continue
            outputs = facts.flow.nodes[source].outputs
            strides = outputs[output].strides if output < len(outputs) else ()
            if strides and strides[-1] != 1:
                return strides[-1]
    return None


def _in_words(strides: set[Dim | None]) -> str:
    return ", ".join(sorted(map(str, strides)))


def _block(facts: GraphFacts, item: Softmax) -> Place | None:
    """The ops between the two products around a softmax, and the products; None without them."""
    before = _upwards(facts, item)
    after = _downwards(facts, item)
    if before is None or after is None:
        return None
    inner, scores = before
    outer, result = after
    copies = frozenset(
        node.id
        for product in (scores, result)
        for node in operands(facts, product)
        if is_copy(node)
    )
    inner_copies = frozenset(name for name in copies if facts.flow.nodes[name].id not in inner)
    fused = frozenset(item.nodes) | inner | outer | inner_copies
    return Place(facts, fused, kept=frozenset((scores.id, result.id)))


def _upwards(facts: GraphFacts, item: Softmax) -> tuple[frozenset[str], Node] | None:
    """Pointwise ops of the score matrix back to the product that made it."""
    size = elements(facts, facts.flow.nodes[item.last])
    passed: set[str] = set()
    node = item.source
    while len(passed) < _MOST_OPS:
        if is_gemm(node):
            return frozenset(passed), node
        if not is_pointwise(facts, node.id) or elements(facts, node) != size:
            return None
        passed.add(node.id)
        wide = [o for o in operands(facts, node) if elements(facts, o) == size and o.value_args]
        if not wide:
            return None
        node = next((o for o in wide if is_gemm(o)), wide[0])
    return None


def _downwards(facts: GraphFacts, item: Softmax) -> tuple[frozenset[str], Node] | None:
    """Casts and dropout of the weights on to the product that reads them."""
    passed: set[str] = set()
    node = facts.flow.nodes[item.last]
    while len(passed) < _MOST_OPS:
        users = readers(facts, node)
        product = next((user for user in users if is_gemm(user)), None)
        if product is not None:
            return frozenset(passed), product
        nexts = [u for u in users if is_pointwise(facts, u.id) or calls(u, DROPOUTS)]
        if not nexts:
            return None
        node = nexts[0]
        passed.add(node.id)
    return None


def _has_mask(facts: GraphFacts, place: Place) -> bool:
    nodes = (facts.flow.nodes[name] for name in place.fused)
    return any(
        node.op == "where" or (node.op == "add" and len(node.value_args) == 2)
        for node in nodes
        if spec_of(node.op).kind == "pointwise"
    )


RULE = Rule(
    id="attention-written-out",
    title="Attention in separate ops",
    explanation=(
        "softmax(Q Kᵀ) V written as ops stores the score matrix, which grows with the square of "
        "the sequence, and reads it once per op. FlashAttention (T. Dao et al., 2022) computes it "
        "tile by tile and stores only the result."
    ),
    bad=(
        "bmm, mul by the scale, add of the mask, cast, softmax, cast, bmm: seven kernels on a 134 "
        "MB matrix"
    ),
    good="scaled_dot_product_attention or flex_attention: one kernel",
    find=find,
)
