"""Actions on the GPU: the same results, measured, and undone by nothing but not doing them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("triton", reason="kernels need triton")

import advisor
from advisor.apply.chunked_loss import chunked_cross_entropy
from advisor.apply.loss_rows import Cut
from advisor.apply.model.step_graph import WARMUP, ModuleGraph, StepGraph
from advisor.apply.recipe import UNCHANGED, Recipe
from advisor.errors import IllegalFusionError, WorkloadError
from advisor.model.actions import ActionKind
from advisor.model.loss_chunks import LossSizes, rows_of_chunk
from advisor.pipeline.api import AppliedRun
from advisor.pipeline.measure import Bench
from advisor.pipeline.peers import Alone
from advisor.pipeline.search import Search
from advisor.pipeline.sets import disagreement
from advisor.pipeline.trials import KINDS, Trial
from collectors.live.workload import Workload

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch.cuda.synchronize()


class Network(nn.Module):
    """Convolutions in their default layout, with batch norms to fold."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                layer
                for _ in range(4)
                for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU())
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x).mean((2, 3))
        return result


def inference() -> Workload:
    torch.manual_seed(0)
    module = Network().to(CUDA, torch.float16).eval()
    x = torch.randn(32, 64, 56, 56, device=CUDA, dtype=torch.float16)
    return Workload("network", "inference", CUDA, module, inputs=(x,))


def training() -> Workload:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 10))
    module.to(CUDA)
    x = torch.randn(64, 256, device=CUDA)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, foreach=False)
    return Workload(
        "train", "training", CUDA, module, optimizer=optimizer,
        loss=lambda part: functional.mse_loss(part(x), torch.ones(64, 10, device=CUDA)),
    )  # fmt: skip


class LanguageModel(nn.Module):
    """A projection onto a vocabulary and its loss, computed in the forward pass."""

    def __init__(self, classes: int, features: int) -> None:
        super().__init__()
        self.body = nn.Linear(features, features)
        self.head = nn.Linear(features, classes, bias=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.tanh(self.body(x))).float()
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


ROWS, CLASSES, FEATURES = 16_384, 32_000, 1_024


