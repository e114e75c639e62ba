"""Every sample, and its training step, is profiled without a GPU and shows what it is made for."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from advisor.model.report import Report
from advisor.pipeline.profile import ProfileOptions, profile
from advisor.samples import SAMPLES, sample_module
from advisor.store import RunDirectory

# Rules that must fire, inference and training.
EXPECTED: dict[str, tuple[set[str], set[str]]] = {
    "transformer_block": (
        {"row_program", "rotary-written-out", "gated-mlp"},
        {"row_program", "optimizer-updates"},
    ),
    "bert_layer": ({"row_program"}, {"row_program", "optimizer-updates"}),
    "resnet_block": ({"batch-norm"}, {"pointwise-chain", "optimizer-updates"}),
    "unet_block": ({"row_program"}, {"pointwise-chain", "optimizer-updates"}),
    "mamba_block": (
        {"scan-written-out", "row_program"},
        {"scan-written-out", "row_program", "optimizer-updates"},
    ),
    "dlrm": (set(), {"optimizer-updates"}),
}
# A graph has as many nodes of a loop as tokens, an optimizer writes whole tables.
SMALLER = {"mamba_block": {"TOKENS": 12}, "dlrm": {"ROWS": 1_000, "BATCH": 256}}
# Its training step is profiled, and looked at more closely, in test_training_report.
TOLD_ELSEWHERE = "transformer_block"

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="prices are measured here")


def report_of(target: str, places: Path) -> Report:
    run = RunDirectory.create_at(places / target.replace(":", "-"))
    report = profile(ProfileOptions(target=target, gpu="a100"), run, lambda stage, text: None)
    assert run.report() == report
    return report


def test_every_sample_is_expected_to_show_something() -> None:
    assert set(EXPECTED) == {name for name, _, _ in SAMPLES}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_shows_what_it_is_made_for(name: str, places: Path) -> None:
    report = report_of(f"sample:{name}", places)
    assert {finding.rule for finding in report.findings} >= EXPECTED[name][0]
    assert all(finding.exposed_saving_ns is None for finding in report.findings)
    assert report.hardware.key == "a100"
    assert not report.hardware.present
    for finding in report.findings:
        ways = [way.text for way in finding.alternatives if way.plan_ids]
        assert len(ways) == len({*ways}), "ways of other prices read the same"


@pytest.mark.parametrize("name", [name for name in EXPECTED if name != TOLD_ELSEWHERE])
def test_so_does_its_training_step(
    name: str, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer tokens and rows; tests/gpu profiles what ships."""
    for constant, value in SMALLER.get(name, {}).items():
        monkeypatch.setattr(importlib.import_module(sample_module(name)), constant, value)
    report = report_of(f"sample:{name}:train", places)
    assert {finding.rule for finding in report.findings} >= EXPECTED[name][1]


def test_library_calls_are_not_reported_as_written_out(places: Path) -> None:
    (places / "library_calls.py").write_text(LIBRARY)
    report = report_of(f"{places / 'library_calls.py'}:make", places)
    told = [finding.title for finding in report.findings]
    assert not [title for title in told if "written out" in title or "softmax" in title]
    assert not [title for title in told if title.startswith(("layer norm", "RMS norm"))]


LIBRARY = '''
"""Attention, norms and flexible attention as calls of the library."""

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(64), nn.RMSNorm(64)

    def forward(self, heads):
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        mixed = self.first(mixed) @ torch.ones(64, 64)
        return flex_attention(self.second(mixed), heads, heads)


def make():
    return Block().eval(), torch.randn(2, 4, 128, 64)
'''
