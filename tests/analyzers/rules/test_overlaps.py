"""Two findings about the same kernels: one is recommended, the other is an alternative in it."""

from __future__ import annotations

import pytest

from advisor.model.base import Range
from advisor.model.findings import Alternative, Evidence, Finding, Kind
from advisor.samples.transformer_block import inference
from analyzers.opportunities import Advice
from analyzers.rules import Match, find_all, without_overlaps
from tests.analyzers.rules.test_captured import graphs_of, subject_of

PLAN = "a" * 64


def match(
    name: str, nodes: str, saved: int, plan: str | None = None, kind: Kind = "opportunity"
) -> Match:
    price = Range(low=saved // 2, mid=saved, high=2 * saved)
    ways = (Alternative(route="generated_kernel", text=name),)
    if plan is not None:
        ways = (
            Alternative(route="generated_kernel", text=name, saving_ns=price, plan_ids=(plan,)),
        )
    finding = Finding(
        id=name,
        rule=name,
        kind=kind,
        title=name,
        exposed_saving_ns=None,
        evidence=(Evidence(kind="cannot_judge", text="untimed"),),
        provenance="exact",
        action=f"do {name}",
        alternatives=ways,
        plan_id=plan,
    )
    keys = frozenset(("g", node) for node in nodes)
    return Match(finding, keys, price, "generated_kernel" if plan else "library")


@pytest.mark.parametrize("saved", [90, 110, 200])
def test_a_plan_stays_and_holds_the_library_call_with_its_price(saved: int) -> None:
    found = without_overlaps([match("library", "abc", saved), match("plan", "bc", 100, PLAN)])
    assert [finding.id for finding in found] == ["plan"]
    last = found[0].alternatives[-1]
    assert last.route == "library"
    assert last.saving_ns is not None
    assert last.saving_ns.mid == saved
    assert "do library" in last.text


def test_a_library_call_beyond_the_plan_s_interval_comes_first_and_holds_the_plan() -> None:
    found = without_overlaps([match("plan", "bc", 100, PLAN), match("library", "abc", 201)])
    assert [finding.id for finding in found] == ["library"]
    assert [way.plan_ids for way in found[0].alternatives] == [(PLAN,)]


def test_a_hidden_saving_never_displaces_an_opportunity() -> None:
    hidden = match("library", "abc", 900, kind="note")
    found = without_overlaps([hidden, match("plan", "bc", 100, PLAN)])
    assert [finding.id for finding in found] == ["plan"]


def test_what_beats_two_findings_holds_both() -> None:
    small = [match("p", "ab", 10, PLAN), match("q", "cd", 10, "b" * 64)]
    (found,) = without_overlaps([*small, match("library", "bc", 1_000)])
    assert {way.plan_ids for way in found.alternatives} == {(PLAN,), ("b" * 64,)}
    loses = without_overlaps([*small, match("library", "bc", 5)])
    assert [finding.id for finding in loses] == ["p", "q"]


def test_findings_of_their_own_nodes_stay_in_order() -> None:
    found = without_overlaps([match("a", "a", 1), match("b", "b", 2, PLAN), match("c", "c", 3)])
    assert [finding.id for finding in found] == ["a", "b", "c"]


def test_no_node_of_a_block_is_in_two_findings() -> None:
    module, inputs = inference()
    subject = subject_of(graphs_of(module, *inputs))
    advice: Advice = subject.advice
    matches = find_all(subject)
    kept = {finding.id: finding for finding in without_overlaps(matches)}
    rules = {match.finding.rule for match in matches}
    assert {"attention-written-out", "row_program"} <= rules
    seen: set[tuple[str, str]] = set()
    for item in matches:
        if item.finding.id in kept:
            assert not item.nodes & seen
            seen |= item.nodes
    plans = {plan for f in kept.values() for way in f.alternatives for plan in way.plan_ids}
    assert plans == {plan.id for plan in advice.naming(kept.values()).plans}
