"""Which earlier value an operand of a bare trace reads: a guess, made by stated rules and counted.

A trace without tensor ids says only shape, dtype and strides of what an op read. Dense operands of
n elements can only hold a value of n elements and the same dtype; a strided part belongs to a value
as large as its slowest axis. Programs merge and split axes that lie side by side: a dense
(8192, 2048) is not read as a dense (2048, 8192). Among the values that fit, the choice is:

1. not one that another operand of the same op reads already, and none that was overwritten;
2. one that nobody has read yet before one already read (who cut out a part has not read it);
3. one laid out exactly as read (strides of axes of size 1 included) before one that a view would
   have to reshape, and of those one whose axes are merged or split alone, not both;
4. the latest.

A value that nobody read in the last hundred ops is a result, not an operand; a loop that reads it
part by part keeps it.

A value that was read already is a candidate only until the next library call (GEMM, convolution,
attention, collective): no fusion crosses one, and past it the origin is anybody's guess. A square
or a magnitude that was reduced is finished (`x * rsqrt(mean(x²))` reads x again, not x²; so does
`x / amax(|x|)`).

An in-place op on a value of unknown origin updates a buffer (a weight, a counter). Later ops may
read it, but the next in-place op is taken to update another buffer, not the same one again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.model.graph import TensorMeta
from advisor.model.sizes import Dim
from analyzers.recorded_ops import Operand

# Values nobody has read for so many ops are results of the step, not operands.
FORGET_AFTER = 96
_LOOKED_AT = 12


@dataclass
class Value:
    """A value of the graph under construction and what has happened to it."""

    name: str
    meta: TensorMeta
    made_at: int
    era: int
    reads: int = 0
    cuts: int = 0
    finished: bool = False
    buffer: bool = False
    cut_at: int = 0


@dataclass
class ValuePool:
    """All values so far by dtype and number of elements; `ambiguous` counts choices of several."""

    time: int = 0
    era: int = 0
    ambiguous: int = 0
    unknown: int = 0
    _held: dict[tuple[str, int], list[Value]] = field(default_factory=dict)
    _by_name: dict[str, Value] = field(default_factory=dict)
    _fresh: list[Value] = field(default_factory=list)

    def tick(self, library_call: bool) -> None:
        """One op has been read; a library call begins a new era, and its result is the first."""
        self.time += 1
        self.era += library_call
        for value in self._fresh:
            value.era = self.era
        self._fresh.clear()

    def add(self, name: str, meta: TensorMeta) -> None:
        """Remember a new value."""
        value = Value(name, meta, self.time, self.era)
        self._held.setdefault((meta.dtype, elements_of(meta)), []).append(value)
        self._by_name[name] = value
        self._fresh.append(value)

    def finish(self, name: str) -> None:
        """Nobody reads this value again: overwritten, or a reduced square or magnitude."""
        if name in self._by_name:
            self._by_name[name].finished = True

    def keep(self, name: str) -> None:
        """The value is a buffer updated in place: a later in-place op updates another one."""
        if name in self._by_name:
            self._by_name[name].buffer = True

    def read(self, name: str, *, cut: bool = False) -> None:
        """Count a read; who read a part has not read the value."""
        if name in self._by_name:
            value = self._by_name[name]
            value.cuts += cut
            value.reads += not cut
            value.cut_at = self.time if cut else value.cut_at

    def unread(self) -> tuple[str, ...]:
        """Values that nobody read: what leaves the step."""
        return tuple(
            v.name for v in self._by_name.values() if not v.reads and not v.cuts and not v.finished
        )

    def find(self, operand: Operand, taken: set[str], *, written: bool = False) -> Value | None:
        """The value an operand reads by the rules above, or None if nothing fits.

        `written`: the op writes into this operand.
        """
        size = max(operand.extent(), operand.elements)
        kinds = (
            (operand.dtype,) if operand.dtype else tuple({d for d, n in self._held if n == size})
        )
        fitting = [v for kind in kinds for v in self._held.get((kind, size), ())[-_LOOKED_AT:]]
        open_ = [
            v
            for v in fitting
            if v.name not in taken
            and self._readable(v)
            and not (written and v.buffer)
            and _shared_borders(v.meta, operand)[0]
        ]
        if not open_:
            self.unknown += 1
            return None
        chosen = max(
            open_,
            key=lambda v: (
                v.reads == 0,
                *_likeness(v.meta, operand),
                _shared_borders(v.meta, operand)[1],
                v.made_at,
            ),
        )
        self.ambiguous += len(open_) > 1
        return chosen

    def _readable(self, value: Value) -> bool:
        if value.finished:
            return False
        if value.reads:
            return value.era == self.era
        return self.time - max(value.made_at, value.cut_at) <= FORGET_AFTER


def elements_of(meta: TensorMeta) -> int:
    """The number of elements of a value whose sizes are known."""
    total = 1
    for size in meta.shape:
        assert isinstance(size, int)
        total *= size
    return total


def _shared_borders(meta: TensorMeta, operand: Operand) -> tuple[bool, bool]:
    """(whether a view of the value may be the operand, whether by merging or splitting alone).

    Compared are the borders between axes as they lie in memory; True where one of the two has gaps.
    """
    mine = _borders(meta.shape, meta.strides)
    theirs = _borders(operand.shape, operand.strides or row_major(operand.shape))
    if mine is None or theirs is None or not mine or not theirs:
        return True, True
    return bool(mine & theirs), mine <= theirs or theirs <= mine


def _borders(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> set[int] | None:
    """The steps in memory from axis to axis, of (4, 3, 2) 6 and 2; None with gaps or overlaps."""
    axes = sorted((int(step), int(size)) for size, step in zip(shape, strides, strict=True))
    wanted, found = 1, set()
    for step, size in axes:
        if size == 1:
            continue
        if step != wanted:
            return None
        found.add(step)
        wanted *= size
    return found - {1}


def same_layout(meta: TensorMeta, operand: Operand) -> bool:
    """Whether a value is read exactly as it lies; axes of size 1 may have any stride."""
    if meta.shape != operand.shape:
        return False
    if operand.strides is None:
        return True
    rows = zip(meta.shape, meta.strides, operand.strides, strict=True)
    return all(size == 1 or mine == theirs for size, mine, theirs in rows)


def _likeness(meta: TensorMeta, operand: Operand) -> tuple[bool, bool]:
    """(read as it lies, with equal strides even where they do not matter)."""
    alike = same_layout(meta, operand)
    return alike, alike and meta.strides == operand.strides


def row_major(shape: tuple[Dim, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(int(size), 1)
    return tuple(reversed(strides))


def is_dense_row_major(shape: tuple[Dim, ...], strides: tuple[Dim, ...]) -> bool:
    """Contiguous in the order of its axes; axes of size 1 may have any stride."""
    rows = zip(shape, strides, row_major(shape), strict=True)
    return all(size == 1 or mine == wanted for size, mine, wanted in rows)
