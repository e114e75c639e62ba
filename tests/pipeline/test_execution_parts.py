"""Parts outside the captured graphs reach the rules: each way to update parameters is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.pipeline.execution import observe, rehearse
from analyzers.rules import find_all
from analyzers.subject import Subject
from collectors import read_trace
from collectors.live.capture import Capture
from collectors.live.recorder import record_steps
from collectors.live.workload import Workload

Optimizer = Callable[..., torch.optim.Optimizer]


def workload(optimizer: Optimizer, **options: object) -> Workload:
    # Large enough that an update takes longer than a launch.
    layers = [nn.Linear(512, 512) for _ in range(4)]
    model = nn.Sequential(*layers)
    x = torch.randn(4, 512)
    made = optimizer(model.parameters(), lr=1e-3, **options)
    return Workload(
        "test", "training", torch.device("cpu"), model, optimizer=made, loss=lambda m: m(x).sum()
    )


def titles(held: Workload) -> list[str]:
    parts, warnings = rehearse(held, Capture())
    assert warnings == []
    gpu = gpu_by_key("h200")
    subject = Subject(
        graphs=(),
        provenance="exact",
        metrics={},
        eager=True,
        gpu=gpu,
        calibration=load_calibration(gpu),
    )
    return [match.finding.title for match in find_all(subject.with_parts(parts))]


@pytest.mark.parametrize(
    ("optimizer", "options", "title"),
    [
        (torch.optim.AdamW, {}, "Optimizer update (Adam-like) in 8 multi-tensor ops"),
        (torch.optim.SGD, {"momentum": 0.9}, "Optimizer update (SGD-like) in 3 multi-tensor ops"),
        (torch.optim.AdamW, {"foreach": False}, "parameter by parameter"),
        (torch.optim.SGD, {"foreach": False, "momentum": 0.9}, "parameter by parameter"),
    ],
)
def test_an_update_in_several_passes_is_found(
    optimizer: Optimizer, options: dict[str, object], title: str
) -> None:
    found = titles(workload(optimizer, **options))
    assert len(found) == 1, found
    assert title in found[0]


def test_a_fused_update_has_nothing_to_gain() -> None:
    assert titles(workload(torch.optim.AdamW, fused=True)) == []


def test_an_observed_step_gives_the_parts_of_a_training_step(tmp_path: Path) -> None:
    held = workload(torch.optim.AdamW, foreach=False)
    path = tmp_path / "timed.json"
    record_steps(held.step_of(), path, steps=2)
    parts, warnings = observe(held, None, Capture(), read_trace(path))
    assert warnings == []
    assert {part.part for part in parts} == {"optimizer", "rest"}


def test_a_step_without_the_optimizer_says_what_is_missing(tmp_path: Path) -> None:
    held = workload(torch.optim.AdamW)
    path = tmp_path / "timed.json"
    record_steps(held.step_of(), path, steps=1)
    _, warnings = observe(held, lambda: None, Capture(), read_trace(path))
    assert [w.code for w in warnings] == ["optimizer-not-captured"]
