"""Interval arithmetic against marking every nanosecond by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analyzers.intervals import Spans, any_overlap, gaps, intersect, merge

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(-3, 12)), max_size=12)


def spans(listed: list[tuple[int, int]]) -> Spans:
    array = np.array(listed, dtype=np.int64).reshape(-1, 2)
    return merge(array[:, 0], array[:, 0] + array[:, 1])


def moments(listed: list[tuple[int, int]]) -> set[int]:
    return {t for start, length in listed for t in range(start, start + length)}


def marked(found: Spans) -> set[int]:
    both = zip(found.starts.tolist(), found.ends.tolist(), strict=True)
    return {t for start, end in both for t in range(start, end)}


@given(pairs)
def test_union(listed: list[tuple[int, int]]) -> None:
    found = spans(listed)
    assert marked(found) == moments(listed)
    assert found.length() == len(moments(listed))
    assert np.all(found.starts < found.ends)
    assert np.all(found.ends[:-1] < found.starts[1:])


@given(pairs, pairs)
def test_intersection(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    found = intersect(spans(a), spans(b))
    assert marked(found) == moments(a) & moments(b)
    assert found.length() == len(moments(a) & moments(b))


@given(pairs)
def test_gaps(listed: list[tuple[int, int]]) -> None:
    covered = moments(listed)
    inside = set(range(min(covered), max(covered))) if covered else set()
    assert marked(gaps(spans(listed))) == inside - covered


@given(pairs, pairs)
def test_any_overlap(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    first, second = (np.array(p, dtype=np.int64).reshape(-1, 2) for p in (a, b))
    ends = [(p[:, 0], p[:, 0] + np.maximum(p[:, 1], 0)) for p in (first, second)]
    shared = any(
        s < f and t < e
        for s, e in zip(*(x.tolist() for x in ends[0]), strict=True)
        for t, f in zip(*(x.tolist() for x in ends[1]), strict=True)
    )
    assert any_overlap(*ends[0], *ends[1]) == shared
