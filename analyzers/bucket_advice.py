"""In how many pieces to transfer what layers produce, so that most of it hides behind later layers.

Layers end one after the other. A piece waits for its last layer and for the piece before it, then
takes an overhead and its share of the bytes at the rate of the link:

    end(j) = max(layers ready(j), end(j - 1)) + overhead + bytes(j) / rate

The step is over when the last layer and the last piece are. More pieces hide more and cost more
overhead; collectives are pieces of the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

# A count of pieces within this share of the best is as good: fewer are simpler.
AS_GOOD = 0.01


def step_ns(layers_ns: Sequence[int], transfer_ns: int, overhead_ns: int, pieces: int) -> int:
    """When everything is over: layers one after the other, their results in so many pieces.

    `transfer_ns` is all bytes at the rate of the link. `pieces` is at most the number of layers;
    where it does not divide, the first pieces have a layer more.
    """
    count = len(layers_ns)
    ready = list(accumulate(layers_ns))
    end = done = 0
    for piece in range(pieces):
        size = count // pieces + (piece < count % pieces)
        done += size
        end = max(ready[done - 1], end) + overhead_ns + round(transfer_ns * size / count)
    return max(end, ready[-1])


def best_pieces(layers_ns: Sequence[int], transfer_ns: int, overhead_ns: int) -> int:
    """The least number of pieces with which the step takes as long as with the best number."""
    times = {
        n: step_ns(layers_ns, transfer_ns, overhead_ns, n) for n in range(1, len(layers_ns) + 1)
    }
    least = min(times.values(), default=0)
    return min((n for n, time in times.items() if time <= least * (1 + AS_GOOD)), default=1)
