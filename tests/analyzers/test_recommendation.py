"""The recommended set: its order, one finding a kernel, and a saving that one replay gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.model.base import Range
from advisor.model.findings import Evidence, Finding, Kind
from analyzers.recommendation import recommend
from analyzers.replay_changes import Change
from tests.builders.replayed import steady_exposure

BUSY = steady_exposure([20.0] * 40, every_us=10, clean_us=850)
WAITING = steady_exposure([2.0] * 40, every_us=30, clean_us=900)


def finding(
    name: str,
    exposed: Range | None,
    kernel_ns: int = 0,
    kind: Kind = "opportunity",
    rule: str = "r",
    plan_id: str | None = None,
) -> Finding:
    proof = Evidence(kind="time", text="", values={"kernel_saving_ns": kernel_ns})
    return Finding(
        id=name,
        rule=rule,
        kind=kind,
        title=name,
        exposed_saving_ns=exposed,
        evidence=(proof,),
        provenance="exact",
        action="",
        plan_id=plan_id,
    )


def of(mid: int) -> Range:
    return Range(low=mid // 2, mid=mid, high=2 * mid)


def test_the_largest_exposed_saving_comes_first_and_the_unpriced_follow_by_kernel_time() -> None:
    found = recommend(
        (
            finding("unknown-small", None, 10),
            finding("small", of(5)),
            finding("unknown-large", None, 1_000),
            finding("nothing", of(0)),
            finding("aside", of(900), kind="note"),
            finding("large", of(50)),
        ),
        None,
        {},
    )
    assert found.order == ("large", "small", "unknown-large", "unknown-small")
    assert found.set_saving_ns is None


def test_flags_come_before_graphs_before_libraries_before_kernels() -> None:
    found = recommend(
        (
            finding("kernel", of(900), plan_id="p"),
            finding("library", of(800)),
            finding("graph", of(50), rule="launch-bound"),
            finding("flag", of(5), rule="optimizer-updates"),
        ),
        None,
        {},
    )
    assert found.order == ("flag", "graph", "library", "kernel")


def test_a_kernel_belongs_to_one_recommended_finding() -> None:
    changes = {
        "best": Change(sites=((1, 2, 3),), saved_ns=of(20_000)),
        "overlapping": Change(sites=((3, 4),), saved_ns=of(10_000)),
        "apart": Change(sites=((5, 6),), saved_ns=of(10_000)),
    }
    findings = [finding(name, BUSY.saved(change)) for name, change in changes.items()]
    assert set(recommend(findings, BUSY, changes).order) == {"best", "apart"}


def test_what_a_set_saves_is_replayed_and_not_added_up() -> None:
    changes = {
        "a": Change(sites=(tuple(range(20)),), saved_ns=of(39_000)),
        "g": Change(graph="regions"),
    }
    findings = [
        finding("a", WAITING.saved(changes["a"])),
        finding("g", WAITING.saved(changes["g"]), rule="launch-bound"),
    ]
    together = recommend(findings, WAITING, changes).set_saving_ns
    alone = [item.exposed_saving_ns for item in findings]
    assert together is not None
    assert alone[0] is not None
    assert alone[1] is not None
    assert alone[1].mid < together.mid < alone[0].mid + alone[1].mid
    assert together.mid < WAITING.scale.replayed_ns


@settings(max_examples=30)
@given(st.lists(st.integers(0, 39), min_size=2, max_size=20, unique=True), st.integers(0, 100))
def test_a_larger_set_never_saves_less(rows: list[int], share: int) -> None:
    halves = (tuple(rows[: len(rows) // 2]), tuple(rows[len(rows) // 2 :]))
    saved = Range(low=0, mid=100 * share * len(rows), high=200 * share * len(rows))
    changes = {f"f{k}": Change(sites=(half,), saved_ns=saved) for k, half in enumerate(halves)}
    for exposure in (BUSY, WAITING):
        savings = {name: exposure.saved(change) for name, change in changes.items()}
        found = [finding(name, saving) for name, saving in savings.items()]
        together = recommend(found, exposure, changes).set_saving_ns
        worth = [saving.mid for saving in savings.values() if saving.mid > 0]
        assert (together is None) == (not worth)
        if together is not None:
            together.check()
            assert together.mid >= max(worth) - 1
            assert together.high <= exposure.scale.replayed_ns * 1.2


def test_a_step_that_does_not_replay_as_it_ran_gives_no_set_saving() -> None:
    doubtful = steady_exposure([20.0] * 40, every_us=10, clean_us=400)
    change = Change(sites=((0, 1),), saved_ns=of(1_000))
    found = recommend([finding("a", None, 1_000)], doubtful, {"a": change})
    assert doubtful.doubt
    assert (found.order, found.set_saving_ns) == (("a",), None)


def test_the_set_of_a_busy_device_saves_the_kernels() -> None:
    changes = {
        "a": Change(sites=((0, 1),), saved_ns=of(20_000)),
        "b": Change(sites=((2, 3),), saved_ns=of(20_000)),
    }
    findings = [finding(name, BUSY.saved(change)) for name, change in changes.items()]
    together = recommend(findings, BUSY, changes).set_saving_ns
    assert together is not None
    assert together.mid == pytest.approx(40_000, rel=0.1)


def test_what_rests_on_other_ranks_counts_beside_the_replay() -> None:
    """The set never saves less than the best of it alone."""
    change = Change(sites=((0, 1),), saved_ns=of(20_000))
    waits = Range(low=0, mid=50_000, high=50_000)
    found = [finding("a", BUSY.saved(change)), finding("w", waits, rule="straggler-rank")]
    together = recommend(found, BUSY, {"a": change}).set_saving_ns
    alone = BUSY.saved(change)
    assert together == Range(low=alone.low, mid=50_000, high=alone.high + 50_000)
