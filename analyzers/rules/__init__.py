"""The rules, in the order in which they claim nodes: wide patterns before the chains inside them.

Every rule looks at the same `Subject`, whether its graphs were captured exactly or inferred from a
bare trace.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from advisor.model.findings import Evidence
from analyzers.rules import (
    already,
    attention,
    batch_norm,
    communication,
    copies,
    cross_entropy,
    gated_mlp,
    gemm_epilogue,
    graph_breaks,
    horizontal,
    launch_bound,
    layout,
    library_norm,
    moe_combine,
    optimizer,
    over_fusion,
    pointwise,
    quantise_chain,
    recompiles,
    rotary,
    row_program,
    scan,
    softmax_chain,
    straggler,
    two_axes,
)
from analyzers.rules.base import Match, Rule
from analyzers.rules.chain_plans import with_kernels
from analyzers.rules.overlaps import changes_of, without_overlaps
from analyzers.subject import Subject

RULES: tuple[Rule, ...] = (
    launch_bound.RULE,
    straggler.RULE,
    communication.RULE,
    attention.RULE,
    scan.RULE,
    batch_norm.RULE,
    rotary.RULE,
    gated_mlp.RULE,
    quantise_chain.RULE,
    moe_combine.RULE,
    row_program.RULE,
    gemm_epilogue.RULE,
    two_axes.RULE,
    cross_entropy.RULE,
    softmax_chain.RULE,
    library_norm.RULE,
    optimizer.RULE,
    layout.RULE,
    pointwise.RULE,
    copies.RULE,
    horizontal.RULE,
    graph_breaks.RULE,
    recompiles.RULE,
    over_fusion.RULE,
    already.RULE,
)

__all__ = ["RULES", "Match", "Rule", "changes_of", "find_all", "without_overlaps"]


def find_all(subject: Subject) -> tuple[Match, ...]:
    """The findings of all rules; a node is of the first rule that claims it; bets claim none."""
    found: list[Match] = []
    for rule in RULES:
        for match in rule.find(subject):
            found.append(_settled(match))
            # Under a bet what is sure is looked for too: `without_overlaps` decides between both.
            subject = subject if match.bet else subject.without(match.nodes)
    chains = subject.advice.chains if subject.advice is not None else ()
    return tuple(with_kernels(found, chains))


def _settled(match: Match) -> Match:
    """An opportunity that saves nothing on the critical path is a note."""
    saving = match.finding.exposed_saving_ns
    if match.finding.kind != "opportunity" or saving is None or saving.high > 0:
        return match
    finding = msgspec.structs.replace(
        match.finding, kind="note", evidence=(*match.finding.evidence, _why_nothing(match))
    )
    return replace(match, finding=finding)


def _why_nothing(match: Match) -> Evidence:
    """Whether the kernels would not get shorter, or get shorter where nothing waits for them."""
    change = match.change
    if change is not None and change.graph == "none" and change.saved_ns.high <= 0:
        text = "no kernel time is expected to go: as it is now, it is as fast as fused"
        return Evidence(kind="time", text=text)
    text = (
        "hidden: replayed without it the step ends no earlier, since the host or another stream is "
        "what it waits for; it saves nothing by itself"
    )
    return Evidence(kind="host", text=text)
