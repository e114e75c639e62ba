"""What a run kept, put into a model from Python; on the CPU, with actions that need no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import advisor
from advisor.apply.model.step_graph import _alike, on_host
from advisor.errors import IllegalFusionError, UsageError
from advisor.model.actions import ActionKind, facts_of
from advisor.model.applied import ActionVerdict, Applied, SetVerdict, Verdict
from advisor.pipeline import api, optimizing
from advisor.pipeline.api import Given
from advisor.pipeline.nothing_kept import nothing_kept
from advisor.pipeline.ranks import Rank
from advisor.store import RunDirectory
from collectors.live.workload import load_workload
from tests.model import builders


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., Path]:
    """A run in which some actions were kept."""

    def make(*kinds: ActionKind, verdict: str = "kept") -> Path:
        actions = tuple(
            ActionVerdict(kind=k, title=facts_of(k).title, verdict="kept", reason="measured")
            for k in kinds
        )
        result = SetVerdict(
            verdict="kept" if verdict == "kept" else "reverted",
            reason="measured",
            plans=(),
            actions=kinds,
        )
        run = RunDirectory(tmp_path / "run")
        run.path.mkdir()
        (run.path / "report.json").write_text("{}")
        run.write_applied(
            Applied(
                created="now", device="a GPU", versions={}, plans=(), actions=actions, set=result
            )
        )
        return run.path

    return make


def network() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    with torch.no_grad():
        module(torch.randn(4, 3, 8, 8))
    return module


def test_a_module_runs_after_the_recipe_and_gives_what_it_gave(kept: Callable[..., Path]) -> None:
    module, x = network().eval(), torch.randn(2, 3, 16, 16)
    expected = module(x)
    with torch.no_grad():
        ours = advisor.load(kept("fold_batch_norm", "channels_last")).apply(module)
        torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-5)
        assert not any(isinstance(item, nn.BatchNorm2d) for item in module.modules())
        assert ours.revert() is module
        torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-5)


def test_a_training_step_trains_as_eager_does(kept: Callable[..., Path]) -> None:
    x = torch.randn(4, 3, 8, 8)

    def loss(part: Callable[..., torch.Tensor]) -> torch.Tensor:
        return part(x).square().mean()

    ours, theirs = network().train(), network().train()
    mine = torch.optim.SGD(ours.parameters(), lr=0.01, momentum=0.9)
    plain = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9)
    step = advisor.load(kept("channels_last", "fused_optimizer")).apply(ours, mine, loss)
    for _ in range(3):
        got = step()
        plain.zero_grad()
        wanted = loss(theirs)
        wanted.backward()
        plain.step()
        torch.testing.assert_close(got, wanted.detach(), rtol=1e-4, atol=1e-5)
    assert mine.param_groups[0]["fused"]
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_another_model_than_the_runs_is_refused(kept: Callable[..., Path]) -> None:
    model = advisor.load(kept("fold_batch_norm")).apply(nn.Linear(3, 3).eval())
    with pytest.raises(IllegalFusionError, match="not the one that the run was made of"):
        model(torch.randn(2, 3))


def test_a_run_that_kept_nothing_has_nothing_to_load(kept: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=r"nothing is kept in this run.* show` says what each"):
        advisor.load(kept("autotune", verdict="reverted"))


@pytest.mark.parametrize(
    ("verdict", "remedy"),
    [("reverted", "`fusion-advisor show` says"), ("not_measured", "that was profiled on a GPU")],
)
def test_what_to_do_where_nothing_was_kept(verdict: Verdict, remedy: str) -> None:
    applied = builders.applied()
    outcome = msgspec.structs.replace(applied.set, verdict=verdict)
    error = nothing_kept(msgspec.structs.replace(applied, set=outcome), "nothing is kept", "run")
    assert remedy in error.line()
    assert "apply` it first" in nothing_kept(None, "nothing is kept", "run").line()


def test_a_call_that_fails_leaves_the_model_to_be_called_again(
    kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("planted")

    ours = advisor.load(kept("fold_batch_norm")).apply(network().eval())
    monkeypatch.setattr(api, "_compiled", fails)
    for _ in range(2):
        # Not that the model is another: its batch norms are folded already.
        with torch.no_grad(), pytest.raises(RuntimeError, match="planted"):
            ours(torch.randn(2, 3, 16, 16))


def test_data_that_moves_is_told_from_data_that_stays() -> None:
    def told(*given: torch.Tensor) -> bool:
        seen = Given()
        part = seen.watching(torch.neg)
        part(torch.zeros(1))
        for x in given:
            with seen.looking():
                part(x)
                part(fixed)
        return seen.differ

    fixed = torch.ones(3)
    assert not told(fixed, fixed)
    assert not told(torch.ones(3), torch.ones(3))
    assert not told(fixed, fixed.mul_(2.0))
    assert told(torch.ones(3), torch.zeros(3))
    assert told(torch.ones(3), torch.ones(2))
    assert told(torch.eye(3).to_sparse(), torch.eye(3).to_sparse())


def test_half_a_training_step_is_refused(kept: Callable[..., Path]) -> None:
    run = advisor.load(kept("fused_optimizer"))
    module = nn.Linear(3, 3)
    with pytest.raises(UsageError, match="both or neither"):
        run.apply(module, torch.optim.SGD(module.parameters()))  # type: ignore[call-overload]


def test_optimize_needs_a_gpu_and_says_what_does_not(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="optimize needs a GPU"):
        advisor.optimize(nn.Linear(3, 3), torch.randn(2, 3), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_optimize_takes_no_step_without_its_model() -> None:
    model = nn.Linear(3, 3)
    for given in ((lambda: model(torch.ones(2, 3)),), (model,)):
        with pytest.raises(UsageError, match="a model with its inputs, or with its optimizer"):
            advisor.optimize(*given)  # type: ignore[call-overload]


def test_the_run_of_optimize_is_among_the_others_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = optimizing._directory(nn.Linear(3, 3), None, None).path
    assert made.parent == tmp_path / "runs"
    assert "-Linear-" in made.name
    with pytest.raises(UsageError, match="several ranks need one directory"):
        optimizing._directory(nn.Linear(3, 3), None, Rank(1, 2, 1))


def test_an_object_in_memory_is_a_target_of_copies() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with optimizing._target((model, optimizer, lambda m: m(torch.ones(2, 3)).mean())) as target:
        work = load_workload(target, torch.device("cpu"))
    assert isinstance(work.part, nn.Linear)
    assert work.part is not model
    assert work.optimizer is not None
    assert work.optimizer.param_groups[0]["params"][0] is work.part.weight
    before = model.weight.detach().clone()
    work.step_of()()
    torch.testing.assert_close(model.weight, before)
    with pytest.raises(UsageError):
        load_workload(target, torch.device("cpu"))


def test_on_the_cpu_a_model_keeps_its_own_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept on a GPU is loaded where a test or a laptop has none: it ended in Inductor."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2048))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = x.float()
            variance = wide.pow(2).mean(-1, keepdim=True)
            return self.weight * (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)

    root = Path(__file__).resolve().parents[2]
    norm, x = Norm().bfloat16(), torch.randn(4, 1024, 2048).bfloat16()
    fast = advisor.load(root / "sample_traces" / "runs" / "llama_prefill_eager").apply(norm)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), norm(x))
    assert not fast.log.outcomes


def on(device: str) -> nn.Module:
    """A model of which nothing is computed: where it is decides."""
    return nn.Linear(3, 3, device=device)


@pytest.mark.parametrize(
    ("part", "given", "words"),
    [
        (on("meta"), [torch.ones(3, device="meta")], None),
        (lambda: None, [], None),
        (on("cpu"), [torch.ones(3)], "it runs on the CPU"),
        (nn.Sequential(on("cpu"), on("meta")), [], "a part of the model is on the CPU"),
        (on("meta"), [torch.tensor(0.7)], "a tensor that it is given is on the CPU"),
    ],
)
def test_a_graph_of_a_whole_step_holds_nothing_of_the_cpu(
    part: Any, given: list[torch.Tensor], words: str | None
) -> None:
    found = on_host(part, given)
    assert found is None if words is None else (found or "").startswith(words)


def test_a_number_on_the_cpu_is_part_of_what_was_captured() -> None:
    """A temperature: the kernels of a graph were launched with the value that it had."""
    captured = torch.tensor(0.7)
    assert _alike(captured, torch.tensor(0.7))
    assert not _alike(captured, torch.tensor(0.8))
    assert _alike(torch.ones(3, device="meta"), torch.zeros(3, device="meta")), "is copied"


def test_a_step_that_is_given_numbers_on_the_cpu_is_not_captured(kept: Callable[..., Path]) -> None:
    model = on("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = advisor.load(kept("step_graph")).apply(
        model, optimizer, lambda part: part(torch.ones(3)).sum()
    )
    part = step._given.watching(lambda *_: None)
    with step._given.looking():
        part(torch.ones(3, device="meta"))
    assert step._moving() is None
    with step._given.looking():
        part(torch.ones(3, device="meta"))
        part(torch.tensor(0.7))
    assert "a tensor that it is given is on the CPU" in (step._moving() or "")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("multi_tensor", "left out: its parameters are on the CPU"),
        ("step_graph", "runs on the CPU"),
    ],
)
def test_what_a_gpu_alone_does_is_left_out_on_the_cpu(
    kind: str, words: str, kept: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kernels are: it ended in an error of a driver."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    model, twin, x = nn.Linear(3, 3), nn.Linear(3, 3), torch.randn(4, 3)
    twin.load_state_dict(model.state_dict())

    def loss(part: Callable[..., Any]) -> torch.Tensor:
        result: torch.Tensor = part(x).square().mean()
        return result

    def trained() -> None:
        step = run.apply(model, torch.optim.AdamW(model.parameters(), lr=0.1), loss)
        for _ in range(3):
            step()

    run = advisor.load(kept(kind))
    with pytest.warns(UserWarning, match=words):
        trained()
    own = torch.optim.AdamW(twin.parameters(), lr=0.1)
    for _ in range(3):
        own.zero_grad()
        loss(twin).backward()
        own.step()
    torch.testing.assert_close(model.weight, twin.weight)
    if kind == "step_graph":
        with torch.no_grad(), pytest.warns(UserWarning, match=words):
            torch.testing.assert_close(run.apply(model.eval())(x), model(x))
