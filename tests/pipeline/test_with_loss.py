"""Losses beside their models, compiled with them: which are, which are not and why, and how."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import fx, nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional

from advisor.apply.graph.loss import rewrite_losses
from advisor.apply.graph.records import Rewritten
from advisor.apply.judge import Judgement
from advisor.apply.recipe import UNCHANGED, Recipe
from advisor.errors import IllegalFusionError
from advisor.model.actions import ActionKind
from advisor.model.applied import Applied, SetVerdict
from advisor.model.attempt import Attempt
from advisor.pipeline.api import MOVING_BATCH, NO_LOSS, AppliedRun, OptimizedStep
from advisor.pipeline.apply import _captured
from advisor.pipeline.backend import SwapLog, with_rewrites
from advisor.pipeline.earlier import kept_before
from advisor.pipeline.instances import Instances
from advisor.pipeline.journal import Written, restore, unwatched
from advisor.pipeline.kept import kept_recipe
from advisor.pipeline.measure import compiled_part
from advisor.pipeline.peers import Alone
from advisor.pipeline.search import unlimited
from advisor.pipeline.training import LossCurves, loss_curves
from advisor.pipeline.trials import Trial
from advisor.pipeline.verdicts import action_verdicts, seen_actions
from advisor.pipeline.with_loss import is_apart, seen_with_loss
from advisor.store import RunDirectory
from collectors.live.loss_calls import WithLoss
from collectors.live.workload import Part, Workload
from tests.builders.language import (
    CLASSES,
    CPU,
    LABELS,
    LOGITS_BYTES,
    TOKENS,
    Causal,
    Language,
    Loss,
    Pair,
    beside,
    cast_automatically,
    checked,
    classes_second,
    of_batches,
    of_labels,
    of_pair,
    outside,
    scaled,
    tokens,
    training,
)

WHOLE = Recipe(("chunked_loss",), with_loss=True)
KEPT = SetVerdict(verdict="kept", reason="it pays", plans=(), actions=("chunked_loss",))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


TAKEN: list[tuple[Callable[[], Loss], type[nn.Module]]] = [
    (lambda: outside, Language),
    (lambda: beside, Causal),
    (lambda: of_pair, Pair),
    (lambda: functools.partial(of_labels, labels=LABELS), Language),
    (lambda: classes_second, Language),
    (lambda: cast_automatically, Language),
    (lambda: scaled, Language),
    (lambda: checked, Language),
    (of_batches, Language),
]


def seen(loss: Loss, make: Callable[[], nn.Module] = Language) -> list[Rewritten]:
    """What becomes of it; the model alone has no site."""
    return seen_with_loss(training(loss, make), rewrite_losses, ())


def op_by_op(log: SwapLog) -> Any:
    return with_rewrites(aot_eager, [rewrite_losses], log)


@pytest.mark.parametrize(("make_loss", "make"), TAKEN)
def test_a_loss_beside_its_model_is_one_site_with_it_and_gives_the_same_gradients(
    make_loss: Callable[[], Loss], make: type[nn.Module]
) -> None:
    (record,) = seen(make_loss(), make)
    assert (record.refused, record.with_loss) == (None, True)
    cast = make_loss() is cast_automatically
    log, dtype = SwapLog(), torch.float32 if cast else torch.float64
    ours, theirs = (training(make_loss(), make, dtype) for _ in range(2))
    found = ours.results_of(lambda _: compiled_part(ours, WHOLE, op_by_op(log)))
    assert [item.refused for item in log.rewritten] == [None]
    # Autocast rounds to bfloat16 on the way.
    rtol, atol = (1e-9, 1e-12) if dtype == torch.float64 else (2e-2, 2e-3)
    for one, two in zip(theirs.results_of(), found, strict=True):
        torch.testing.assert_close(two, one, rtol=rtol, atol=atol)


def keeps_logits(model: Any) -> torch.Tensor:
    HELD["logits"] = logits = model(TOKENS)
    return functional.cross_entropy(logits.view(-1, CLASSES), LABELS.view(-1))


def looks_between(model: Any) -> torch.Tensor:
    logits = model(TOKENS)
    if float(logits.detach().abs().max()) > 1e3:
        logits = logits.clamp(-1e3, 1e3)
    return functional.cross_entropy(logits.view(-1, CLASSES), LABELS.view(-1))


def hooks_the_logits(model: Any) -> torch.Tensor:
    logits = model(TOKENS)
    logits.register_hook(lambda gradient: gradient.clamp(-1.0, 1.0))
    return functional.cross_entropy(logits.view(-1, CLASSES), LABELS.view(-1))


def of_a_list() -> Loss:
    given = [tokens(seed) for seed in range(9)]
    at = 0

    def loss(model: Any) -> torch.Tensor:
        nonlocal at
        at += 1
        batch = given[at % len(given)]
        return functional.cross_entropy(model(batch).view(-1, CLASSES), batch.view(-1))

    return loss


def fails(_: Any) -> torch.Tensor:
    raise ValueError("of the user")


def counts(model: Any) -> torch.Tensor:
    logits = model(TOKENS)
    HELD["right"] = (logits.argmax(-1) == LABELS).sum()
    return functional.cross_entropy(logits.view(-1, CLASSES), LABELS.view(-1))


def logs(model: Any) -> torch.Tensor:
    loss = outside(model)
    LOGGED.append(float(loss.detach()))
    return loss


HELD: dict[str, torch.Tensor] = {}
LOGGED: list[float] = []


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (keeps_logits, "the logits made at tests/builders/language.py:"),
        (looks_between, "the compiler parts model and loss: "),
        (counts, "the logits are also read by Tensor.argmax at tests/pipeline/test_with_loss.py:"),
        (hooks_the_logits, "register_hook between the projection and the loss"),
        (of_a_list(), "is compiled anew at every call ("),
        (logs, "is compiled anew at every call (len("),
        (fails, "compiled with its loss the step fails: ValueError: of the user"),
    ],
)
def test_a_loss_whose_logits_somebody_reads_stays_with_the_reason(loss: Loss, why: str) -> None:
    (record,) = seen(loss)
    assert record.refused is not None
    assert why in record.refused
    assert not record.with_loss


def test_the_line_that_parts_them_is_named() -> None:
    (record,) = seen(looks_between)
    assert record.refused is not None
    line = looks_between.__code__.co_firstlineno + 2
    assert f"at tests/pipeline/test_with_loss.py:{line}" in record.refused


@pytest.mark.parametrize("backward", [False, True])
def test_a_hook_of_a_module_that_sees_the_logits_keeps_them_whole(backward: bool) -> None:
    work = training(outside)
    assert isinstance(work.part, Language)
    kept: list[Any] = []
    if backward:
        work.part.head.register_full_backward_hook(lambda *given: kept.append(given))
    else:
        work.part.head.register_forward_hook(lambda *given: kept.append(given[-1]))
    (record,) = seen_with_loss(work, rewrite_losses, ())
    assert record.refused is not None


def test_what_is_wrapped_for_several_ranks_is_refused(tmp_path: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        work = training(outside, lambda: nn.parallel.DistributedDataParallel(Language()))
        own = Rewritten(what="a loss", location=record_place(), refused="it stays")
        (record,) = seen_with_loss(work, rewrite_losses, [own])
        assert record.refused is not None
        assert record.refused.startswith("it stays; it is not compiled with the loss")
        assert "DistributedDataParallel" in record.refused
        assert isinstance(work.part, nn.Module)
        assert work.optimizer is not None
        before = copy.deepcopy(work.optimizer.defaults)
        with pytest.raises(IllegalFusionError, match="DistributedDataParallel works between"):
            AppliedRun(WHOLE.with_action("fused_optimizer")).apply(
                work.part, work.optimizer, outside
            )
        assert work.optimizer.defaults == before
    finally:
        dist.destroy_process_group()


def record_place() -> Any:
    (record,) = seen(outside)
    return record.location


@pytest.mark.parametrize("asked", [False, True])
def test_an_application_looks_where_it_is_asked_to(asked: bool) -> None:
    kind: ActionKind = "chunked_loss" if asked else "attention"
    given: Any = SimpleNamespace(
        trials=[Trial(kind, action=kind)],
        found={},
        peers=Alone(),
        budget=unlimited(),
        report=SimpleNamespace(workload=SimpleNamespace(mode="eager")),
        emit=lambda *_, **__: None,
    )
    _, found = _captured(given, training(beside, Causal), CPU)
    (record,) = found["chunked_loss"]
    assert record.with_loss == asked
    if not asked:
        assert record.refused is not None
        return
    (verdict,) = seen_actions(given.trials, found, "not timed")
    assert (verdict.verdict, verdict.applies, verdict.with_loss) == ("not_measured", True, True)
    assert "model and loss are compiled as one function" in verdict.details[0]


def test_what_was_judged_and_kept_is_taken_up_with_its_loss(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    attempt = Attempt(signature=None, only=(), device="", versions={})
    trial = Trial(
        "asked", action="chunked_loss", with_loss=True, judgement=Judgement(True, "it pays")
    )
    written = Written(run, attempt, unwatched, lambda: "")
    written.judged(trial)
    again = Trial("asked", action="chunked_loss")
    found = run.attempt()
    assert found is not None
    restore([again], found)
    assert again.with_loss
    (verdict,) = action_verdicts([again], KEPT)
    applied = Applied(
        created="now", device="", versions={}, plans=(), actions=(verdict,), set=KEPT
    )  # fmt: skip
    assert [item.with_loss for item in kept_before(applied)] == [True]
    run.write_applied(applied)
    assert kept_recipe(run) == WHOLE


def test_copies_of_a_step_read_the_same_batches_however_they_are_compiled() -> None:
    def moving() -> Loss:
        batches = iter([tokens(seed) for seed in range(9)])

        def loss(model: Any) -> torch.Tensor:
            batch = next(batches)
            return functional.cross_entropy(model(batch).view(-1, CLASSES), batch.view(-1))

        return loss

    instances = Instances(training(outside), lambda: training(moving()))
    own = instances.fresh().results_of()
    for recipe in (UNCHANGED, WHOLE):
        torch.compiler.reset()
        twin = instances.fresh(recipe)
        part: Part = compiled_part(twin, recipe, op_by_op(SwapLog()))
        torch.testing.assert_close(twin.results_of(lambda _, part=part: part), own)  # type: ignore[misc]


def test_a_loss_without_classes_is_not_traced() -> None:
    def fails_if_traced(gm: fx.GraphModule) -> Any:
        raise AssertionError

    work = training(lambda model: model(TOKENS).square().mean())
    own = [Rewritten(what="a loss", location=record_place(), refused="it stays")]
    assert seen_with_loss(work, fails_if_traced, own) == own


def test_what_is_compiled_already_or_has_no_loss_is_not_looked_at() -> None:
    assert is_apart(training(outside))
    through = training(lambda model: model.head(model.tokens(TOKENS)).sum())
    assert not is_apart(through)
    assert not is_apart(Workload("answers", "inference", CPU, Language(), inputs=(TOKENS,)))


def test_other_variants_compile_the_model_alone() -> None:
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, _: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    for recipe in (UNCHANGED, Recipe(("fused_optimizer",)), WHOLE):
        torch.compiler.reset()
        work = training(outside)
        part: Part = compiled_part(work, recipe, keep)
        assert isinstance(part, WithLoss) == (recipe is WHOLE)
        work.results_of(lambda _, part=part: part)  # type: ignore[misc]
    targets = [[node.target for node in gm.graph.nodes] for gm in graphs]
    assert [functional.cross_entropy in found for found in targets] == [False, False, True]
    assert WHOLE.name() != Recipe(("chunked_loss",)).name()


def test_it_trains_as_near_to_an_exacter_run_as_eager_does() -> None:
    log = SwapLog()

    def ours() -> tuple[Workload, Part]:
        twin = training(beside, Causal)
        return twin, compiled_part(twin, WHOLE, op_by_op(log))

    curves = loss_curves(lambda: training(beside, Causal), ours)
    assert isinstance(curves, LossCurves)
    assert [item.refused for item in log.rewritten] == [None]
    assert len(curves.ours) == 20
    assert curves.ours[-1] < curves.ours[0]
    assert curves.exact_type == "float64"
    assert curves.agree(torch.finfo(torch.float32).eps), curves


def allocated(work: Workload, part: Part) -> tuple[int, int]:
    """(the most that one step holds beside what was there before, its largest tensor), bytes."""
    step = work.step_of(lambda _: part)
    step()
    with torch.profiler.profile(profile_memory=True) as profiled:
        step()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    sizes: list[int] = [event.nbytes() for event in events]
    return max(itertools.accumulate(sizes)), max(sizes)


@pytest.mark.parametrize(("loss", "make"), [(outside, Language), (beside, Causal)])
def test_logits_never_exist_whole(loss: Loss, make: type[nn.Module]) -> None:
    found = []
    for recipe, backend in ((UNCHANGED, aot_eager), (WHOLE, op_by_op(SwapLog()))):
        work = training(loss, make)
        found.append(allocated(work, compiled_part(work, recipe, backend)))
    (whole, largest), (ours, piece) = found
    assert largest == LOGITS_BYTES
    assert piece == LOGITS_BYTES // 4
    # Logits, their logarithms and a gradient; the pieces have as much for a moment.
    assert whole - ours > LOGITS_BYTES


def stepping(recipe: Recipe, loss: Loss, make: type[nn.Module]) -> OptimizedStep:
    work = training(loss, make)
    assert isinstance(work.part, nn.Module)
    assert work.optimizer is not None
    return AppliedRun(recipe).apply(work.part, work.optimizer, loss)


@pytest.mark.parametrize(
    ("make_loss", "make", "compiles"),
    [(lambda: beside, Causal, False), (of_batches, Language, True)],
)
def test_what_was_kept_is_what_the_api_installs(
    monkeypatch: pytest.MonkeyPatch,
    make_loss: Callable[[], Loss],
    make: type[nn.Module],
    compiles: bool,
) -> None:
    if not compiles:  # op by op, which takes a quarter of the time
        monkeypatch.setattr("advisor.pipeline.api.recipe_backend", lambda _, log: op_by_op(log))
    step = stepping(WHOLE, make_loss(), make)
    eager = training(make_loss(), make).step_of()
    for _ in range(3):
        torch.testing.assert_close(step(), eager().detach())
    assert [item.refused for item in step.log.rewritten] == [None]
    assert step.revert() is step.model
    torch.testing.assert_close(step(), eager().detach())


def test_a_model_without_its_loss_leaves_it_out_and_says_so() -> None:
    model = training(outside).part
    assert isinstance(model, nn.Module)
    with pytest.warns(UserWarning, match="loss in pieces that this run kept is left out") as told:
        AppliedRun(WHOLE).apply(model)
    assert str(told[0].message) == NO_LOSS


@pytest.mark.parametrize("moves", [False, True])
def test_data_that_moves_is_seen_though_no_call_of_the_model_is(
    moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The labels alone move: the model is given the same tensors at every step."""
    given = [LABELS, LABELS.flip(0)]
    calls = iter(range(9))

    def loss(model: Any) -> torch.Tensor:
        labels = HELD["labels"]
        return functional.cross_entropy(model(TOKENS).view(-1, CLASSES), labels.view(-1))

    step = stepping(Recipe((*WHOLE.actions, "step_graph"), with_loss=True), loss, Language)
    monkeypatch.setattr("advisor.pipeline.api.recipe_backend", lambda *_: aot_eager)
    monkeypatch.setattr("advisor.pipeline.api.beside", lambda run: run())
    monkeypatch.setattr("advisor.pipeline.api.prepare_optimizer", lambda _: None)
    # As on a GPU, where steps are looked at before the capture.
    monkeypatch.setattr("advisor.pipeline.api.on_host", lambda *_: None)
    step._part = step._compiled()
    for _ in range(3):
        HELD["labels"] = given[next(calls) % 2] if moves else LABELS
        step()
    assert step._moving() == (MOVING_BATCH if moves else None)
