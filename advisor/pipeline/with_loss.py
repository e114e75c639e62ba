"""What actions on graphs would do where a training step's loss is compiled with its model.

A loss that is computed outside the model (`cross_entropy(model(x), y)`), or a model that returns
its logits beside the loss (`model(x, labels=y).loss`), has the two in no graph of the model alone.
Traced as one function they are: what of the model's result only the loss reads is then inside, and
what it drops is computed for nobody. Dynamo proves both, for it hands on whatever anything keeps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec.structs import replace
from torch import fx, nn

from advisor.apply.graph.loss_site import NO_PROJECTION
from advisor.apply.graph.records import Rewritten
from advisor.errors import AbortedError, AdvisorError
from advisor.model.base import Location
from advisor.model.compiler import CompilerFacts
from advisor.pipeline.backend import GraphRewrite
from collectors.live.compiler_facts import CompilerWatch
from collectors.live.failures import failure
from collectors.live.loss_calls import Loss, LossOfParts, WithLoss, wrapper_in
from collectors.live.loss_outside import ops_outside
from collectors.live.random_numbers import seeded
from collectors.live.workload import RESULTS_SEED, Workload

# Data that moves makes sizes symbols within two calls; what is compiled anew after that goes on so.
CALLS = 4
MOST_TOLD = 2


def is_apart(workload: Workload) -> bool:
    """Whether a step has a loss that is not compiled with its model as it is."""
    loss, model = workload.loss, workload.part
    if workload.kind != "training" or loss is None or not isinstance(model, nn.Module):
        return False
    return not (isinstance(loss, LossOfParts) and loss.goes_through(model))


def seen_with_loss(
    workload: Workload, rewrite_graph: GraphRewrite, own: Sequence[Rewritten]
) -> list[Rewritten]:
    """What a rewrite would do where the loss of a step that `is_apart` is compiled with its model.

    Where that leaves a site each, they are `with_loss`; else these are records of `own`, what it
    would do to the model alone, with the reason. The loss runs a few times, op by op; once where
    it computes no cross-entropy.
    """
    assert isinstance(workload.part, nn.Module)
    wrapper = wrapper_in(workload.part)
    if wrapper is not None:
        why = f"{wrapper} works between the graphs of the model: its own forward must compute it"
        return _refused(own, f"it is not compiled with the loss, since {why}")
    tracing = _Tracing(rewrite_graph)
    try:
        if not _is_cross_entropy(workload):
            return list(own)
        facts = _traced(workload, workload.part, tracing)
    except AbortedError:
        raise
    except AdvisorError as error:
        return _refused(own, error.line())
    if any(record.refused is None for record in tracing.records):
        if tracing.is_unsteady:
            return _refused(own, _unsteady(facts))
        return [replace(record, with_loss=True) for record in tracing.records]
    parted = _parted(facts)
    if not tracing.records:
        return _refused(own, parted) if parted else list(own)
    return [_told(record, parted) for record in tracing.records]


@dataclass
class _Tracing:
    """Dynamo's graphs of a few calls: what a rewrite would do to them, when each was made."""

    rewrite_graph: GraphRewrite
    records: list[Rewritten] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    call: int = 0

    def backend(self, gm: fx.GraphModule, _: Sequence[Any], **__: Any) -> Callable[..., Any]:
        self.made.append(self.call)
        found = self.rewrite_graph(fx.GraphModule(gm, copy.deepcopy(gm.graph)))
        # Sizes that became symbols are the same places again.
        self.records += found if self.call == 0 or not self.records else ()
        return gm.forward

    @property
    def is_unsteady(self) -> bool:
        """Whether even the last two calls were compiled anew."""
        return {CALLS - 2, CALLS - 1} <= set(self.made)


def _is_cross_entropy(workload: Workload) -> bool:
    """Whether autograd knows of a loss over classes in a step as it is."""
    with _called(workload) as loss:
        result = loss(workload.part)
    return any(name.startswith("nll_loss") for name in ops_outside(result))


def _traced(workload: Workload, model: nn.Module, tracing: _Tracing) -> CompilerFacts:
    """Call the loss as it is compiled with its model; nothing is differentiated or written."""
    torch.compiler.reset()
    watch = CompilerWatch()
    part = WithLoss(model, tracing.backend)
    try:
        with _called(workload) as loss:
            for tracing.call in range(CALLS):
                part.loss_of(loss)
        return watch.facts()
    finally:
        torch.compiler.reset()


@contextmanager
def _called(workload: Workload) -> Iterator[Loss]:
    """The loss, to be called from the numbers of results, buffers and inputs left as they are.

    Whatever the user's code and the compiler raise comes out as `WorkloadError`.
    """
    assert workload.loss is not None
    try:
        with seeded(workload.device, RESULTS_SEED), workload.preserved():
            yield workload.loss
    except Exception as error:  # either may raise anything
        why = "compiled with its loss the step fails"
        raise failure(why, error, where=workload.target) from error


def _refused(own: Sequence[Rewritten], why: str) -> list[Rewritten]:
    if not own:
        return [Rewritten(what="the loss", location=Location(), route="chunked_loss", refused=why)]
    return [replace(record, refused=f"{record.refused}; {why}") for record in own]


def _told(record: Rewritten, parted: str) -> Rewritten:
    """A site that stays, with what parts it from its projection if that is the reason."""
    if record.refused != NO_PROJECTION or not parted:
        return record
    return replace(record, refused=f"{NO_PROJECTION}: {parted}")


def _unsteady(facts: CompilerFacts) -> str:
    text = "compiled with the model, the loss is compiled anew at every call"
    if facts.recompiles:
        last = facts.recompiles[-1]
        text += f" ({last.guard}{_at(last.location)})"
    return f"{text}: what changes between calls must be a tensor, or come from an iterator"


def _parted(facts: CompilerFacts) -> str:
    """Where the compiler parts model and loss; empty if it takes them whole."""
    breaks = [f"{item.reason}{_at(item.location)}" for item in facts.graph_breaks]
    if not breaks:
        return ""
    more = f" and {len(breaks) - MOST_TOLD} more" if len(breaks) > MOST_TOLD else ""
    return f"the compiler parts model and loss: {'; '.join(breaks[:MOST_TOLD])}{more}"


def _at(place: Location) -> str:
    return f" at {place.file}:{place.line}" if place.file else ""
