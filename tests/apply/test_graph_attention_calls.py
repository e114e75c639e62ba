"""Calls of `scaled_dot_product_attention` that are made to fit fused kernels.

The checks are those of PyTorch on CUDA. Here they are made for the CPU, so that what is rewritten
can be run and compared; `tests/gpu` holds them against PyTorch's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional

from advisor.apply.graph import sdpa
from advisor.apply.graph.attention import rewrite_attention
from advisor.apply.graph.products import tensor
from tests.apply.test_graph_attention import dynamo_graph, results

Tensor = torch.Tensor
attention = functional.scaled_dot_product_attention
HEADS = (2, 4, 32, 16)


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "_GPU", "cpu")


@dataclass(frozen=True)
class Own:
    """A call that the user wrote, and what is said of it: why math, what is changed, or refused."""

    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    why: str = ""
    changes: tuple[str, ...] = ()
    refused: str = ""
    backends: tuple[str, ...] = ()
    dtype: torch.dtype = torch.bfloat16

    @property
    def name(self) -> str:
        return self.function.__name__

    def inputs(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        made = (torch.randn(shape, generator=generator) for shape in self.shapes)
        return [x.to(self.dtype).requires_grad_() for x in made]


def permuted_bias(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """T5: a bias of each head looked up, heads last in memory."""
    i = torch.arange(32, device=q.device)
    bias = table[(i[None, :] - i[:, None]).clamp(-8, 8) + 8].permute(2, 0, 1).unsqueeze(0)
    return attention(q, k, v, attn_mask=bias, scale=1.0)


def same_bias_for_a_batch(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attention(q, k, v, bias.permute(2, 0, 1).expand(2, 4, 32, 32))


def heads_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v, is_causal=True)


def heads_alone_masked(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attention(q, k, v, bias)


def one_batch_of_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v)


def learned_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v)


def grouped_and_masked(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attention(q, k, v, bias, enable_gqa=True)


def keys_by_columns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k.mT, v)


def fitting(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attention(q, k, v, attn_mask=bias)


def odd_heads(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attention(q, k, v, attn_mask=bias)


def double(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v)


def wide_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return attention(q, k, v, attn_mask=bias.float())


QKV = (HEADS,) * 3
FEW = (2, 2, 32, 16)
BLIND = "a query that sees no key gives what the fused kernel gives for it"
MASK_COPIED = "its mask is copied row by row"
EXPANDED = "query, key and value are expanded to one batch and number of heads"
OWN_CALLS = (
    Own(
        permuted_bias,
        (*QKV, (17, 4)),
        "the last axis of its mask has a stride of 4, not 1",
        (MASK_COPIED, BLIND),
        backends=("memory-efficient", "math"),
    ),
    Own(
        same_bias_for_a_batch,
        (*QKV, (32, 32, 4)),
        "the last axis of its mask has a stride of 4, not 1",
        (MASK_COPIED, BLIND),
        backends=("memory-efficient", "math"),
    ),
    Own(
        heads_alone,
        (HEADS[1:],) * 3,
        "its query has 3 axes, not 4",
        ("batch and heads became two axes",),
        backends=("flash", "memory-efficient", "math"),
    ),
    Own(
        heads_alone_masked,
        (*(HEADS[1:],) * 3, (4, 32, 32)),
        "its query has 3 axes, not 4",
        ("batch and heads became two axes", BLIND),
        backends=("memory-efficient", "math"),
    ),
    Own(
        one_batch_of_keys,
        (HEADS, (1, 4, 32, 16), (1, 4, 32, 16)),
        "query, key and value are of several batch sizes",
        (EXPANDED,),
        backends=("flash", "memory-efficient", "math"),
    ),
    Own(
        learned_queries,
        ((1, 4, 5, 16), HEADS, HEADS),
        "query, key and value are of several batch sizes",
        (EXPANDED,),
        backends=("flash", "memory-efficient", "math"),
    ),
    Own(
        keys_by_columns,
        (HEADS, (2, 4, 16, 32), HEADS),
        "the last axis of its key has a stride of 32, not 1",
        ("its key is copied row by row",),
        backends=("flash", "memory-efficient", "math"),
    ),
    Own(
        grouped_and_masked,
        (HEADS, FEW, FEW, (32, 32)),
        "heads of key and value are fewer than those of the query",
        (EXPANDED, BLIND),
        backends=("memory-efficient", "math"),
    ),
    Own(
        odd_heads,
        (*((2, 4, 32, 12),) * 3, (32, 32)),
        "its heads are 12 wide, no multiple of 8",
        refused="its heads are 12 wide, no multiple of 8",
    ),
    Own(double, QKV, "its dtype is float64", refused="its dtype is float64", dtype=torch.float64),
    Own(
        wide_mask,
        (*QKV, (32, 32)),
        "its mask is float32, its query bfloat16",
        refused="its mask is float32, its query bfloat16",
    ),
)


@pytest.mark.parametrize("own", OWN_CALLS, ids=lambda own: own.name)
def test_a_call_that_falls_to_math_gets_arguments_that_fit(own: Own) -> None:
    original, given = dynamo_graph(own.function, own.inputs())
    changed = copy.deepcopy(original)
    (record,) = rewrite_attention(changed)
    assert record.what.startswith("scaled_dot_product_attention of ")
    assert record.what.endswith(f"falls to math: {own.why}")
    assert (record.refused or "") == own.refused
    if own.refused:
        assert str(changed.graph) == str(original.graph)
        return
    assert record.changes[: len(own.changes)] == own.changes
    assert record.backends == own.backends
    for one, two in zip(results(original, given), results(changed, given), strict=True):
        torch.testing.assert_close(two, one, rtol=2e-2, atol=2e-2)
    assert rewrite_attention(changed) == ()


def test_grouped_heads_without_a_mask_and_fitting_calls_stay_as_they_are() -> None:
    for function, shapes in (
        (fitting, (*QKV, (32, 32))),
        (lambda q, k, v: attention(q, k, v, is_causal=True, enable_gqa=True), (HEADS, FEW, FEW)),
    ):
        gm, _ = dynamo_graph(function, Own(function, shapes).inputs())
        before = str(gm.graph)
        assert rewrite_attention(gm) == ()
        assert str(gm.graph) == before


def one_query_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q, k, v)


def test_one_head_of_queries_for_all_heads_of_keys() -> None:
    own = Own(one_query_head, ((2, 1, 32, 16), HEADS, HEADS))
    gm, given = dynamo_graph(one_query_head, own.inputs())
    (record,) = rewrite_attention(gm)
    assert record.refused is None
    assert record.changes[0] == EXPANDED
    (out,) = gm(*given)
    torch.testing.assert_close(out, attention(*own.inputs()), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast_casts_the_mask_too(inside: bool) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        if not inside:
            return attention(q, k, v, attn_mask=bias.float())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attention(q.float(), k, v, attn_mask=bias.float())

    inputs = Own(function, (*QKV, (32, 32))).inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
        gm, _ = dynamo_graph(function, inputs)
        assert rewrite_attention(gm) == ()


def test_sizes_known_at_run_time_are_given_the_benefit_of_the_doubt() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v)

    inputs = Own(function, QKV).inputs()
    gm, _ = dynamo_graph(function, inputs, dynamic=True)
    assert rewrite_attention(gm) == ()


def test_off_the_gpu_nothing_is_known_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "_GPU", "cuda")
    gm, _ = dynamo_graph(permuted_bias, OWN_CALLS[0].inputs())
    assert rewrite_attention(gm) == ()


def test_a_view_of_the_result_does_not_depend_on_its_memory_order() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        out = attention(q, k, v, bias.permute(2, 0, 1).unsqueeze(0))
        return out.view(8, 32, 16)

    own = Own(function, (*QKV, (32, 32, 4)))
    gm, _ = dynamo_graph(function, own.inputs())
    (record,) = rewrite_attention(gm)
    assert record.refused is None
    (view,) = [node for node in gm.graph.nodes if node.target in ("view", "reshape")]
    assert view.target == "reshape"


def test_a_mask_spelled_out_with_heads_last_is_handed_over_row_by_row() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return ((q @ k.mT) * 0.25 + bias.permute(2, 0, 1)).softmax(-1) @ v

    own = Own(function, (*QKV, (32, 32, 4)))
    gm, _ = dynamo_graph(function, own.inputs())
    (record,) = rewrite_attention(gm)
    assert record.backends[:1] == ("memory-efficient",)
    (call,) = sdpa.attention_calls_of(gm)
    assert call.mask is not None
    assert tensor(call.mask).stride(-1) == 1
