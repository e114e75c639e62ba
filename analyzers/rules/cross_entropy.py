"""Cross-entropy over a large vocabulary, written as log-softmax, loss and their gradients."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.model.findings import Alternative
from advisor.model.graph import Node
from advisor.model.optable import spec_of
from advisor.model.sizes import product
from analyzers.library_ops import call_of, is_library_call
from analyzers.rules.base import Match, Place, Rule, cost_of, is_pointwise, is_worth, opportunity
from analyzers.rules.chains import units_of
from analyzers.rules.walk import calls, elements
from analyzers.subject import GraphFacts, Subject

_LOG_SOFTMAX = frozenset({"_log_softmax"})
_LOSS = frozenset({"nll_loss_forward", "nll_loss_backward", "_log_softmax_backward_data"})
_FILLS = frozenset({"fill_", "zero_"})
# Fewer classes than this fit any cache: the matrix of logits is not what the step spends time on.
_FEWEST_CLASSES = 4_096


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for all losses of the step."""
    places = []
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
    cost = cost_of(subject, places)
    if not any(len(place.fused) > 1 for place in places) or not is_worth(subject, cost):
        return ()
    ops = max(units_of(place.facts, place.fused) for place in places)
    return (
        opportunity(
            RULE.id,
            subject,
            places,
            cost,
            title=f"Cross-entropy over {classes:,} classes in {ops} separate ops",
            action="use a fused linear cross-entropy (Liger, Apex), or torch.compile of the loss",
            dataflow=(
                "log-softmax, loss and gradient each read and write the whole matrix of logits;"
                " row by row, the gradient follows from the logits in one pass"
            ),
            values={"classes": classes},
            alternatives=(
                Alternative(
                    route="library",
                    text="chunked over tokens together with the projection, the logits never exist",
                ),
            ),
            key="cross-entropy",
        ),
    )


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