def language(dtype: torch.dtype = torch.bfloat16) -> Workload:
    torch.manual_seed(0)
    module = LanguageModel(CLASSES, FEATURES).to(CUDA, dtype)
    x = torch.randn(4, ROWS // 4, FEATURES, device=CUDA, dtype=dtype)
    labels = torch.randint(0, CLASSES, (4, ROWS // 4), device=CUDA)
    labels[:, ::7] = -100
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    return Workload(
        "language", "training", CUDA, module, optimizer=optimizer,
        loss=lambda part: part(x, labels),
    )  # fmt: skip


class Biased(nn.Module):
    """Causal attention with ALiBi, written out: a bias that SDPA needs a mask tensor for."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i = torch.arange(q.shape[2], device=q.device)
        slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1, device=q.device).view(-1, 1, 1)
        scores = q @ k.mT * q.shape[-1] ** -0.5 + (slopes * (i[None, :] - i[:, None])).to(q.dtype)
        scores = scores.masked_fill(i[None, :] > i[:, None], -torch.inf)
        return scores.softmax(-1) @ v


def biased() -> Workload:
    torch.manual_seed(0)
    shape = 2, 8, 2048, 64
    inputs = tuple(torch.randn(shape, device=CUDA, dtype=torch.bfloat16) for _ in range(3))
    return Workload("biased", "inference", CUDA, Biased(), inputs=inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_loss_in_pieces_keeps_its_gradients_and_needs_less_memory(dtype: torch.dtype) -> None:
    make = partial(language, dtype)
    bench = Bench(make(), make)
    variant = bench.build(UNCHANGED.with_action("chunked_loss"))
    assert [item.refused for item in variant.log.rewritten] == [None]
    # By an exacter run where sums over all rows are further from eager's than the compiler's are.
    assert disagreement(Alone(), bench, variant)[0] == ""
    before, after = bench.peak_memory(bench.compiled), bench.peak_memory(variant)
    assert before is not None
    assert after is not None
    # What the design says: of logits a piece, and the sum of the gradient in float32. The compiler
    # holds one activation more for the gradient of what is before: it recomputes the tanh.
    sizes = LossSizes(ROWS, CLASSES, FEATURES, dtype.itemsize)
    piece = rows_of_chunk(ROWS, CLASSES, dtype.itemsize)
    saved = sizes.saved_bytes(piece, compiled=True) - ROWS * FEATURES * dtype.itemsize
    assert before - after > 0.99 * saved


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_the_loss_in_pieces_is_as_exact_as_eager(dtype: torch.dtype, capped: bool) -> None:
    generator = torch.Generator(CUDA).manual_seed(0)
    h, w = (
        torch.randn(shape, device=CUDA, generator=generator).mul(0.3).to(dtype)
        for shape in ((3000, 128), (5003, 128))
    )
    y = torch.randint(0, 5003, (3000,), device=CUDA, generator=generator)
    y[::5] = -100
    cut = Cut(1 / 5, True, 5.0) if capped else Cut()

    def eager(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        z = h @ w.t()
        z = z if z.dtype == torch.float64 else z.float()
        z = 5.0 * torch.tanh(z / 5.0) if capped else z
        return functional.cross_entropy(z, y, label_smoothing=0.1)

    def pieces(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return chunked_cross_entropy(
            h, w, None, y, compute=dtype, result=torch.float32, label_smoothing=0.1, cut=cut,
            chunk=1024,
        )  # fmt: skip

    def of(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (h, w)]
        loss = function(*leaves)
        loss.backward()
        return [loss.detach(), *(x.grad for x in leaves if x.grad is not None)]

    exact = of(eager, torch.float64)
    for reference, own, ours in zip(exact, of(eager, dtype), of(pieces, dtype), strict=True):
        allowed = 2 * (own.double() - reference).norm()
        allowed += torch.finfo(own.dtype).eps * reference.norm()
        assert (ours.double() - reference).norm() <= allowed


def test_the_faster_way_to_biased_attention_is_kept(tmp_path: Path) -> None:
    kinds: tuple[ActionKind, ...] = ("attention", "flex_attention")
    trials = [Trial("attention-written-out", action=kind) for kind in kinds]
    bench = Bench(biased(), biased)
    _, result = Search(bench, {}, trials, tmp_path, lambda *_, **__: None).run()
    assert result.verdict == "kept"
    assert result.outputs_agree
    tried = {trial.action: trial for trial in trials}
    assert all(trial.step is not None for trial in tried.values()), "both were measured"
    assert tried["flex_attention"].pays == (result.actions == ("flex_attention",))


@pytest.mark.parametrize("kind", ["fold_batch_norm", "channels_last", "cuda_graph", "step_graph"])
def test_an_inference_action_keeps_the_results(kind: ActionKind) -> None:
    work = inference()
    bench = Bench(work, inference)
    variant = bench.build(UNCHANGED.with_action(kind))
    results = bench.results(variant)
    found = bench.agreement(results, results.comparable)
    assert found is not None
    assert found.agrees
    assert (variant.pool_bytes is not None) == (kind == "step_graph")


@pytest.mark.parametrize("kinds", [("fused_optimizer",), ("step_graph",), ("cuda_graph",),
                                   ("fused_optimizer", "step_graph")])  # fmt: skip
def test_a_training_action_keeps_loss_and_gradients(kinds: tuple[ActionKind, ...]) -> None:
    bench = Bench(training(), training)
    variant = bench.build(Recipe(kinds))
    for _ in range(3):
        variant.step()
    results = bench.results(variant)
    found = bench.agreement(results, results.comparable)
    assert found is not None
    assert found.agrees


def test_a_graph_answers_with_its_own_gradients_after_another_of_the_same_copy() -> None:
    """As the best step so far does once a set beside it, captured later, did not pay."""
    bench = Bench(training(), training)
    variant = bench.build(Recipe(("step_graph",)))
    bench.build(Recipe(("step_graph", "autotune")))
    for _ in range(20):
        bench.eager.step()
    results = bench.results(variant)
    found = bench.agreement(results, results.comparable)
    assert found is not None
    assert found.agrees


def test_a_captured_training_step_trains_like_the_step_it_was_captured_from() -> None:
    def losses(graphed: bool) -> list[float]:
        module = nn.Linear(8, 1).to(CUDA)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(0.5)
        x = torch.ones(4, 8, device=CUDA)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

        def step() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss: torch.Tensor = module(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        if not graphed:
            return [float(step()) for _ in range(12)]
        # Warm-up steps train too: as many of eager's come before.
        graph = StepGraph(step)
        return [float(graph()) for _ in range(5)]

    plain, ours = losses(False), losses(True)
    start = min(range(len(plain) - 4), key=lambda i: abs(plain[i] - ours[0]))
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(plain[start : start + 5]))


def test_a_graph_has_workspaces_of_its_own() -> None:
    """Not those of an earlier graph, whose memory goes when cuBLAS's workspaces are cleared."""
    a = torch.randn(64, 1 << 16, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(1 << 16, 64, device="cuda", dtype=torch.bfloat16)
    expected = a @ b  # few results of long sums: several programs sum a part each
    earlier = StepGraph(lambda: a @ b)
    graph = StepGraph(lambda: a @ b)
    del earlier
    # As a compiled function in CUDA graphs does before it records.
    torch._C._cuda_clearCublasWorkspaces()
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.zeros(1 << 20, device="cuda", dtype=torch.uint8) for _ in range(256)]
    for _ in range(5):
        assert torch.equal(graph(), expected)
    assert not any(int(other.count_nonzero()) for other in others)


def test_a_step_that_waits_for_the_host_cannot_be_captured() -> None:
    x = torch.ones(3, device=CUDA)
    with pytest.raises(WorkloadError, match="cannot be one CUDA graph"):
        StepGraph(lambda: float(x.sum()) * x)
    torch.testing.assert_close((x + 1).sum(), torch.tensor(6.0, device=CUDA))


def test_a_graphed_module_follows_its_inputs_and_leaves_other_shapes_to_the_module() -> None:
    module = nn.Linear(16, 16).to(CUDA).eval()
    with torch.no_grad():
        graph = ModuleGraph(module, (torch.randn(4, 16, device=CUDA),), {})
        for rows in (4, 4, 5):
            x = torch.randn(rows, 16, device=CUDA)
            torch.testing.assert_close(graph(x).clone(), module(x))


def test_a_graphed_module_replays_only_what_it_was_captured_for() -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).to(CUDA).eval()
    x = torch.randn(64, 16, device=CUDA)
    graph = ModuleGraph(module, (x,), {})
    assert graph(x).requires_grad
    with torch.no_grad():
        torch.testing.assert_close(graph(x), module(x))
        module.train()
        assert int((graph(x) == 0).sum()) > 100


def test_a_slice_of_a_larger_tensor_is_copied_and_replayed() -> None:
    calls: list[int] = []

    def part(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2

    whole = torch.randn(4, 64, device=CUDA)
    with torch.no_grad():
        graph = ModuleGraph(part, (whole[:, :16],), {})
        captured = len(calls)
        torch.testing.assert_close(graph(whole[:, 16:32]).clone(), whole[:, 16:32] * 2)
    assert len(calls) == captured


def stepping(next_x: Callable[[], torch.Tensor], *, graphed: bool) -> Callable[[], torch.Tensor]:
    """A training step of one's own, whole and replayed or as it is."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)).to(CUDA)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    recipe = UNCHANGED.with_action("step_graph") if graphed else UNCHANGED
    loss = lambda part: (part(next_x()) - 1.0).square().mean()  # noqa: E731
    return AppliedRun(recipe).apply(module, optimizer, loss)


def test_every_call_of_an_optimized_step_is_one_step() -> None:
    x = torch.randn(64, 8, device=CUDA)
    ours, theirs = (stepping(lambda: x, graphed=graphed) for graphed in (True, False))
    for _ in range(10):
        torch.testing.assert_close(ours(), theirs(), rtol=1e-4, atol=1e-6)


def test_a_step_whose_data_moves_is_not_captured() -> None:
    def batches() -> Callable[[], torch.Tensor]:
        generator = torch.Generator(CUDA).manual_seed(1)
        return lambda: torch.randn(64, 8, device=CUDA, generator=generator)

    ours, theirs = stepping(batches(), graphed=True), stepping(batches(), graphed=False)
    for number in range(10):
        with pytest.warns(match="other tensors") if number == WARMUP else nullcontext():
            loss = ours()
        torch.testing.assert_close(loss, theirs(), rtol=1e-4, atol=1e-6)


def test_peak_memory_does_not_grow_with_copies_that_others_run_on() -> None:
    bench = Bench(training(), training)
    alone = bench.peak_memory(bench.compiled)
    assert alone is not None
    for kind in ("multi_tensor", "fused_optimizer"):
        bench.build(UNCHANGED.with_action(kind))
    beside = bench.peak_memory(bench.compiled)
    assert beside is not None
    # Each copy holds four times its parameters; what a loss holds, its batch, is not seen.
    batches = 2 * 64 * (256 * 4 + 8) + (64 << 10)
    assert abs(beside - alone) <= batches


def test_what_does_not_apply_is_refused() -> None:
    bench = Bench(training(), training)
    with pytest.raises(IllegalFusionError, match="no 2-D convolution"):
        bench.build(UNCHANGED.with_action("channels_last"))


@pytest.mark.parametrize("make", [inference, training])
def test_a_search_over_all_actions_ends_not_slower_than_the_compiler(
    make: partial[Workload], tmp_path: Path
) -> None:
    trials = [Trial(kind, action=kind) for kind in KINDS if kind != "autotune"]
    bench = Bench(make(), make)
    _, result = Search(bench, {}, trials, tmp_path, lambda *_, **__: None).run()
    assert result.verdict == "kept"
    assert result.against_compiled is not None
    assert result.against_compiled.gain_high_ns > 0
    assert result.outputs_agree


def test_optimize_gives_a_step_that_trains_and_a_model_that_answers(tmp_path: Path) -> None:
    work = training()
    assert isinstance(work.part, nn.Module)
    assert work.optimizer is not None
    assert work.loss is not None
    step = advisor.optimize(work.part, work.optimizer, work.loss, run=tmp_path / "train")
    losses = [float(step()) for _ in range(20)]
    assert losses[-1] < losses[0]
    other = inference()
    assert isinstance(other.part, nn.Module)
    expected = other.part(*other.inputs)
    model = advisor.optimize(other.part, other.inputs, run=tmp_path / "infer")
    with torch.no_grad():
        torch.testing.assert_close(model(*other.inputs), expected, rtol=2e-2, atol=2e-2)
