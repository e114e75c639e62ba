"""Losses beside their models on the GPU: in pieces with them, less memory, the same training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("triton", reason="kernels need triton")

import advisor
from advisor.apply.graph.loss import rewrite_losses
from advisor.apply.model.step_graph import WARMUP
from advisor.apply.recipe import UNCHANGED, Recipe
from advisor.errors import AdvisorError
from advisor.model.loss_chunks import LossSizes, rows_of_chunk
from advisor.pipeline.api import MOVING_BATCH, AppliedRun
from advisor.pipeline.measure import Bench
from advisor.pipeline.peers import Alone
from advisor.pipeline.search import Search
from advisor.pipeline.sets import disagreement
from advisor.pipeline.trials import Trial
from advisor.pipeline.with_loss import seen_with_loss
from advisor.store import RunDirectory
from collectors.live.loss_calls import LossOfParts
from collectors.live.workload import Workload

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")
WHOLE = Recipe(("chunked_loss",), with_loss=True)
ROWS, CLASSES, FEATURES = 16_384, 32_000, 1_024
Loss = Callable[[Any], torch.Tensor]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()


class Language(nn.Module):
    """Logits, and beside them the loss where labels are given."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.head(torch.tanh(self.body(x)))
        if labels is None:
            return logits
        wide = logits.float().view(-1, CLASSES)
        return functional.cross_entropy(wide, labels.view(-1)), logits


def language(beside: bool, dtype: torch.dtype = torch.bfloat16) -> Workload:
    torch.manual_seed(0)
    model = Language().to(CUDA, dtype)
    x = torch.randn(4, ROWS // 4, FEATURES, device=CUDA, dtype=dtype)
    labels = torch.randint(0, CLASSES, (4, ROWS // 4), device=CUDA)
    labels[:, ::7] = -100

    def outside(part: Any) -> torch.Tensor:
        return functional.cross_entropy(part(x).view(-1, CLASSES).float(), labels.view(-1))

    def of_both(part: Any) -> torch.Tensor:
        loss: torch.Tensor = part(x, labels)[0]
        return loss

    loss = LossOfParts(of_both if beside else outside)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return Workload("language", "training", CUDA, model, optimizer=optimizer, loss=loss)


@pytest.mark.parametrize("beside", [False, True])
def test_it_keeps_its_gradients_and_needs_less_memory(beside: bool) -> None:
    make = partial(language, beside)
    bench = Bench(make(), make)
    variant = bench.build(WHOLE)
    assert [item.refused for item in variant.log.rewritten] == [None]
    assert disagreement(Alone(), bench, variant)[0] == ""
    before, after = bench.peak_memory(bench.compiled), bench.peak_memory(variant)
    assert before is not None
    assert after is not None
    # The compiler may put the gradient of logits in their place; a loss run by eager does not.
    sizes = LossSizes(ROWS, CLASSES, FEATURES, 2)
    piece = rows_of_chunk(ROWS, CLASSES, 2)
    assert before - after > 0.95 * sizes.saved_bytes(piece, compiled=True) - 2 * ROWS * FEATURES * 2


def test_a_search_keeps_it_for_memory_and_says_with_what(tmp_path: Path) -> None:
    make = partial(language, False)
    seen = seen_with_loss(make(), rewrite_losses, ())
    assert [item.with_loss for item in seen] == [True]
    trials = [Trial(kind, action=kind) for kind in ("chunked_loss", "step_graph")]
    bench = Bench(make(), make)
    search = Search(bench, {}, trials, tmp_path, lambda *_, **__: None)
    search.seen = {"chunked_loss": seen}
    best, result = search.run()
    assert "chunked_loss" in result.actions, trials[0].judgement
    assert best is not None
    assert best.recipe.with_loss
    assert result.outputs_agree
    assert trials[0].peak_bytes is not None
    assert trials[0].peak_bytes[1] < trials[0].peak_bytes[0]
    assert "compiled as one function" in trials[0].details[0]


@pytest.mark.parametrize("kinds", [("chunked_loss",), ("chunked_loss", "step_graph")])
def test_the_step_that_the_api_makes_trains_like_the_plain_one(kinds: tuple[Any, ...]) -> None:
    def losses(recipe: Recipe) -> list[float]:
        torch._dynamo.reset()
        work = language(True, torch.float32)
        assert isinstance(work.part, nn.Module)
        assert isinstance(work.loss, LossOfParts)
        assert work.optimizer is not None
        step = AppliedRun(recipe).apply(work.part, work.optimizer, work.loss.loss)
        return [float(step()) for _ in range(8)]

    ours, theirs = losses(Recipe(kinds, with_loss=True)), losses(UNCHANGED)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-4)


def test_labels_that_move_are_seen_before_a_step_is_captured() -> None:
    """The model is given the same tensor at every step: only the graph's inputs tell."""
    work = language(False)
    assert isinstance(work.part, nn.Module)
    assert work.optimizer is not None
    x = torch.randn(1, 4096, FEATURES, device=CUDA, dtype=torch.bfloat16)
    held: dict[str, torch.Tensor] = {}

    def loss(part: Any) -> torch.Tensor:
        return functional.cross_entropy(part(x).view(-1, CLASSES), held["labels"])

    recipe = Recipe(("chunked_loss", "step_graph"), with_loss=True)
    step = AppliedRun(recipe).apply(work.part, work.optimizer, loss)
    for number in range(WARMUP + 2):
        held["labels"] = torch.randint(0, CLASSES, (4096,), device=CUDA)
        with pytest.warns(match=MOVING_BATCH) if number == WARMUP else nullcontext():
            step()


def test_optimize_finds_a_loss_outside_the_model(tmp_path: Path) -> None:
    work = language(False)
    assert isinstance(work.part, nn.Module)
    assert isinstance(work.loss, LossOfParts)
    assert work.optimizer is not None
    # Losses come first: what takes long is no matter of this test.
    step = advisor.optimize(
        work.part, work.optimizer, work.loss.loss, run=tmp_path / "run", budget_s=150.0
    )
    applied = RunDirectory.at(tmp_path / "run").applied()
    assert applied is not None
    (action,) = [item for item in applied.actions if item.kind == "chunked_loss"]
    assert action.applies, action.reason
    assert action.with_loss
    assert step.recipe.with_loss == ("chunked_loss" in applied.set.actions)
    try:
        losses = [float(step()) for _ in range(10)]
    except AdvisorError as error:
        pytest.fail(error.line())
    assert losses[-1] < losses[0]
