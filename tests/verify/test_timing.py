"""The search for the fastest configuration, on recorded times."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from advisor.verify.timing import fastest


def test_a_lucky_short_measurement_does_not_win() -> None:
    """Those in front of the search are timed again, more often, and only they can win."""
    asked: list[tuple[list[str], int]] = []

    def record(
        variants: Mapping[str, Callable[[], object]],
        rounds: int,
        before: Callable[[], object] | None = None,
    ) -> dict[str, list[int]]:
        asked.append((list(variants), rounds))
        first = {"a": 90, "b": 100, "c": 101, "d": 102, "e": 200}
        later = {"a": 110, "b": 100, "c": 99, "d": 103}
        return {name: [(first if len(asked) == 1 else later)[name]] * rounds for name in variants}

    calls = dict.fromkeys("abcde", object)
    best, found = fastest(calls, record, torch.device("cpu"))
    assert best == "c"
    assert found == {"a": 110, "b": 100, "c": 99, "d": 103, "e": 200}
    assert [names for names, _ in asked] == [list("abcde"), list("abcd")]
    assert asked[0][1] < asked[1][1]
