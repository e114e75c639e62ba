"""What to do first, and what all of it saves together: one meaning for every report.

Savings of single findings do not add up. A step takes the longer of its device and host timelines
(`balance`), so a set saves at least what its best member saves and at most the sum, and never more
than a step loses that keeps nothing but the device work left over.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.model.base import Range
from advisor.model.findings import Finding
from advisor.model.report import Recommended
from analyzers.balance import STRETCH, Balance


def recommend(findings: Sequence[Finding], balance: Balance | None) -> Recommended:
    """Opportunities worth acting on: priced ones first, then by the kernel time they save.

    The set's saving is None where no step was timed or nothing has a price. `findings` speak for
    disjoint kernels.
    """
    worth = [item for item in findings if item.kind == "opportunity" and rank(item) > 0]
    worth.sort(key=lambda item: (item.exposed_saving_ns is None, -rank(item), item.id))
    return Recommended(
        order=tuple(item.id for item in worth),
        set_saving_ns=_together(worth, balance) if balance is not None else None,
    )


def rank(finding: Finding) -> int:
    """Exposed saving if it is known, else the kernel time saved; 0 if neither is."""
    if finding.exposed_saving_ns is not None:
        return finding.exposed_saving_ns.mid
    return kernel_saving_ns(finding)


def kernel_saving_ns(finding: Finding) -> int:
    """The kernel time that a finding's evidence says it saves; 0 if it names none."""
    values = (evidence.values.get("kernel_saving_ns") for evidence in finding.evidence)
    return next((int(value) for value in values if isinstance(value, (int, float))), 0)


def _together(worth: Sequence[Finding], balance: Balance) -> Range | None:
    savings = [item.exposed_saving_ns for item in worth if item.exposed_saving_ns is not None]
    if not savings:
        return None
    device = sum(max(kernel_saving_ns(item), 0) for item in worth)
    # No host time at all is the most that fewer launches can give.
    possible = balance.saved(device, float("inf"), 1.0 if balance.clean else STRETCH)
    best = max(saving.mid for saving in savings)
    mid = max(best, min(sum(saving.mid for saving in savings), round(possible)))
    longest = max(balance.span_ns, balance.device_ns)
    high = min(sum(saving.high for saving in savings), longest)
    return Range(low=min(max(saving.low for saving in savings), mid), mid=mid, high=max(high, mid))
