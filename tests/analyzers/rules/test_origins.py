"""Every predicted time says what it rests on, in every family of plans: the model, and lessons."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.findings import Finding
from advisor.model.scores import ResidualQuantiles
from advisor.samples import mamba_block
from analyzers.exposure import Situation
from analyzers.opportunities import PricedGraph, advise
from analyzers.rules import find_all
from analyzers.subject import captured_subject
from tests.analyzers.rules.test_captured import graphs_of
from tests.builders.captured import RMSNorm, captured_training

GPU = gpu_by_key("h200")
PLAIN = Situation(GPU, default_calibration(GPU), eager=True)
LEARNED = replace(PLAIN, residuals=ResidualQuantiles(low=0.5, mid=1.0, high=2.0))
TAUGHT = "corrected as earlier plans there taught"


def loop() -> tuple[Callable[..., Any], Sequence[torch.Tensor]]:
    return mamba_block.inference()


def norm() -> tuple[Callable[..., Any], Sequence[torch.Tensor]]:
    return RMSNorm(1024), (torch.randn(4096, 1024, dtype=torch.bfloat16),)


def chain() -> tuple[Callable[..., Any], Sequence[torch.Tensor]]:
    x = torch.randn(4096, 1024)
    return (lambda a, b: torch.tanh(a * b + 1).exp() * b), (x, x)


def product() -> tuple[Callable[..., Any], Sequence[torch.Tensor]]:
    x, w = torch.randn(4096, 128), torch.randn(128, 4096)
    return (lambda a, b: functional.silu(a.bfloat16() @ b.bfloat16())), (x, w)


def findings(
    made: tuple[Callable[..., Any], Sequence[torch.Tensor]], situation: Situation
) -> list[Finding]:
    module, inputs = made
    priced = [PricedGraph(graph) for graph in graphs_of(module, *inputs)]
    advice = advise(priced, situation)
    return [m.finding for m in find_all(captured_subject(priced, advice, situation, {}, None))]


@pytest.mark.parametrize("make", [loop, norm, chain], ids=lambda make: make.__name__)
def test_times_of_generated_kernels_say_what_corrected_them(
    make: Callable[[], tuple[Callable[..., Any], Sequence[torch.Tensor]]],
) -> None:
    """A scan's said "modelled" whatever had been learned."""
    for situation in (PLAIN, LEARNED):
        with_plans = [f for f in findings(make(), situation) if f.plan_id is not None]
        texts = [e.text for f in with_plans for e in f.evidence if e.kind == "time"]
        assert texts
        assert any(situation.model in text for text in texts), texts
        assert any(TAUGHT in text for text in texts) is (situation is LEARNED), texts


def test_a_product_says_of_both_sides_where_their_times_are_from() -> None:
    found = [f for f in findings(product(), PLAIN) if f.rule == "gemm-epilogue"]
    (time,) = [e.text for f in found for e in f.evidence if e.kind == "time"]
    assert "a step (modelled) and goes" in time
    assert "by the library (modelled)" in time
    assert time.endswith("are saved, modelled")


def test_a_chain_within_a_loop_says_of_how_many_of_its_ops_the_kernels_are() -> None:
    """Beside a price of all ops of the finding stood that of kernels for a few of them."""
    module, inputs = mamba_block.inference()
    priced = [PricedGraph(item.lowered.graph) for item in captured_training(module, *inputs).graphs]
    subject = captured_subject(priced, advise(priced, PLAIN), PLAIN, {}, None)
    texts = [e.text for m in find_all(subject) for e in m.finding.evidence if e.kind == "time"]
    told = [text for text in texts if text.startswith("as generated kernels, ")]
    assert told
    for text in told:
        found = re.match(r"as generated kernels, (\d+) of (\d+) ops: ", text)
        assert found is not None
        assert int(found[1]) < int(found[2])
        assert PLAIN.model in text


@pytest.mark.parametrize("make", [loop, norm, chain], ids=lambda make: make.__name__)
def test_savings_that_lessons_changed_are_not_called_modelled(
    make: Callable[[], tuple[Callable[..., Any], Sequence[torch.Tensor]]],
) -> None:
    priced = [f for f in findings(make(), LEARNED) if f.plan_id is not None]
    told = [e.text for f in priced for e in f.evidence if e.kind == "cannot_judge"]
    assert told
    assert all("predicted" in text and "modelled" not in text for text in told)
