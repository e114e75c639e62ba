"""Convolution, BatchNorm, activation: three passes where the convolution's own would do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from advisor.model.base import Range
from advisor.model.findings import Alternative
from advisor.model.graph import Node
from advisor.units import counted
from analyzers.library_ops import BATCH_NORMS, CONVOLUTIONS
from analyzers.rules.base import (
    WORTH_SHARE,
    Cost,
    Match,
    Place,
    Rule,
    cost_of,
    is_worth,
    opportunity,
)
from analyzers.rules.chains import apart, single_reader
from analyzers.rules.walk import calls, elements, is_view, operands
from analyzers.subject import GraphFacts, Subject

# In the name of the op that normalises with constant statistics.
_NO_TRAINING = "batch_norm_legit_no_training"
_LEFT = ", and compile: addition and activation are then one pass"
_LEFT_COMPILED = (
    "; the pass over addition and activation then goes only where the convolution applies them too "
    "(cuDNN's, with bias and activation)"
)
_ACTIVATIONS = ("relu", "maximum", "sigmoid", "mul")


@dataclass(frozen=True)
class _Norm:
    """A BatchNorm: its nodes, the one that yields the result, and what it normalises."""

    nodes: frozenset[str]
    last: Node
    before: Node
    inference: bool


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
        for site in _joined(
            _site(subject, facts, norm) for norm in (*_called(facts), *_decomposed(facts))
        )
    ]
    found = []
    for folds in (True, False):
        chosen = [s for s in sites if s.folds is folds]
        places = [s.place for s in chosen]
        if places:
            cost = cost_of(subject, places)
            compiled = folds and all(place.facts.prices.fused for place in places)
            if compiled:
                cost = replace(cost, saved_ns=_with_epilogue(cost))
            if is_worth(subject, cost) or (compiled and _is_long(subject, cost)):
                found.append(_match(subject, chosen, cost, folds))
    return tuple(found)


def _with_epilogue(cost: Cost) -> Range:
    """Compiled, a folded norm leaves its kernel what follows it, unless the convolution does that.

    Whether a library has such a convolution depends on its shape: it is the upper bound alone.
    """
    return Range(low=0, mid=cost.saved_ns.mid, high=cost.time_ns)


def _is_long(subject: Subject, cost: Cost) -> bool:
    busy = subject.balance.device_ns if subject.balance else 0
    return cost.time_ns > WORTH_SHARE * busy > 0


def _match(subject: Subject, sites: list[_Site], cost: Cost, folds: bool) -> Match:
    count, activated = len(sites), sum(site.activation for site in sites)
    what = "BatchNorm + ReLU" if activated else "BatchNorm"
    # What follows a folded BatchNorm still reads and writes the tensor.
    more = any(not site.place.gone for site in sites)
    compiled = all(site.facts.prices.fused for site in (s.place for s in sites))
    if folds:
        title = f"{what} behind convolutions as passes of their own, {counted(count, 'site')}"
        action = (
            "fold BatchNorm into the convolution's weights "
            "(torch.nn.utils.fusion.fuse_conv_bn_eval, or torch.compile with freezing)"
            + (_LEFT_COMPILED if more and compiled else _LEFT if more else "")
        )
        text = (
            "in inference BatchNorm is a constant scale and shift per channel: folded into the "
            "weights it costs nothing"
            + ("; addition and activation are left, as one pass" if more else "")
        )
    else:
        title = f"{what} {apart(sites[0].place.facts)}, {counted(count, 'site')}"
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


def _called(facts: GraphFacts) -> Iterator[_Norm]:
    """As a trace has them: one call each."""
    for node in facts.graph.nodes:
        if calls(node, BATCH_NORMS) and node.value_args:
            before = next(operands(facts, node))
            inference = node.attributes.get("training") is False or _NO_TRAINING in node.target
            yield _Norm(frozenset({node.id}), node, before, inference)


def _decomposed(facts: GraphFacts) -> Iterator[_Norm]:
    """As a capture has those of inference: a scale and a shift a channel, op by op."""
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in facts.graph.nodes:
        computes = node.op != "opaque" and not is_view(node)
        if computes and node.origin is not None and _NO_TRAINING in node.label:
            groups.setdefault((node.origin, node.label), []).append(node)
    for nodes in groups.values():
        last = nodes[-1]
        size = elements(facts, last)
        # What is as small as the channels, the one kernel computes beside the tensor.
        wide = [node for node in nodes if elements(facts, node) == size]
        names = frozenset(node.id for node in wide)
        outside = (item for node in wide for item in operands(facts, node))
        before = next(
            (item for item in outside if item.id not in names and elements(facts, item) == size),
            None,
        )
        if before is not None:
            yield _Norm(names, last, before, True)


def _joined(sites: Iterable[_Site | None]) -> list[_Site]:
    """Sites that share nodes as one: two norms may end in one sum, as where a block downsamples."""
    found: list[_Site] = []
    for grown in filter(None, sites):
        for other in [one for one in found if one.place.fused & grown.place.fused]:
            found.remove(other)
            grown = _both(grown, other)  # noqa: PLW2901
        found.append(grown)
    return found


def _both(site: _Site, other: _Site) -> _Site:
    fused = site.place.fused | other.place.fused
    return _Site(
        replace(site.place, fused=fused, gone=False),
        site.folds and other.folds,
        site.activation or other.activation,
    )


def _site(subject: Subject, facts: GraphFacts, norm: _Norm) -> _Site | None:
    if not all(subject.free(facts, name) for name in norm.nodes):
        return None
    members = set(norm.nodes)
    activation = False
    current, size = norm.last, elements(facts, norm.last)
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
    folds = norm.inference and calls(norm.before, CONVOLUTIONS)
    if members == norm.nodes and not folds:
        return None
    gone = folds and members == norm.nodes
    return _Site(Place(facts, frozenset(members), gone=gone), folds, activation)


RULE = Rule(
    id="batch-norm",
    title="Convolution, BatchNorm and activation in separate passes",
    explanation=(
        "A BatchNorm in inference is y = a·x + b per channel with constants a and b, which a "
        "convolution's weights and bias can contain. In training the statistics are needed, but "
        "the activation and the residual sum still fit the same pass."
    ),
    bad="conv2d, batch_norm, relu: the activation tensor makes five trips to memory",
    good="weights folded: ReLU alone reads and writes the tensor",
    find=find,
)
