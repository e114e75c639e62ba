"""Convolution, BatchNorm, activation: three passes where the convolution's own would do."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.model.findings import Alternative
from advisor.model.graph import Node
from advisor.units import counted
from analyzers.library_ops import BATCH_NORMS, CONVOLUTIONS
from analyzers.rules.base import Cost, Match, Place, Rule, cost_of, is_worth, opportunity
from analyzers.rules.chains import single_reader
from analyzers.rules.walk import calls, elements, operands
from analyzers.subject import GraphFacts, Subject

_ACTIVATIONS = ("relu", "maximum", "sigmoid", "mul")


@dataclass(frozen=True)
class _Site:
    place: Place
    folds: bool
    activation: bool


def find(subject: Subject) -> tuple[Match, ...]:
    """One finding for inference (BatchNorm folds into the weights), one for training."""
    sites = [
        site
        for facts in subject.graphs
        for node in facts.graph.nodes
        if calls(node, BATCH_NORMS) and (site := _site(subject, facts, node)) is not None
    ]
    found = []
    for folds in (True, False):
        chosen = [s for s in sites if s.folds is folds]
        places = [s.place for s in chosen]
        if places:
            cost = cost_of(subject, places)
            if is_worth(subject, cost):
                found.append(_match(subject, chosen, cost, folds))
    return tuple(found)


def _match(subject: Subject, sites: list[_Site], cost: Cost, folds: bool) -> Match:
    count, activated = len(sites), sum(site.activation for site in sites)
    what = "BatchNorm + ReLU" if activated else "BatchNorm"
    if folds:
        title = f"{what} behind convolutions as passes of their own, {counted(count, 'site')}"
        action = (
            "fold BatchNorm into the convolution's weights "
            "(torch.nn.utils.fusion.fuse_conv_bn_eval, or torch.compile"
            " with freezing) and let the convolution apply the activation"
        )
        text = (
            "in inference BatchNorm is a constant scale and shift per channel: folded into the "
            "weights it costs nothing, and addition and ReLU fit the convolution's epilogue"
        )
    else:
        title = f"{what} in separate ops, {counted(count, 'site')}"
        action = (
            "fuse the normalisation with its activation and residual (torch.compile, cuDNN's fused "
            "BatchNorm)"
        )
        text = "the activation reads and writes the whole tensor once more behind the normalisation"
    return opportunity(
        RULE.id,
        subject,
        [site.place for site in sites],
        cost,
        title=title,
        action=action,
        dataflow=text,
        values={"activations": activated},
        alternatives=(
            Alternative(
                route="compile_region",
                text="torch.compile fuses scale, shift, addition and ReLU into one kernel",
            ),
        ),
        key=f"folds={folds}",
    )


def _site(subject: Subject, facts: GraphFacts, node: Node) -> _Site | None:
    if not subject.free(facts, node.id) or not node.value_args:
        return None
    before = next(operands(facts, node))
    convolved = calls(before, CONVOLUTIONS)
    members = {node.id}
    activation = False
    current, size = node, elements(facts, node)
    while (reader := single_reader(facts, current)) is not None:
        if elements(facts, reader) != size or not subject.free(facts, reader.id):
            break
        if reader.op not in ("add", *_ACTIVATIONS):
            break
        members.add(reader.id)
        activation |= reader.op in _ACTIVATIONS
        current = reader
        if activation:
            break
    folds = convolved and _is_inference(node)
    if len(members) == 1 and not folds:
        return None
    return _Site(Place(facts, frozenset(members), gone=folds), folds, activation)


def _is_inference(node: Node) -> bool:
    """Whether the node was recorded with training = False, or is the inference-only variant."""
    return node.attributes.get("training") is False or "no_training" in node.target


RULE = Rule(
    id="batch-norm",
    title="Convolution, BatchNorm and activation in separate passes",
    explanation=(
        "A BatchNorm in inference is y = a·x + b per channel with constants a and b, which a "
        "convolution's weights and bias can contain. In training the statistics are needed, but "
        "the activation and the residual sum still fit the same pass."
    ),
    bad="conv2d, batch_norm, relu: the activation tensor makes five trips to memory",
    good="weights folded, ReLU in the convolution's epilogue: one trip",
    find=find,
)
