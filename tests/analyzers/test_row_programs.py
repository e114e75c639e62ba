"""Row programs: the planted corpus is found as written, and groups never wait for each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analyzers.row_programs import find_row_programs
from tests.analyzers.planted import Planted
from tests.analyzers.planted.boundaries import BOUNDARIES
from tests.analyzers.planted.one_group import ONE_GROUP
from tests.analyzers.planted.stays_out import STAYS_OUT
from tests.builders.graph import Sketch, assert_legal


@pytest.mark.parametrize(
    "plant", [*ONE_GROUP, *STAYS_OUT, *BOUNDARIES], ids=lambda plant: plant.__name__
)
def test_planted_groups_are_found_and_nothing_else(plant: Callable[[], Planted]) -> None:
    case = plant()
    found = find_row_programs(case.graph)
    assert {frozenset(group.members) for group in found.whole} == set(case.groups)
    for value, reason in case.outside.items():
        given = [miss.reason for miss in found.near_misses if f"%{miss.node}" == value]
        assert any(reason in text for text in given), f"{value}: {given}"


def test_two_groups_never_wait_for_each_other() -> None:
    """Each is convex alone; as two kernels, each would need a value that the other computes."""
    s = Sketch()
    x, z = s.input(8, 32), s.input(8, 4, 8)
    first = s.op("exp", x)
    whole = s.mean(first)
    of_heads = s.mean(z)
    of_first = s.mean(s.reshape(first, 8, 4, 8))
    both = s.op("add", of_heads, of_first)
    spread = s.reshape(s.op("sub", z, of_heads), 8, 32)
    out = s.op("add", s.op("mul", first, whole), spread)
    graph = s.build(both, out)
    found = find_row_programs(graph)
    assert len(found.whole) > 1
    assert_legal(graph, found.whole)
    plain = [old or group for old, group in zip(found.plain, found.whole, strict=True)]
    assert_legal(graph, plain)
