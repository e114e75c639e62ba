"""The corpus of over-fusion: a fused kernel and what it replaced, in each case one knob changed.

Declared in full here and measured by `overfusion_record.py`; what a case is says `model.py`.
"""

from __future__ import annotations

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
    """Every case, families in turn: a recording that is cut short has some of each."""
    waiting = [family.cases() for family in FAMILIES]
    found: list[Case] = []
    while any(waiting):
        found += [cases.pop(0) for cases in waiting if cases]
    return found


def family_of(name: str) -> Family:
    """The family of a case."""
    return next(family for family in FAMILIES if family.name == name)


def build(case: Case, scope: Scope) -> Pair:
    """The two ways of a case, on the scope's device."""
    return family_of(case.family).build(scope, case.sizes)
