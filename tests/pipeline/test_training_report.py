"""The report of the training sample: one order, one owner of every kernel, nothing left unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor.model.report import Report
from advisor.pipeline.profile import ProfileOptions, profile
from advisor.report.words import ranked
from advisor.store import RunDirectory
from tests.pipeline.test_sample_profiles import EXPECTED, TOLD_ELSEWHERE


@pytest.fixture(scope="module")
def report(places: Path) -> Report:
    run = RunDirectory.create_at(places / "training")
    options = ProfileOptions(target="sample:transformer_block:train", steps=3)
    return profile(options, run, lambda stage, text: None)


def test_the_optimizer_is_looked_at_although_no_graph_holds_it(report: Report) -> None:
    """On a GPU AdamW updates in multi-tensor ops unless it is told otherwise."""
    assert not [w for w in report.warnings if w.code == "optimizer-not-captured"]
    (found,) = [f for f in report.findings if f.rule == "optimizer-updates"]
    assert found.title == "Optimizer update (Adam-like) in 8 multi-tensor ops"
    assert found.action.startswith("construct the optimizer with fused=True")
    assert found.provenance == "exact"
    assert "executed ops" in {source.kind for source in report.sources}


@pytest.mark.skipif(torch.cuda.is_available(), reason="prices are measured here")
def test_the_sample_shows_what_it_is_made_for(report: Report) -> None:
    expected = EXPECTED[TOLD_ELSEWHERE][1]
    assert {finding.rule for finding in report.findings} >= expected


def test_the_list_stands_by_what_goes_whatever_the_order_of_effort(report: Report) -> None:
    listed = [f for f in ranked(report) if f.id in report.recommended.order]
    assert {f.id for f in listed} == set(report.recommended.order)
    assert len(listed) > 3
    unpriced = [f.kernel_saving_ns or 0 for f in listed if f.exposed_saving_ns is None]
    assert unpriced == sorted(unpriced, reverse=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is worth it was measured")
def test_attention_is_one_finding_with_both_ways(report: Report) -> None:
    found = [f for f in report.findings if "softmax" in f.title or "Attention" in f.title]
    forward = [f for f in found if "gradient" not in f.title]
    assert len(forward) == 1
    routes = {way.route for way in forward[0].alternatives if way.saving_ns is not None}
    assert routes == {"generated_kernel", "library"}


def test_no_title_names_an_op_of_aten(report: Report) -> None:
    assert not [f.title for f in report.findings if "aten" in f.title]
