"""How a loss over a vocabulary is cut into pieces, and what memory that saves: one definition.

Rows [N, D] times a weight [V, D] make logits [N, V]. In pieces only some rows of logits exist at
once, their gradient in their place; the gradient of the weight is summed over pieces in float32.
No matrix product is done twice.
"""

from __future__ import annotations

from dataclasses import dataclass

# The gradient of W is read and written once a chunk, eight bytes an element; below this number of
# rows that takes more than an eighth of what the three products take (by peak rate and bandwidth
# of current cards).
MOST_ROWS = 2_048
# A product with fewer rows waits for W to be read.
LEAST_ROWS = 256
FEWEST_CHUNKS = 4
MOST_BYTES = 1 << 30
SUM_BYTES = 4


def rows_of_chunk(rows: int, classes: int, item_bytes: int) -> int:
    """How many rows of logits exist at once, chosen from rows and memory: a power of two."""
    wanted = min(max(-(-rows // FEWEST_CHUNKS), LEAST_ROWS), MOST_ROWS)
    fits = max(MOST_BYTES // max(classes * item_bytes, 1), 1)
    chosen = 1 << (wanted - 1).bit_length()
    return min(chosen, 1 << (fits.bit_length() - 1))


@dataclass(frozen=True)
class LossSizes:
    """Rows N, classes V and features D of a loss, and the bytes of one logit.

    `trains`: rows or weight take a gradient; `weight_trains`: the weight does.
    """

    rows: int
    classes: int
    features: int
    item_bytes: int
    trains: bool = True
    weight_trains: bool = True

    @property
    def logits_bytes(self) -> int:
        """All logits."""
        return self.rows * self.classes * self.item_bytes

    def saved_bytes(self, chunk: int, *, compiled: bool) -> int:
        """Memory that the loss needs less than as eager runs it, or the compiler; negative: more.

        Whole, there are the logits and, in eager, their gradient: the compiler puts it in their
        place; and the gradient of the weight. In pieces, there is the sum of that gradient in
        float32, and beside it first the logits of a chunk, then what the sum is cast to.
        """
        part = min(chunk, self.rows) * self.classes * self.item_bytes
        whole = self.logits_bytes * (2 if self.trains and not compiled else 1)
        if not self.weight_trains:
            return whole - part
        weights = self.classes * self.features
        own, added = weights * self.item_bytes, weights * max(SUM_BYTES, self.item_bytes)
        cast = own if own != added else 0
        return whole + own - added - max(part, cast)
