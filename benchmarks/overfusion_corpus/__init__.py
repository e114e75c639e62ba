"""The corpus of over-fusion: a fused kernel and what it replaced, in each case one knob changed.

Declared in full here and measured by `overfusion_record.py`; what a case is says `model.py`.
"""

from __future__ import annotations

from collections import Counter

from . import compiled, library, matrix, points, rows, streams
from .model import Case, Family, Pair, Scope

FAMILIES: tuple[Family, ...] = (
    *rows.FAMILIES,
    *points.FAMILIES,
    *matrix.FAMILIES,
    *streams.FAMILIES,
    *compiled.FAMILIES,
    *library.FAMILIES,
)


def all_cases() -> list[Case]:
    """Every case, two of a family in turn: a case that may lose, and its neutral sibling.

    A family of every cause comes first, then the others, so a recording that is cut short has all
    causes and both labels.
    """
    rank: Counter[str | None] = Counter()
    ordered: list[tuple[int, list[Case]]] = []
    for family in FAMILIES:
        ordered.append((rank[family.cause], family.cases()))
        rank[family.cause] += 1
    waiting = [cases for _, cases in sorted(ordered, key=lambda pair: pair[0])]
    found: list[Case] = []
    while any(waiting):
        for cases in waiting:
            found += cases[:2]
            del cases[:2]
    return found


def family_of(name: str) -> Family:
    """The family of a case."""
    return next(family for family in FAMILIES if family.name == name)


def build(case: Case, scope: Scope) -> Pair:
    """The two ways of a case, on the scope's device."""
    return family_of(case.family).build(scope, case.sizes)
