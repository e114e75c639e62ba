"""What to do, in which order, and what all of it saves together: one meaning for every report.

Savings of single findings do not add up: the saving of the set is one replay with all changes. A
kernel belongs to one recommended finding. The order is by effort: what a flag or an argument does,
then CUDA graphs, then library calls and compilation, then generated kernels; within one kind the
largest saving comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advisor.model.base import Range
from advisor.model.findings import Finding
from advisor.model.report import Recommended
from analyzers.exposure import Exposure
from analyzers.replay_changes import Change

# Findings whose remedy is an argument or a flag of the program.
_FLAGS = ("optimizer-updates", "layout-conversion", "exposed-communication", "straggler-rank")
_GRAPHS = ("launch-bound",)


def recommend(
    findings: Sequence[Finding],
    exposure: Exposure | None,
    changes: Mapping[str, Change],
) -> Recommended:
    """Opportunities worth acting on, flags first and generated kernels last.

    The set's saving is None where no step was recorded or nothing has a price. `changes` are what
    findings do to the recorded step, by their ids.
    """
    worth = [item for item in findings if item.kind == "opportunity" and rank(item) > 0]
    worth.sort(key=lambda item: (item.exposed_saving_ns is None, -rank(item), item.id))
    chosen = _without_shared_kernels(worth, changes)
    chosen.sort(key=_effort)
    return Recommended(
        order=tuple(item.id for item in chosen),
        set_saving_ns=_together(chosen, exposure, changes),
    )


def rank(finding: Finding) -> int:
    """Exposed saving if it is known, else the kernel time saved; 0 if neither is."""
    if finding.exposed_saving_ns is not None:
        return finding.exposed_saving_ns.mid
    return finding.kernel_saving_ns or 0


def _without_shared_kernels(
    worth: Sequence[Finding], changes: Mapping[str, Change]
) -> list[Finding]:
    """The findings, best first, that share no kernel with a better one."""
    taken: set[int] = set()
    found = []
    for item in worth:
        change = changes.get(item.id)
        rows = change.rows if change is not None else frozenset()
        if not rows & taken:
            taken |= rows
            found.append(item)
    return found


def _effort(finding: Finding) -> int:
    if finding.rule in _FLAGS:
        return 0
    if finding.rule in _GRAPHS:
        return 1
    return 3 if finding.plan_id is not None else 2


def _together(
    chosen: Sequence[Finding], exposure: Exposure | None, changes: Mapping[str, Change]
) -> Range | None:
    """One replay with all changes; a price that rests on other ranks is not in it.

    Of such prices the set saves at least as much as the best alone, at most all of them besides,
    and never more than the step takes: a rank that comes last comes earlier by what it is spared.
    """
    priced = [item for item in chosen if item.exposed_saving_ns is not None]
    if len(priced) == 1:
        return priced[0].exposed_saving_ns
    held = [changes[item.id] for item in priced if item.id in changes]
    if exposure is None or exposure.doubt or not held:
        return None
    besides = [item.exposed_saving_ns for item in priced if item.id not in changes]
    priced_besides = [one for one in besides if one is not None]
    return _joined(exposure.saved(*held), priced_besides, round(exposure.longest_ns))


def _joined(saved: Range, besides: Sequence[Range], most: int) -> Range:
    every = (saved, *besides)
    best = max(one.high for one in every)
    return Range(
        low=max(one.low for one in every),
        mid=max(one.mid for one in every),
        high=max(min(sum(one.high for one in every), most), best),
        coverage=saved.coverage,
    )
