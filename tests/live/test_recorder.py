"""Recording: what the profiler writes the reader reads, steps and variants where they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from collectors import read_trace
from collectors.live.recorder import VARIANT_PREFIX, record_steps, record_variants, recorded


def multiply() -> torch.Tensor:
    return torch.ones(8, 8) @ torch.ones(8, 8)


def test_steps_are_ranges_with_their_ops_and_shapes_inside(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    path = tmp_path / "trace.json.gz"
    record_steps(lambda: model(torch.ones(2, 8)), path, 3)
    trace = read_trace(path)
    steps = trace.steps()
    assert list(steps["name"]) == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    calls = trace.ops[trace.ops["name"] == "aten::addmm"]
    assert len(calls) == 3
    for (_, step), (_, call) in zip(steps.iterrows(), calls.iterrows(), strict=True):
        assert step["start_ns"] <= call["start_ns"]
        assert call["start_ns"] + call["duration_ns"] <= step["start_ns"] + step["duration_ns"]
    assert calls["input_shapes"].iloc[0].startswith("[[4], [2, 8], [8, 4]")


def test_with_stacks_ops_know_their_module(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    path = tmp_path / "trace.json.gz"
    with recorded(path, stacks=True) as range_of, range_of(0):
        model(torch.ones(2, 8))
    ops = read_trace(path).ops
    assert "Linear" in ops[ops["name"] == "aten::addmm"]["module"].iloc[0]


def test_a_step_that_fails_while_the_profiler_sets_itself_up_leaves_no_profiler(
    tmp_path: Path,
) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        record_steps(fail, tmp_path / "trace.json", 1)
    record_steps(multiply, tmp_path / "trace.json", 1)
    assert len(read_trace(tmp_path / "trace.json").steps()) == 1


def test_variants_run_once_a_round_in_alternating_order_and_what_comes_before_is_outside(
    tmp_path: Path,
) -> None:
    order: list[str] = []
    variants = {name: (lambda n=name: (order.append(n), multiply())) for name in ("a", "b")}
    path = tmp_path / "trace.json"
    record_variants(variants, path, 3, before=lambda: order.append("flush"))
    assert [name for name in order if name != "flush"] == ["a", "b", "b", "a", "a", "b"]
    assert order[::2] == ["flush"] * 6
    trace = read_trace(path)
    ranges = trace.steps(VARIANT_PREFIX)
    assert [name.removeprefix(VARIANT_PREFIX) for name in ranges["name"]] == [
        "a",
        "b",
        "b",
        "a",
        "a",
        "b",
    ]
    ends = (ranges["start_ns"] + ranges["duration_ns"]).tolist()
    assert all(
        end <= start for end, start in zip(ends, ranges["start_ns"].tolist()[1:], strict=False)
    )
