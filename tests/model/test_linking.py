"""The innermost operator around a moment, against a plain stack and by definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from advisor.model.linking import _nested, innermost

MISSING = -(2**63)
intervals = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8)), max_size=9
)
moments = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), max_size=6)


def by_definition(
    ops: list[tuple[int, int, int]], thread: int, moment: int, before: int
) -> int | None:
    """The last of the ops before place `before` on the thread that is open at the moment."""
    around = [
        place
        for place, (own, start, length) in enumerate(ops[:before])
        if own == thread and start <= moment < start + length
    ]
    return around[-1] if around else None


@given(intervals, moments)
def test_the_last_begun_that_has_not_ended(
    listed: list[tuple[int, int, int]], asked: list[tuple[int, int]]
) -> None:
    ops = sorted(listed, key=lambda op: (op[1], -op[2]))
    asked = sorted(asked, key=lambda one: one[1])
    table = {
        "thread": np.array([op[0] for op in ops], dtype=np.int64),
        "start_ns": np.array([op[1] for op in ops], dtype=np.int64),
        "duration_ns": np.array([op[2] for op in ops], dtype=np.int64),
    }
    calls = {
        "thread": np.array([one[0] for one in asked], dtype=np.int64),
        "start_ns": np.array([one[1] for one in asked], dtype=np.int64),
    }
    parents, around = innermost(table, calls, MISSING)
    assert [None if row == MISSING else row for row in parents.tolist()] == [
        by_definition(ops, thread, start, place) for place, (thread, start, _) in enumerate(ops)
    ]
    assert [None if row == MISSING else row for row in around.tolist()] == [
        by_definition(ops, thread, moment, len(ops)) for thread, moment in asked
    ]


def test_overlap_without_nesting_is_noticed() -> None:
    assert _nested(np.array([0, 2, 4]), np.array([5, 9, 6])) is None
    assert _nested(np.array([0, 2, 6]), np.array([9, 5, 8])).tolist() == [-1, 0, 0]  # type: ignore[union-attr]
