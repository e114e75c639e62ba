"""The order in which findings are shown."""

from __future__ import annotations

from msgspec.structs import replace

from advisor.model.report import Recommended
from advisor.report.words import first_to_fuse, ranked
from tests.model.builders import finding, price, report


def test_findings_without_a_price_stand_as_recommended() -> None:
    """Without a GPU nothing has an exposed saving: "Fuse first" is still the first row."""
    unpriced = report(finding("a"), finding("b"), finding("c"), finding("aside"))
    advised = replace(unpriced, recommended=Recommended(order=("c", "a", "b")))
    assert [f.id for f in ranked(advised)] == ["c", "a", "b", "aside"]
    assert first_to_fuse(advised) == ranked(advised)[0]


def test_of_the_unpriced_the_one_that_saves_most_kernel_time_comes_first() -> None:
    """The recommended order is one of effort: a flag that saves little stands before a kernel."""
    large = finding("large")
    proof = replace(large.evidence[0], values={"kernel_saving_ns": 46_000})
    flag = replace(large, id="flag", evidence=(replace(proof, values={"kernel_saving_ns": 9}),))
    large = replace(large, evidence=(proof, *large.evidence[1:]))
    flag = replace(flag, evidence=(*flag.evidence, *large.evidence[1:]))
    advised = replace(report(flag, large), recommended=Recommended(order=("flag", "large")))
    assert [f.id for f in ranked(advised)] == ["large", "flag"]
    assert first_to_fuse(advised) == large


def test_a_price_outranks_the_recommendation() -> None:
    priced = report(finding("a"), finding("b", saving=price(1, 2, 3)), finding("note", kind="note"))
    advised = replace(priced, recommended=Recommended(order=("note", "a", "b")))
    assert [f.id for f in ranked(advised)] == ["b", "a", "note"]
