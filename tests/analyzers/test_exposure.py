"""What a change saves on the critical path, and when nobody can say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.model.base import Range
from analyzers.exposure import judged
from analyzers.replay_calibration import LEAST_SCALE, MOST_SCALE
from analyzers.replay_changes import Change, distinct
from tests.builders.replayed import steady_exposure

BUSY = steady_exposure([20.0] * 40, every_us=10, clean_us=850)
WAITING = steady_exposure([2.0] * 40, every_us=30, clean_us=900)
BARE = steady_exposure([20.0] * 40, every_us=30)


def exactly(saved_ns: int) -> Range:
    return Range(low=saved_ns, mid=saved_ns, high=saved_ns)


def test_the_clean_step_is_reproduced_or_nothing_is_judged() -> None:
    for exposure in (BUSY, WAITING):
        assert exposure.scale.error == pytest.approx(0, abs=0.05)
        assert not exposure.doubt
    impossible = steady_exposure([20.0] * 40, every_us=10, clean_us=400)
    saving, said = judged(impossible, Change(sites=((0, 1),), saved_ns=exactly(5_000)))
    assert saving is None
    assert said.kind == "cannot_judge"
    assert "the clean step 400 µs" in said.text
    assert "more than 5.0 %" in said.text


def test_a_busy_device_saves_kernel_time_and_a_waiting_one_host_time() -> None:
    change = Change(sites=((3, 4),), saved_ns=exactly(20_000))
    assert BUSY.saved(change).mid == pytest.approx(21_200, rel=0.1)
    idle = WAITING.saved(Change(sites=((3, 4),), saved_ns=exactly(2_000)))
    # One operator of 30 µs on the profiler's clock, scaled, less what lies between operators.
    assert idle.mid == pytest.approx(0.9 * 30_000 * WAITING.scale.mid, rel=0.1)
    alone = WAITING.saved(Change(sites=((3,),), saved_ns=exactly(1_000)))
    assert alone.high < 200


def test_nothing_removed_saves_nothing() -> None:
    for exposure in (BUSY, WAITING, BARE):
        assert exposure.saved(Change(sites=((5,),), saved_ns=exactly(0))) == exactly(0)
        assert exposure.saved() == exactly(0)


def test_a_slower_kernel_loses() -> None:
    lost = BUSY.saved(Change(sites=((5,),), saved_ns=exactly(-30_000)))
    assert lost.mid == pytest.approx(-30_000, rel=0.05)


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 39), min_size=1, max_size=12, unique=True),
    st.lists(st.integers(0, 10_000), min_size=3, max_size=3).map(sorted),
    st.booleans(),
)
def test_savings_are_ordered_and_smaller_than_the_step(
    rows: list[int], saved: list[int], gone: bool
) -> None:
    low, mid, high = (len(rows) * part for part in saved)
    change = Change(sites=(tuple(rows),), saved_ns=Range(low=low, mid=mid, high=high), gone=gone)
    for exposure in (BUSY, WAITING, BARE):
        found = exposure.saved(change)
        found.check()
        assert found.low >= 0
        assert found.high <= exposure.scale.replayed_ns * 1.6
        fewer = Change(sites=(tuple(rows[1:]),), saved_ns=exactly(0), gone=gone)
        assert exposure.saved(fewer).low <= found.high + 1


def test_a_bare_trace_gives_a_range_over_all_speeds_of_the_host_and_says_so() -> None:
    saving, said = judged(BARE, Change(sites=((3, 4),), saved_ns=exactly(20_000)))
    assert saving is not None
    assert "how much the profiler slowed the host" in said.text
    assert (BARE.scale.low, BARE.scale.high) == (LEAST_SCALE, MOST_SCALE)
    # A fast host leaves the device as the bottleneck: the kernel goes in full.
    assert saving.high >= 20_000
    assert saving.low == 0


def test_without_a_step_or_with_kernels_missing_nothing_is_judged() -> None:
    change = Change(sites=((0,),), saved_ns=exactly(5_000))
    for exposure, doubt, needs in (
        (None, "", "a run on the GPU"),
        (BUSY, "1 of 2 steps have no kernels", "a complete trace"),
    ):
        saving, said = judged(exposure, change, doubt)
        assert saving is None
        assert said.values["needs"] == needs
        assert said.values["kernel_saving_ns"] == 5_000


def test_a_kernel_of_two_sites_counts_with_the_first() -> None:
    assert distinct([(1, 2, 2), (2, 3), (3,)]) == ((1, 2), (3,))
