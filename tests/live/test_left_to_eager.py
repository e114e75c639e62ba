"""Functions of which the compiler compiles nothing: counted as breaks, with line and reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from advisor.pipeline.profile import ProfileOptions, profile
from advisor.store import RunDirectory
from collectors.live.capture import Capture, capture
from collectors.live.compiler_facts import CompilerWatch
from collectors.live.workload import Workload

CPU = torch.device("cpu")
ROUTED = """
import torch
from torch import nn

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        best = x.argmax(-1) % 2
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (best == number).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]))
        return x + out

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Experts() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def make():
    return Model(), (torch.randn(16, 8),)
"""


def captured(part: Callable[[], Any]) -> Capture:
    with torch.no_grad():
        return capture(Workload("w", "step", CPU, part), generate_code=False)[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the traced step is advised on")
def test_experts_in_a_loop_are_told_with_the_line_that_keeps_them_from_the_compiler(
    tmp_path: Path,
) -> None:
    """None of both loops is compiled: it is not that there is nothing to see."""
    path = tmp_path / "experts.py"
    path.write_text(ROUTED)
    line = next(n for n, text in enumerate(ROUTED.splitlines(), 1) if "nonzero" in text)
    run = RunDirectory.create_at(tmp_path / "run")
    report = profile(ProfileOptions(target=f"{path}:make"), run, lambda *_: None)
    assert report.metrics["graph_breaks"].value == 1
    (told,) = (item for item in report.findings if item.rule == "graph-break")
    assert f"/experts.py:{line}" in f"/{told.locations[0].file}:{told.locations[0].line}"
    assert told.title.startswith("The compiler leaves forward (")
    assert "and 1 more function to eager at " in told.title
    assert "depends on input Tensor data" in told.evidence[0].text
    (why,) = (item.message for item in report.warnings if item.code == "no-graphs")
    assert "the compiler saw no op of the step: it leaves forward (" in why
    assert f"experts.py:{line}" in why


def test_a_break_that_the_compiler_goes_on_after_leaves_no_function() -> None:
    def part(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    x = torch.randn(4)
    found = captured(lambda: part(x))
    assert found.graph_breaks == 1
    assert [item.left_to_eager for item in found.facts.graph_breaks] == [()]


class Manager:
    """Dynamo cannot take up a function again within one that it does not know."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_what_is_left_beside_graphs_is_seen_to_run_outside_of_them() -> None:
    """An inference step is observed where something may run outside its graphs."""
    from advisor.pipeline.execution import is_worth_observing

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x.exp() + 1)

        def part(self, x: torch.Tensor) -> torch.Tensor:
            with Manager():
                x = x * 2
                torch._dynamo.graph_break()
                return x.tanh()

    model, x = Model(), torch.randn(4, 8)
    workload = Workload("w", "inference", CPU, lambda: model(x))
    with torch.no_grad():
        found = capture(workload, generate_code=False)[0]
    assert found.graphs
    assert found.graph_breaks
    assert any(item.left_to_eager for item in found.facts.graph_breaks)
    assert is_worth_observing(workload, found)


def test_what_is_compiled_too_often_is_told_where_its_guard_is() -> None:
    torch.compiler.reset()
    watch = CompilerWatch()

    def scaled(x: torch.Tensor, number: int) -> torch.Tensor:
        return x * number

    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for number in range(5):
            compiled(torch.randn(4), number)
    (told,) = watch.facts().graph_breaks
    torch.compiler.reset()
    assert "recompile" in told.reason
    assert told.left_to_eager == ()
