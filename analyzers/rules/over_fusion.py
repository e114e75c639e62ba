"""Fused kernels that take longer than their members would, as far as one run alone tells."""

from __future__ import annotations

from analyzers.overfusion.alone import judge_alone
from analyzers.overfusion.facts import step_facts
from analyzers.overfusion.findings import RULE_ID, findings_of
from analyzers.rules.base import Match, Rule
from analyzers.subject import Subject


def find(subject: Subject) -> tuple[Match, ...]:
    """Regressions that the trace and the kernels' code show; nothing where either may be wrong."""
    step = subject.step
    if step is None and subject.trace is not None:
        prefix = subject.step_prefix
        step = step_facts(subject.trace, subject.codes, step_prefix=prefix, gpu=subject.gpu)
    if step is None:
        return ()
    return tuple(Match(finding) for finding in findings_of(judge_alone(step)))


RULE = Rule(
    id=RULE_ID,
    title="A fused kernel that lost",
    explanation=(
        "Fusing may cost more than it saves: registers spill, few programs or warps are left, "
        "values are computed again, a library's product is given up, streams become one. Raised on "
        "time only: between two runs (compare, or gate with a baseline) where the fused kernel "
        "takes at least 5 % longer than what it replaced, beyond the spread of steps; in one run "
        "where it takes longer than its members would at the worst, and its launch, source or "
        "binary explains it. Low occupancy, 255 registers, local memory or a few spilled bytes "
        "alone are no regression."
    ),
    bad="a row kernel at 2 warps: 1.76 ms, 1.25 GB written for 67 MB of results",
    good="the same kernel at 16 warps: 0.28 ms; a product of the library at 255 registers",
    find=find,
)
