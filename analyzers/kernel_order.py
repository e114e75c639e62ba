"""Which kernels wait for which, each of them one step: what may become one kernel, and stay so.

Nodes of a kernel run together, so a path that enters it leaves it by any of its values. Two kernels
are independent if no path of kernels and nodes leads from one to the other; kernels that are joined
become one step, through which paths lead from then on.
"""

from __future__ import annotations

from collections.abc import Sequence

from analyzers.dataflow import Dataflow


class KernelOrder:
    """The order of some disjoint groups of nodes; a set of them is a mask with a bit a group."""

    def __init__(self, flow: Dataflow, groups: Sequence[frozenset[str]]) -> None:
        own = [flow.mask(group) for group in groups]
        self._after = [0] * len(groups)
        for number, group in enumerate(groups):
            below = 0
            for name in group:
                below |= flow.descendants[name]
            for other, mask in enumerate(own):
                if other != number and below & mask:
                    self._after[number] |= 1 << other
        # Through a group between two others: no path of nodes need lead from the one to the other.
        for middle, beyond in enumerate(self._after):
            bit = 1 << middle
            for number, reached in enumerate(self._after):
                if reached & bit:
                    self._after[number] = reached | self._after[middle] | beyond

    def related(self, number: int) -> int:
        """The groups that wait for a group, and those it waits for."""
        bit = 1 << number
        found = self._after[number]
        for other, reached in enumerate(self._after):
            if reached & bit:
                found |= 1 << other
        return found

    def join(self, numbers: Sequence[int]) -> None:
        """Let independent groups be one step: whatever waits for one waits for all."""
        own = after = 0
        for number in numbers:
            own |= 1 << number
            after |= self._after[number]
        for number, reached in enumerate(self._after):
            if reached & own:
                self._after[number] = reached | own | after
        for number in numbers:
            self._after[number] = after
