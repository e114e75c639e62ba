"""Which kernels wait for which, each of them one step: what may become one kernel, and stay so.

Nodes of a kernel run together, so a path that enters it leaves it by any of its values. Two kernels
are independent if no path of kernels and nodes leads from one to the other; kernels that are joined
become one step, through which paths lead from then on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from analyzers.dataflow import Dataflow


class KernelOrder:
    """The order of some disjoint groups of nodes; a set of them is a mask with a bit a group."""

    def __init__(self, flow: Dataflow, groups: Sequence[frozenset[str]]) -> None:
        pairs = [(flow.index[name], n) for n, group in enumerate(groups) for name in group]
        places, owners = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
        self._after = [0] * len(groups)
        for number, group in enumerate(groups):
            below = 0
            for name in group:
                below |= flow.descendants[name]
            waiting = np.zeros(len(groups), dtype=bool)
            waiting[owners[_bits(below, len(flow.index))[places]]] = True
            waiting[number] = False
            self._after[number] = _mask(waiting)
        # Through a group between two others: no path of nodes need lead from the one to the other.
        for middle, beyond in enumerate(self._after):
            bit = 1 << middle
            for number, reached in enumerate(self._after):
                if reached & bit:
                    self._after[number] = reached | self._after[middle] | beyond
        self._before = _turned(self._after)

    def related(self, number: int) -> int:
        """The groups that wait for a group, and those it waits for."""
        return self._after[number] | self._before[number]

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
        self._before = _turned(self._after)


def _bits(mask: int, size: int) -> NDArray[np.bool_]:
    """The bits of a mask as an array."""
    data = np.frombuffer(mask.to_bytes(size // 8 + 1, "little"), dtype=np.uint8)
    return np.unpackbits(data, count=size, bitorder="little").astype(bool)


def _mask(bits: NDArray[np.bool_]) -> int:
    """An array of bits as a mask."""
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def _turned(masks: Sequence[int]) -> list[int]:
    """Bit j of mask i as bit i of mask j."""
    size = len(masks)
    table = np.array([_bits(mask, size) for mask in masks], dtype=bool).reshape(size, size)
    return [_mask(column) for column in table.T]
