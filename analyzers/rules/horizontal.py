"""Small kernels that wait for nothing of each other, each with a launch of its own."""

from __future__ import annotations

from analyzers.horizontal import RULE as ID
from analyzers.rules.base import Match, Rule
from analyzers.subject import Subject


def find(subject: Subject) -> tuple[Match, ...]:
    """The horizontal groups of captured graphs; of a bare trace nothing is sure enough."""
    if subject.advice is None or subject.provenance != "exact":
        return ()
    plans = {plan.id: plan for plan in subject.advice.plans}
    found = []
    for finding in subject.advice.findings:
        if finding.rule != ID or finding.plan_id is None:
            continue
        plan = plans[finding.plan_id]
        nodes = frozenset((site.graph, name) for site in plan.sites for name in site.nodes)
        saved = plan.prediction.saving_ns if plan.prediction is not None else None
        change = subject.advice.changes.get(finding.id)
        found.append(Match(finding, nodes, saved, "generated_kernel", change))
    return tuple(found)


RULE = Rule(
    id=ID,
    title="Small independent kernels, each with a launch of its own",
    explanation=(
        "Norms, softmaxes and pointwise chains of parallel branches (experts, adapters, heads, "
        "embedding tables) wait for nothing of each other. Each is so small that its launch and "
        "its last, mostly empty wave are most of its time. One kernel whose programs are dealt "
        "to all of them pays both once. Found by dataflow alone: no path may lead from one to "
        "another, through whatever lies between, and no storage that one reads may be written "
        "in the meantime."
    ),
    bad="eight RMS norms of 512 rows, one for every branch: eight launches of 2 us",
    good="one launch whose programs are dealt to the eight norms",
    find=find,
)
