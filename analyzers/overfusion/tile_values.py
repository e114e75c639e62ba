"""Values of a Triton kernel as far as addresses depend on them: shapes and linear coefficients.

A tile is a value with `shape`; along each source of variation (`pid0`, a lane axis `lane3` made by
`tl.arange`, a loop `loop1`) it grows by `steps[source]` elements, None where it depends on the
source in another way. Sources that are absent do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod


@dataclass(frozen=True)
class Tile:
    """One value of the program; `pointer` is the argument that it points into.

    `loaded` are the pointers whose data it was computed from, each with how it was addressed;
    `number` its value where it is a constant; `dtype` what it was last cast to.
    """

    shape: tuple[int, ...] = ()
    steps: Mapping[str, int | None] = field(default_factory=dict)
    pointer: str | None = None
    loaded: frozenset[tuple[str, int]] = frozenset()
    dtype: str | None = None

    @property
    def lanes(self) -> int:
        """Elements of the tile."""
        return prod(self.shape)

    def contiguous(self, extents: Mapping[str, int]) -> int:
        """Elements that lie side by side in memory: the lanes of those axes it follows by ones."""
        run = 1
        for source, step in sorted(self.steps.items()):
            if step == 1 and source in extents:
                run = max(run, extents[source])
        return run


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape, sizes of 1 stretched."""
    wide, narrow = (a, b) if len(a) >= len(b) else (b, a)
    padded = (1,) * (len(wide) - len(narrow)) + narrow
    return tuple(max(x, y) for x, y in zip(wide, padded, strict=True))


def joined(*values: Tile) -> Tile:
    """A value that depends on all of these in some way."""
    shape: tuple[int, ...] = ()
    steps: dict[str, int | None] = {}
    loaded: frozenset[tuple[str, int]] = frozenset()
    for value in values:
        shape = broadcast(shape, value.shape)
        steps.update(dict.fromkeys(value.steps))
        loaded |= value.loaded
    return Tile(shape=shape, steps=steps, loaded=loaded)


def added(a: Tile, b: Tile, sign: int = 1) -> Tile:
    """a + sign b; a pointer plus an offset stays a pointer."""
    steps = dict(a.steps)
    for source, step in b.steps.items():
        mine = steps.get(source, 0)
        steps[source] = None if mine is None or step is None else mine + sign * step
    return Tile(
        shape=broadcast(a.shape, b.shape),
        steps={source: step for source, step in steps.items() if step != 0},
        pointer=a.pointer or b.pointer,
        loaded=a.loaded | b.loaded,
    )


def scaled(a: Tile, factor: float | int | None) -> Tile:
    """a times a number, or (None) times a scalar that is not known."""
    known = factor if isinstance(factor, int) else None
    steps = {
        s: None if step is None or known is None else step * known for s, step in a.steps.items()
    }
    return replace(a, steps={s: step for s, step in steps.items() if step != 0}, pointer=None)


def divided(a: Tile, by: int | None) -> Tile:
    """a // by: whoever took steps smaller than the divisor stands still along most of them."""
    steps: dict[str, int | None] = {}
    for source, step in a.steps.items():
        if by is not None and step is not None and source.startswith("lane") and abs(step) < by:
            continue
        steps[source] = None
    return replace(a, steps=steps)


def wrapped(a: Tile, by: int | None) -> Tile:
    """a % by: the same steps within a period along lanes; whole periods of programs vanish."""
    steps: dict[str, int | None] = {}
    for source, step in a.steps.items():
        lane = source.startswith("lane")
        if by is not None and step is not None and step % by == 0:
            continue
        steps[source] = step if lane and by is not None else None
    return replace(a, steps=steps)
