"""Graphs that run often in a step, on several sizes, or otherwise in the next step: all is told."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from advisor.pipeline import profile_script
from advisor.pipeline.profile import ProfileOptions, profile
from advisor.pipeline.run_notes import between_steps, own_warnings, within_step
from advisor.store import RunDirectory
from collectors.live.capture import Capture, capture
from collectors.live.graph_runs import GraphRun, GraphRuns
from collectors.live.script_graphs import Compiles
from collectors.live.workload import Workload

CPU = torch.device("cpu")
WITHIN = (
    "sizes vary within a step: a graph runs on float32[4, 8], float32[6, 8], float32[9, 8]; "
    "findings and plans are of the first of these alone"
)
ALONE = "graphs, findings and plans are of the first step alone"
BETWEEN = f"sizes vary between steps: a graph is given float32[4, 8] then float32[6, 8]; {ALONE}"
AGAIN = f"the second step was compiled again, for values that changed; {ALONE}"
OWN = "the step compiles parts of itself: without a GPU"


class Norm(nn.Module):
    """What the compiler makes one graph of."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.exp() + x)


def made(part: Callable[..., Any]) -> Capture:
    with torch.no_grad():
        return capture(Workload("w", "step", CPU, part), generate_code=False, again=True)[0]


def told(found: Capture) -> list[str]:
    notes = (*within_step(found), *between_steps(found), *own_warnings(found))
    return [warning.message for warning in notes]


def looped(model: Callable[..., Any], *rows: int) -> Callable[[], Any]:
    """A step of which the compiler sees the single calls, and that they are in a loop does not."""
    given = [torch.randn(n, 8) for n in rows]

    def step() -> list[Any]:
        out = []
        for x in given:
            torch._dynamo.graph_break()
            out.append(model(x))
        return out

    return step


def in_turn(model: Callable[..., Any], *rows: int) -> Callable[[], Any]:
    given = itertools.cycle([torch.randn(n, 8) for n in rows])
    return lambda: model(next(given))


def test_regions_for_any_size_that_a_step_compiles_itself() -> None:
    """The compiler of the whole step does not reach them."""
    found = made(looped(torch.compile(Norm(), dynamic=True), 4, 6, 9))
    within, often, own = told(found)
    assert within == WITHIN
    assert often.startswith("a graph that is compiled once runs up to 3 times a step")
    assert own.startswith(OWN)
    assert len(found.graphs) == 1


def test_sizes_that_come_in_turn() -> None:
    found = made(in_turn(torch.compile(Norm(), dynamic=True), 4, 6))
    between, own = told(found)
    assert between == BETWEEN
    assert own.startswith(OWN)
    assert len(found.graphs) == 1, "the second step adds none"
    assert told(made(in_turn(Norm(), 4, 6))) == [BETWEEN]


def test_one_graph_of_all_blocks() -> None:
    """Their parameters are inputs of it."""
    blocks = itertools.cycle([Norm() for _ in range(5)])

    def block(x: torch.Tensor) -> Any:
        return next(blocks)(x)

    (often,) = told(made(looped(block, *[4] * 5)))
    assert often == (
        "a graph that is compiled once runs up to 5 times a step: what findings and plans save is "
        "of all runs on the sizes of the first"
    )


def test_values_that_change() -> None:
    state, rows = {"big": False}, torch.randn(4, 8)

    def step() -> torch.Tensor:
        state["big"] = not state["big"]
        return rows.exp() * (7 if state["big"] else 3)

    assert told(made(step)) == [AGAIN]


@pytest.mark.parametrize(("device", "which"), [("cpu", "first"), ("cuda", "second")])
def test_which_step_the_regions_of_a_script_are_of(device: str, which: str) -> None:
    """A GPU times the later steps, so the graphs that were compiled for these stay."""
    graphs: list[Any] = ["first", "second"]
    runs = GraphRuns([[run_of(0, 4, 5), run_of(0, 4, 5)], [run_of(1, 6), run_of(1, 7)]])
    captured = Capture(graphs, runs=runs)
    compiles = Compiles(captured)
    compiles.graphs = 1
    recording: Any = SimpleNamespace(
        device=torch.device(device),
        captured=captured,
        options=ProfileOptions(target="w"),
        warnings=[],
    )
    unused: Any = SimpleNamespace(used=False, shapes=(), modules=())
    profile_script._conclude(recording, unused, unused, compiles)
    assert captured.graphs == [which]
    said = " ".join(warning.message for warning in recording.warnings)
    assert f"findings and plans are of the {which} step alone" in said
    assert ("sizes vary within a step: a graph runs on float32[6, 8], float32[7, 8]" in said) == (
        which == "second"
    )


def run_of(graph: int, *rows: int) -> GraphRun:
    return GraphRun(graph, tuple(f"float32[{n}, 8]" for n in rows))


def test_steps_that_are_alike_and_a_second_one_that_fails() -> None:
    assert told(made(looped(Norm(), 4))) == []
    given, model = iter([torch.randn(4, 8)]), Norm()
    assert told(made(lambda: model(next(given)))) == []


class Held(nn.Module):
    """A part that is compiled, in a model that is not."""

    def __init__(self, *, inside: bool) -> None:
        super().__init__()
        self.part = torch.compile(Norm(), dynamic=True)
        if inside:
            self.part = Norm()
            self.part.compile()

    def forward(self, *rows: torch.Tensor) -> Any:
        return [self.part(x) for x in rows]


@pytest.mark.parametrize("inside", [True, False])
def test_parts_that_a_model_compiles(inside: bool) -> None:
    work = Workload("w", "inference", CPU, Held(inside=inside), (torch.randn(4, 8),))
    (own,) = told(capture(work, generate_code=False)[0])
    assert own.startswith(OWN)
    assert (
        told(capture(Workload("w", "inference", CPU, Norm(), work.inputs), generate_code=False)[0])
        == []
    )


@torch.compile(dynamic=True)
def compiled(x: torch.Tensor) -> torch.Tensor:
    return x.exp() + x


def test_functions_that_are_compiled() -> None:
    rows = torch.randn(4, 8)
    for step in (lambda: compiled(rows), torch.compile(lambda: rows.exp() + 1)):
        (own,) = told(made(step))
        assert own.startswith(OWN)


NET = """
import itertools
import torch
from torch import nn


def make():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    rows = itertools.cycle([torch.randn(n, 8) for n in (4, 6)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model):
        return sum(model(x).square().mean() for x in [next(rows)] * 3)

    return model, optimizer, loss
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the traced steps tell it")
def test_a_profile_of_a_training_step_says_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    run = RunDirectory.create_at(tmp_path / "run")
    report = profile(ProfileOptions(target=f"{tmp_path}/net.py:make"), run, lambda *_: None)
    said = {warning.code: warning.message for warning in report.warnings}
    assert said["sizes-vary"].startswith("sizes vary between steps: a graph is given float32[")
    assert "up to 3 times a step" in said["several-runs"]
    assert "own-regions" not in said
