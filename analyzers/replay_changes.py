"""What a finding changes in a step: kernels that become fewer or shorter, or one graph launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from advisor.model.base import Range
from analyzers.replay import NONE, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags: TypeAlias = NDArray[np.bool_]
    Floats: TypeAlias = NDArray[np.float64]

Rows = tuple[int, ...]
End = Literal["low", "mid", "high"]
Graphs = Literal["none", "regions", "step"]
_NOTHING = Range(low=0, mid=0, high=0)
# No kernel is shorter.
_LEAST_KERNEL_NS = 1_000


@dataclass(frozen=True)
class Change:
    """Kernels of a step (rows of `trace.kernels`), by place in the program, and what goes of them.

    Of each place one kernel is left, whose launch is the place's last; the others go with their
    launches and the host time of their operators. `gone`: nothing is left. `saved_ns` is kernel
    time per step, all places together. `graph`: besides, launches become CUDA graphs, one
    for each compiled region or one for the step.
    """

    sites: tuple[Rows, ...] = ()
    saved_ns: Range = field(default=_NOTHING)
    gone: bool = False
    graph: Graphs = "none"

    @property
    def rows(self) -> frozenset[int]:
        """All kernels that it speaks for."""
        return frozenset(row for site in self.sites for row in site)


def distinct(sites: Sequence[Sequence[int]]) -> tuple[Rows, ...]:
    """The sites with each kernel in the first that names it, without those left empty."""
    seen: set[int] = set()
    found = []
    for site in sites:
        own = tuple(row for row in dict.fromkeys(site) if row not in seen)
        seen.update(own)
        if own:
            found.append(own)
    return tuple(found)


@dataclass(frozen=True)
class Effect:
    """A step after a change; the calls that went, and their profiled host time."""

    step: Step
    calls_removed: int
    host_removed_ns: float


class Changes:
    """Applies changes to one step."""

    def __init__(self, step: Step) -> None:
        self.step = step
        held = np.flatnonzero(step.row != NONE)
        self.place = dict(zip(step.row[held].tolist(), held.tolist(), strict=True))

    def known(self, change: Change) -> bool:
        """Whether the step holds any kernel of the change, or has launches to graph."""
        return change.graph != "none" or any(row in self.place for row in change.rows)

    def apply(self, changes: Sequence[Change], which: End) -> Effect:
        """The step after all changes; `which` end of what they save."""
        step = self.step
        gone = np.zeros(len(step), dtype=bool)
        device = step.device_ns.copy()
        for change in changes:
            self._remove(change, _end(change.saved_ns, which), gone, device)
        after = step.without(gone, device)
        graphs = {change.graph for change in changes} - {"none"}
        if graphs:
            after = after.graphed(whole="step" in graphs)
        lost = _host(step) - _host(after)
        calls = int(((step.call_ns > 0) & (after.call_ns == 0)).sum())
        return Effect(after, calls, float(lost.sum()))

    def _remove(self, change: Change, saved_ns: int, gone: Flags, device: Floats) -> None:
        sites = [[self.place[row] for row in site if row in self.place] for site in change.sites]
        sites = [sorted(site) for site in sites if site]
        if not sites:
            return
        before = [float(device[site].sum()) for site in sites]
        total = sum(before)
        left = max(total - saved_ns, 0.0)
        for site, share in zip(sites, before, strict=True):
            rest = site if change.gone else site[:-1]
            gone[rest] = True
            if change.gone:
                continue
            least = min(share, _LEAST_KERNEL_NS)
            device[site[-1]] = max(left * share / total if total else 0.0, least)


def _end(saved: Range, which: End) -> int:
    return {"low": saved.low, "mid": saved.mid, "high": saved.high}[which]


def _host(step: Step) -> Floats:
    return step.outside_ns + step.before_ns + step.call_ns + step.tail_ns
