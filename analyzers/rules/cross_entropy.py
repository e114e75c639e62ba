"""Cross-entropy over a large vocabulary, written as log-softmax, loss and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from advisor.model.findings import Alternative, Evidence
from advisor.model.graph import Node
from advisor.model.loss_chunks import LossSizes, rows_of_chunk
from advisor.model.optable import item_bytes, spec_of
from advisor.model.sizes import product
from advisor.units import format_bytes
from analyzers.library_ops import call_of, is_library_call
from analyzers.rules.base import Match, Place, Rule, cost_of, is_pointwise, is_worth, opportunity
from analyzers.rules.chains import in_pieces, units_of
from analyzers.rules.walk import calls, elements, is_copy, is_gemm, operands
from analyzers.subject import GraphFacts, Subject

_LOG_SOFTMAX = frozenset({"_log_softmax"})
_LOSS = frozenset({"nll_loss_forward", "nll_loss_backward", "_log_softmax_backward_data"})
_FILLS = frozenset({"fill_", "zero_"})
_BACKWARD = frozenset({"nll_loss_backward", "_log_softmax_backward_data"})
_MOST_OPS = 16
# Fewer classes than this fit any cache: the matrix of logits is not what the step spends time on.
_FEWEST_CLASSES = 4_096


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for all losses of the step."""
    places = []
    losses = []
    classes = 0
    for facts in subject.graphs:
        for node in facts.graph.nodes:
            if (
                not calls(node, _LOG_SOFTMAX)
                or not node.outputs
                or not subject.free(facts, node.id)
            ):
                continue
            width = node.outputs[0].shape[-1]
            if isinstance(width, int) and width >= _FEWEST_CLASSES:
                classes = max(classes, width)
                place = Place(facts, frozenset(_around(subject, facts, node)))
                subject = subject.without(place.nodes)
                places.append(place)
                losses += [sizes for sizes in (_sizes(facts, node),) if sizes is not None]
    cost = cost_of(subject, places)
    if not any(len(place.fused) > 1 for place in places) or not is_worth(subject, cost):
        return ()
    ops = max(units_of(place.facts, place.fused) for place in places)
    match = opportunity(
        RULE.id,
        subject,
        places,
        cost,
        title=f"Cross-entropy over {classes:,} classes {in_pieces(places[0].facts, ops)}",
        action="use a fused linear cross-entropy (Liger, Apex), or torch.compile of the loss",
        dataflow=(
            "log-softmax, loss and gradient each read and write the whole matrix of logits;"
            " row by row, the gradient follows from the logits in one pass"
        ),
        values={"classes": classes},
        alternatives=(
            Alternative(
                route="library",
                text="chunked over tokens together with the projection, the logits never exist: "
                "what `apply` tries as chunked_loss, outside the model too",
            ),
        ),
        key="cross-entropy",
    )
    evidence = (*match.finding.evidence, *_memory(losses))
    return (replace(match, finding=msgspec.structs.replace(match.finding, evidence=evidence)),)


def _memory(losses: list[LossSizes]) -> tuple[Evidence, ...]:
    """What the losses need less memory for, computed with their projections in pieces."""
    chunks = [rows_of_chunk(loss.rows, loss.classes, loss.item_bytes) for loss in losses]
    saved = sum(
        max(loss.saved_bytes(chunk, compiled=False), 0)
        for loss, chunk in zip(losses, chunks, strict=True)
        if chunk < loss.rows
    )
    if not saved:
        return ()
    logits = sum(loss.logits_bytes for loss in losses)
    text = (
        f"{format_bytes(logits)} of logits need never exist whole: with the projection computed "
        f"{max(chunks):,} rows at a time, loss and gradients at once, the step holds "
        f"{format_bytes(saved)} less there; no matrix product is done twice"
    )
    return (
        Evidence(
            kind="resources",
            text=text,
            values={
                "logits_bytes": logits,
                "activation_bytes_saved": saved,
                "extra_matrix_products": 0,
            },
        ),
    )


def _sizes(facts: GraphFacts, loss: Node) -> LossSizes | None:
    """The sizes of the projection whose logits a log-softmax reads; None if it is not found.

    The weight of a step that trains is taken to train, too.
    """
    node, passed = loss, 0
    while not is_gemm(node) and passed < _MOST_OPS:
        size, passed = elements(facts, node), passed + 1
        wide = [item for item in operands(facts, node) if elements(facts, item) == size]
        if not wide or not (node.id == loss.id or is_copy(node) or is_pointwise(facts, node.id)):
            return None
        node = wide[0]
    sources = [facts.flow.meta(value) for value in node.value_args]
    matrices = [meta for meta in sources if meta is not None and len(meta.shape) >= 2]
    shape = loss.outputs[0].shape
    rows, classes = product(shape[:-1]), shape[-1]
    features = matrices[0].shape[-1] if len(matrices) >= 2 else None
    if rows.symbols or not (isinstance(classes, int) and isinstance(features, int)):
        return None
    trains = any(calls(item, _BACKWARD) for item in facts.graph.nodes)
    width = item_bytes(node.outputs[0].dtype)
    return LossSizes(rows.coefficient, classes, features, width, trains, trains)


def _around(subject: Subject, facts: GraphFacts, start: Node) -> Iterator[str]:
    """The ops on the matrix of logits between the matrix products before and after the loss."""
    nodes = [n for n in facts.graph.nodes if n.id in facts.flow.index]
    at = nodes.index(start)
    size = elements(facts, start)

    def belongs(node: Node) -> bool:
        if node.id == start.id or calls(node, _LOSS):
            return True
        same = bool(node.outputs) and product(node.outputs[0].shape) == size
        return same and (is_pointwise(facts, node.id) or calls(node, _FILLS))

    for stretch in (reversed(nodes[:at]), iter(nodes[at:])):
        for node in stretch:
            if spec_of(node.op).kind == "opaque" and is_library_call(call_of(node)):
                break
            if belongs(node) and subject.free(facts, node.id):
                yield node.id


RULE = Rule(
    id="cross-entropy",
    title="Cross-entropy over a large vocabulary in pieces",
    explanation=(
        "The logits of a language model are its largest tensor. Cast to float32, log-softmax, loss"
        " and both gradients pass over it six times and more. Since the gradient of a row is its"
        " softmax minus one at the label, one pass computes loss and gradient together."
    ),
    bad="float(), log_softmax, nll_loss, their two backward kernels, cast back: six passes",
    good="a fused cross-entropy kernel: one read, one write",
    find=find,
)
