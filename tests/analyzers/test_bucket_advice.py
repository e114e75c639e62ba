"""Pieces of transfers: against the two limits, and by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from analyzers.bucket_advice import AS_GOOD, best_pieces, step_ns

TIMES = st.lists(st.integers(1, 1_000), min_size=1, max_size=12)


def test_one_piece_waits_for_all_layers_and_many_hide_all_but_the_last() -> None:
    layers = [100] * 4
    assert step_ns(layers, 80, 0, 1) == 480
    assert step_ns(layers, 80, 0, 4) == 420
    assert step_ns(layers, 80, 30, 4) == 450
    # Transfers that take longer than the layers: all but the first layer is hidden behind them.
    assert step_ns(layers, 4_000, 0, 4) == 4_100


def test_few_pieces_where_overhead_costs_more_than_is_hidden() -> None:
    assert best_pieces([100] * 16, 160, 0) == 6
    assert best_pieces([100] * 16, 160, 1_000) == 1


@given(TIMES, st.integers(0, 10_000), st.integers(0, 500))
def test_the_choice_is_as_good_as_any_and_nothing_beats_the_longer_of_both(
    layers: list[int], transfer: int, overhead: int
) -> None:
    chosen = step_ns(layers, transfer, overhead, best_pieces(layers, transfer, overhead))
    every = [step_ns(layers, transfer, overhead, n) for n in range(1, len(layers) + 1)]
    assert chosen <= min(every) * (1 + AS_GOOD)
    assert min(every) >= sum(layers)
    # Shares of the bytes are rounded, half a nanosecond each.
    assert min(every) >= transfer + layers[0] - len(layers)
