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

    def saved_bytes(self, chunk: int) -> int:
        """Memory that the loss needs less: logits, and their gradient where there is one.

        What is held in their place: the logits of a chunk, and the sum of the gradient of the
        weight in float32. Negative where that is more.
        """
        whole = self.logits_bytes * (2 if self.trains else 1)
        part = min(chunk, self.rows) * self.classes * self.item_bytes
        added = self.classes * self.features * SUM_BYTES if self.weight_trains else 0
        return whole - part - added
