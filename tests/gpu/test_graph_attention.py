"""Fused attention on the GPU: as exact as eager, and on the kernels that the records promise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._inductor.compile_fx import compile_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from advisor.apply.graph.attention import rewrite_attention
from advisor.apply.graph.records import Rewritten
from tests.apply.test_graph_attention import CAPPED, dynamo_graph, results
from tests.apply.test_graph_attention_ways import Attention
from tests.builders.attention import FUSED, Case

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
NAMED = {case.name: case for case in FUSED}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def on_gpu(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    return [x.cuda().requires_grad_(x.is_floating_point()) for x in case.inputs(dtype)]


def rewritten(
    case: Case, dtype: torch.dtype, **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule, list[Any], tuple[Rewritten, ...]]:
    original, given = dynamo_graph(case.function, on_gpu(case, dtype))
    changed = copy.deepcopy(original)
    return original, changed, given, rewrite_attention(changed, **options)


def stepped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: (function(*inputs),)


def check_errors(
    exact: list[torch.Tensor], before: list[torch.Tensor], after: list[torch.Tensor]
) -> None:
    for reference, one, two in zip(exact, before, after, strict=True):
        own = (one.double() - reference).abs().max()
        ours = (two.double() - reference).abs().max()
        assert ours <= 2 * own + reference.abs().max() * torch.finfo(one.dtype).eps


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", FUSED, ids=lambda case: case.name)
def test_error_is_at_most_twice_that_of_eager(case: Case, dtype: torch.dtype) -> None:
    original, changed, given, (record,) = rewritten(case, dtype)
    assert record.refused is None
    before, after = (results(gm, given, case.unused) for gm in (original, changed))
    exact, exact_given = dynamo_graph(case.function, on_gpu(case, torch.float64))
    check_errors(results(exact, exact_given, case.unused), before, after)


@pytest.mark.parametrize("name", ["plain", "llama_eager", "bert", "cross_attention"])
def test_promised_kernels_take_the_call(name: str) -> None:
    _, changed, given, (record,) = rewritten(NAMED[name], torch.bfloat16)
    assert record.backends
    assert record.backends[-1] == "math"
    for backend in record.backends[:-1]:
        with sdpa_kernel(KERNELS[backend]), torch.no_grad():
            changed(*given)


def test_causal_grouped_attention_may_use_flash() -> None:
    _, _, _, (record,) = rewritten(NAMED["llama_eager"], torch.bfloat16)
    assert "flash" in record.backends


@pytest.mark.parametrize("case", CAPPED, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_capped_scores_train_through_flex_attention(case: Case, dtype: torch.dtype) -> None:
    records: list[Rewritten] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        records.extend(rewrite_attention(gm))
        return compile_fx(gm, given)

    compiled = torch.compile(case.function, backend=backend, fullgraph=True)
    after = results(stepped(compiled), on_gpu(case, dtype))
    before = results(stepped(case.function), on_gpu(case, dtype))
    exact = results(stepped(case.function), on_gpu(case, torch.float64))
    assert [(r.refused, r.route) for r in records] == [(None, "flex_attention")]
    check_errors(exact, before, after)


@pytest.mark.parametrize("name", ["llama_eager", "mistral_window", "t5_relative_bias"])
@pytest.mark.parametrize("prefer_flex", [False, True], ids=["library", "flex"])
def test_in_a_backend_before_inductor(name: str, prefer_flex: bool) -> None:
    case = NAMED[name]
    records: list[Rewritten] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        records.extend(rewrite_attention(gm, prefer_flex=prefer_flex))
        return compile_fx(gm, given)

    inputs = on_gpu(case, torch.bfloat16)
    with torch.no_grad():
        wanted = case.function(*inputs)
        got = torch.compile(case.function, backend=backend, fullgraph=True)(*inputs)
    assert [record.refused for record in records] == [None]
    torch.testing.assert_close(got, wanted, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize(
    "options", [{"alibi": True}, {"blocks": 128}, {"blocks": 128, "groups": 2}], ids=str
)
def test_hidden_blocks_are_skipped_without_a_trace_in_results_or_gradients(
    options: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    module = Attention(**options).bfloat16()
    x = torch.randn(2, 512, 32, dtype=torch.bfloat16)
    records: list[Rewritten] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        records.extend(rewrite_attention(gm, prefer_flex=True))
        return compile_fx(gm, given)

    def of(function: Callable[..., Any], owner: Attention, x: torch.Tensor) -> list[torch.Tensor]:
        leaf = x.detach().clone().requires_grad_()
        owner.zero_grad(set_to_none=True)
        out = function(leaf)
        out.float().square().mean().backward()
        gradients = [p.grad for p in owner.parameters() if p.grad is not None]
        return [out.detach(), *([] if leaf.grad is None else [leaf.grad]), *gradients]

    after = of(torch.compile(module, backend=backend, fullgraph=True), module, x)
    before = of(module, module, x)
    exact = copy.deepcopy(module).double()
    assert [(r.refused, r.route) for r in records] == [(None, "flex_attention")]
    check_errors(of(exact, exact, x.double()), before, after)
