"""Labels: that a case loses is told by time alone, why by the one knob that was turned.

A case loses if even the low end of fused over members is above `LOSES_ABOVE`. Its planted cause
stands only if its sibling at the knob's neutral value shows that the knob made the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from advisor.model.overfusion import Cause

from .records import Label, Labels, Result

LOSES_ABOVE = 1.05
# At least this much of the loss must go when the knob is turned back.
SHARE_OF_KNOB = 0.8
LARGEST_ERROR = 0.05
# Causes that are told by the binary, and what makes a difference there.
RESOURCES = (
    "register_spill", "occupancy_registers", "occupancy_shared_memory", "gemm_epilogue",
    "stale_config",
)  # fmt: skip
SPILLED_BYTES, FEWER_WARPS = 16, 0.75


def labels_of(results: Iterable[Result]) -> Labels:
    """The labels of all cases, ordered by id."""
    found = sorted(results, key=lambda result: result.case.id)
    neutral = {
        result.case.group: result for result in found if result.case.value == result.case.neutral
    }
    return Labels(
        loses_above=LOSES_ABOVE,
        share_of_knob=SHARE_OF_KNOB,
        labels=tuple(label_of(result, neutral) for result in found),
    )


def label_of(result: Result, neutral: Mapping[str, Result]) -> Label:
    """The label of one case; `neutral` are the neutral siblings by group."""
    low, middle, high = result.ratio
    case = result.case
    if not result.error <= LARGEST_ERROR:
        why = f"the results differ by {result.error:.3g} of their largest value"
        return Label(id=case.id, verdict="excluded", ratio=result.ratio, reason=why)
    if low <= LOSES_ABOVE < high:
        why = f"{LOSES_ABOVE} lies within the interval"
        return Label(id=case.id, verdict="excluded", ratio=result.ratio, reason=why)
    if high <= LOSES_ABOVE:
        return Label(id=case.id, verdict="benign", ratio=result.ratio)
    sibling = neutral.get(case.group)
    cause, why = _cause(result, sibling, middle)
    also: tuple[Cause, ...] = ()
    if cause in RESOURCES and not (result.sized and (sibling is None or sibling.sized)):
        cause, why = None, "its binary was not examined"
    if cause in RESOURCES:
        cause, also = _mechanisms(cause, result, sibling)
    return Label(
        id=case.id, verdict="regression", ratio=result.ratio, cause=cause, also=also, reason=why
    )


def _cause(result: Result, sibling: Result | None, ratio: float) -> tuple[Cause | None, str]:
    """The planted cause, or None and why it cannot be told."""
    case = result.case
    if case.cause is None:
        return None, "nothing was planted"
    if case.neutral is None:
        return case.cause, ""
    if case.value == case.neutral:
        return None, "it loses at the neutral value of its knob"
    if sibling is None:
        return None, "its neutral sibling was not recorded"
    share = (ratio - sibling.ratio[1]) / (ratio - 1)
    if share < SHARE_OF_KNOB:
        return None, f"the knob explains {max(share, 0):.0%} of the loss"
    return case.cause, ""


def _mechanisms(
    planted: Cause, result: Result, sibling: Result | None
) -> tuple[Cause, tuple[Cause, ...]]:
    """(what the knob did to the binary, what else it did), against the sibling or no spill at all.

    A knob that gives a thread more to hold ends in spills or in fewer resident warps, as the
    assembler chooses: which of both it was is read from the binary.
    """
    mine, other = _needs(result), None if sibling is None else _needs(sibling)
    found: list[Cause] = []
    if mine.spilled - (other.spilled if other else 0) >= SPILLED_BYTES:
        found.append("register_spill")
    if other is not None and mine.occupancy <= FEWER_WARPS * other.occupancy:
        shared = mine.limiter == "shared_memory"
        found.append("occupancy_shared_memory" if shared else "occupancy_registers")
    if planted in ("register_spill", "occupancy_registers") and found and planted not in found:
        planted = found[0]
    return planted, tuple(name for name in found if name != planted)


class _Needs(NamedTuple):
    spilled: int
    occupancy: float
    limiter: str | None


def _needs(result: Result) -> _Needs:
    """The worst kernel of the fused way: bytes spilled, occupancy and what bounds it."""
    rows = [launch.resources for launch in result.fused.launches if launch.resources is not None]
    least = min(rows, key=lambda row: 1.0 if row.occupancy is None else row.occupancy, default=None)
    return _Needs(
        spilled=max((row.spill_store_bytes or 0 for row in rows), default=0),
        occupancy=1.0 if least is None or least.occupancy is None else least.occupancy,
        limiter=None if least is None else least.limiter,
    )
