"""Notes on graph breaks and recompiles: one a place, each says what to change at which line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.model.base import Location
from advisor.model.compiler import CompilerFacts, GraphBreak, Recompile
from analyzers.rules import find_all
from analyzers.rules.recompiles import remedy
from analyzers.subject import Subject

LINE = Location(file="net.py", line=7)
NOTHING = Subject(graphs=(), provenance="exact", metrics={}, eager=True)


def subject(**facts: object) -> Subject:
    return replace(NOTHING, compiler=CompilerFacts(**facts))  # type: ignore[arg-type]


def test_reasons_of_one_line_are_one_note_with_the_compilers_hint() -> None:
    breaks = (
        GraphBreak(location=LINE, function="forward", reason="cannot trace open", count=2),
        GraphBreak(location=LINE, function="forward", reason="cannot trace print", hint="log it"),
        GraphBreak(location=Location(file="net.py", line=9), reason="a branch"),
    )
    first, second = (match.finding for match in find_all(subject(graph_breaks=breaks)))
    assert first.title == "The compiler leaves the graph at net.py:7 in forward"
    assert first.action == "at net.py:7 in forward: log it"
    assert [evidence.values["breaks"] for evidence in first.evidence] == [2, 1]
    assert first.locations == (LINE,)
    assert first.kind == second.kind == "note"
    assert first.id != second.id


def test_each_failed_guard_is_a_note() -> None:
    guard = "tensor 'x' size mismatch at index 1. expected 4, actual 8"
    item = Recompile(location=LINE, function="forward", guard=guard, count=3)
    (match,) = find_all(subject(recompiles=(item,)))
    assert "mark_dynamic(x, 1)" in match.finding.action
    assert "4, then 8" in match.finding.action
    assert guard in match.finding.evidence[0].text
    assert match.finding.evidence[0].values == {"recompiles": 3}


def test_a_wrapper_of_dynamo_is_told_as_what_it_stands_for() -> None:
    """`torch.compile(nn.Sequential(...))` has no line of the user's; its input has no name."""
    guard = "tensor 'args[0]' size mismatch at index 0. expected 32, actual 48"
    inner = Location(file="/x/site-packages/torch/_dynamo/external_utils.py", line=67)
    (match,) = find_all(
        subject(recompiles=(Recompile(location=inner, function="inner", guard=guard),))
    )
    assert match.finding.title.startswith("Compiled again: a compiled module whose forward is PyTo")
    assert "size 0 of input 1 changes (32, then 48): torch._dynamo.mark_dynamic(that input, 0)" in (
        match.finding.action
    )


@pytest.mark.parametrize(
    ("guard", "word"),
    [
        ("tensor 'x' stride mismatch at index 0. expected 4, actual 1", "contiguous"),
        ("tensor 'x' dtype mismatch. expected Float, actual Half", "dtype"),
        ("n == 2", "constant"),
        ("___check_obj_id(L['f'], 140)", "same object"),
        ("GLOBAL_STATE changed: grad_mode", "grad mode"),
        ("something new", "keep what this guard compares"),
    ],
)
def test_a_remedy_for_each_kind_of_guard(guard: str, word: str) -> None:
    assert word in remedy(guard)


def test_no_facts_no_notes() -> None:
    assert find_all(NOTHING) == ()
    assert find_all(subject()) == ()
