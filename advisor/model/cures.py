"""What is told to the compiler of its own kernels: which ops stay apart, how a kernel is launched.

Both are data: they name what they are about by what it computes, never by a name that the next
compilation may give to something else.
"""

from __future__ import annotations

from advisor.errors import InvalidRecordError
from advisor.model.base import Record

MOST_OPS, MOST_GROUPS, MOST_WARPS, MOST_STAGES, MOST_BLOCK = 4096, 64, 32, 16, 1 << 20
_HEX = frozenset("0123456789abcdef")


class Split(Record, frozen=True, kw_only=True):
    """Ops of one kernel that are not to share one any more.

    `groups` hold keys of ops of the post-grad graph (`advisor.apply.compiler.names`): no kernel has
    ops of two of them, and what passes between them is stored. `kernel` and `words` are for people:
    the kernel that had them all, and the ops where it is cut.
    """

    kernel: str
    words: str
    groups: tuple[tuple[str, ...], ...]

    def check(self) -> None:
        keys = [key for group in self.groups for key in group]
        if not 2 <= len(self.groups) <= MOST_GROUPS or not all(self.groups):
            raise InvalidRecordError("a split needs two groups of ops or more")
        if len(keys) > MOST_OPS or len(set(keys)) != len(keys):
            raise InvalidRecordError("the groups of a split share an op, or are too large")
        if not all(_is_hash(key) for key in keys):
            raise InvalidRecordError("an op of a split is not named by a hash")


class Retuned(Record, frozen=True, kw_only=True):
    """A Triton kernel of the compiler launched with one configuration in place of its own.

    `source` is the compiler's hash of the kernel's text and size hints, which leaves its name out;
    `blocks` are its block sizes (`XBLOCK`, `R0_BLOCK`). `kernel` is the name seen, for people.
    """

    kernel: str
    source: str
    blocks: dict[str, int]
    num_warps: int
    num_stages: int

    @property
    def label(self) -> str:
        """The configuration in words: `XBLOCK=1 R0_BLOCK=4096 num_warps=16 num_stages=1`."""
        words = [f"{name}={value}" for name, value in self.blocks.items()]
        return " ".join([*words, f"num_warps={self.num_warps}", f"num_stages={self.num_stages}"])

    def check(self) -> None:
        if not _is_hash(self.source):
            raise InvalidRecordError("a retuned kernel is not named by a hash")
        if any(not _is_block(n) or not _is_power(b, MOST_BLOCK) for n, b in self._blocks()):
            raise InvalidRecordError("a block of a retuned kernel is no power of two")
        if not _is_power(self.num_warps, MOST_WARPS) or not 1 <= self.num_stages <= MOST_STAGES:
            raise InvalidRecordError("warps or stages of a retuned kernel are out of range")

    def _blocks(self) -> list[tuple[str, int]]:
        return [*self.blocks.items()]


def _is_block(name: str) -> bool:
    return name.isidentifier() and name.isupper() and name.endswith("BLOCK") and len(name) <= 32


def _is_hash(text: str) -> bool:
    return 16 <= len(text) <= 64 and set(text) <= _HEX


def _is_power(value: int, most: int) -> bool:
    return 1 <= value <= most and value & (value - 1) == 0
