"""Optimizers whose step calls a closure: captured, stepped, and told of as what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import record_function

from advisor.apply.recipe import Recipe
from advisor.model.range_names import CAPTURED_RANGE
from advisor.pipeline.api import OptimizedStep
from advisor.pipeline.execution import rehearse
from advisor.pipeline.profile import ProfileOptions, profile
from advisor.store import RunDirectory
from analyzers.execution_graph import executed_parts
from collectors.live.capture import capture
from collectors.live.closures import one_step, takes_closure
from collectors.live.execution_trace import record_execution
from collectors.live.workload import Workload

CPU = torch.device("cpu")
DATA = torch.linspace(-1, 1, 32).reshape(4, 8)
TARGET = """
import torch
from torch import nn


def step():
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


def trained():
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    return model, torch.optim.LBFGS(model.parameters()), lambda m: m(x).square().mean()
"""


def _model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(8, 8)


def _loss(model: nn.Module) -> torch.Tensor:
    result: torch.Tensor = model(DATA).square().mean()
    return result


def test_which_optimizers_ask_for_the_loss_themselves() -> None:
    model = _model()
    assert takes_closure(torch.optim.LBFGS(model.parameters()))
    assert not takes_closure(torch.optim.AdamW(model.parameters()))


@pytest.mark.parametrize(("kind", "times"), [("LBFGS", 3), ("SGD", 1)])
def test_a_step_of_either_kind_trains(kind: str, times: int) -> None:
    model = _model()
    more = {"max_iter": times} if kind == "LBFGS" else {"lr": 0.1}
    optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(model.parameters(), **more)
    calls: list[float] = []

    def gradients() -> torch.Tensor:
        optimizer.zero_grad()
        loss = _loss(model)
        loss.backward()
        calls.append(float(loss.detach()))
        return loss

    first = one_step(optimizer, gradients)
    assert float(first.detach()) == calls[0]
    assert float(_loss(model).detach()) < calls[0]
    assert len(calls) == times


def test_the_model_is_captured_and_nothing_is_stepped() -> None:
    model = _model()
    before = model.weight.detach().clone()
    optimizer = torch.optim.LBFGS(model.parameters())
    work = Workload("closure", "training", CPU, model, optimizer=optimizer, loss=_loss)
    captured, _ = capture(work, generate_code=False)
    assert [item.lowered.graph.phase for item in captured.graphs] == ["forward", "backward"]
    assert torch.equal(model.weight, before)
    parts, (warning,) = rehearse(work, captured)
    assert parts == ()
    assert warning.message.startswith("what LBFGS does between calls of the loss: no finding")


def test_what_the_closure_runs_is_no_update(tmp_path: Path) -> None:
    """It runs inside the optimizer's own range, forward and backward, several times."""
    model = _model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def gradients() -> torch.Tensor:
        optimizer.zero_grad()
        with record_function(CAPTURED_RANGE):
            out = model(DATA)
        loss: torch.Tensor = out.sigmoid().mean()
        loss.backward()
        return loss

    file = tmp_path / "execution_trace.json"
    found = record_execution(lambda: one_step(optimizer, gradients), file, "cpu", timeline=False)
    parts, _ = executed_parts(found.trace, found.decomposed)
    ops = {part.part: {node.label for node in part.graph.nodes} for part in parts}
    assert "aten::dot" in ops["optimizer"]
    assert not any("mm" in label or "sigmoid" in label for label in ops["optimizer"])
    assert "aten::sigmoid" in ops["rest"]
    assert "aten::dot" not in ops["rest"]


def test_an_applied_step_calls_it_as_eager_does() -> None:
    ours, own = _model(), _model()
    step = OptimizedStep(
        Recipe(), ours, torch.optim.LBFGS(ours.parameters(), max_iter=3), _loss
    )  # fmt: skip
    eager = torch.optim.LBFGS(own.parameters(), max_iter=3)

    def gradients() -> torch.Tensor:
        eager.zero_grad()
        loss = _loss(own)
        loss.backward()
        return loss

    for _ in range(2):
        torch.testing.assert_close(step(), one_step(eager, gradients).detach())
    torch.testing.assert_close(ours.weight, own.weight)
    torch.compiler.reset()


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is timed and traced too")
def test_reports_say_what_their_figures_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "target.py"
    file.write_text(TARGET)
    reports = {}
    for name in ("step", "trained"):
        run = RunDirectory.create_at(tmp_path / name)
        reports[name] = profile(ProfileOptions(target=f"{file}:{name}"), run, lambda *_: None)
    # Dynamo counts for the whole process: tests before this one may have recompiled the same code.
    actions = [finding.action for finding in reports["step"].findings]
    assert any("return (model, optimizer, loss) instead" in action for action in actions)
    assert not any("Remove the" in action for action in actions), "nobody can: PyTorch put it there"
    told = {warning.code: warning.message for warning in reports["trained"].warnings}
    assert told["several-evaluations"] == (
        "LBFGS evaluates model and loss several times a step: what findings save is of one "
        "evaluation, times of the step are of all"
    )
