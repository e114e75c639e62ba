"""Attention of modules with dropout, grouped heads or ALiBi: by the library, by FlexAttention."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._inductor import inductor_prims
from torch._inductor.compile_fx import compile_fx
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask

from advisor.apply.graph.attention import rewrite_attention
from advisor.apply.graph.fitting import OWN_CALL
from advisor.apply.graph.records import Rewritten
from advisor.pipeline.graph_sites import NO_FLEX, nothing_in
from tests.apply.test_graph_attention import dynamo_graph, fused_calls, results

Tensor = torch.Tensor
LENGTH, HEADS, DIM = 256, 4, 16


class Attention(nn.Module):
    """Causal attention written out, as models of the field have it.

    `groups` query heads share one of keys and values; `alibi` adds slopes times distance;
    `blocks` sees only its own block of so many positions and the first one, as sparse models do.
    """

    def __init__(
        self, *, groups: int = 1, alibi: bool = False, blocks: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.groups, self.alibi, self.blocks, self.dropout = groups, alibi, blocks, dropout
        self.qkv = nn.Linear(32, (HEADS + 2 * HEADS // groups) * DIM)
        self.out = nn.Linear(HEADS * DIM, 32)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, -1, DIM).transpose(1, 2)
        few = HEADS // self.groups
        q, k, v = heads.split([HEADS, few, few], dim=1)
        if self.groups > 1:
            k, v = (t.repeat_interleave(self.groups, dim=1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * DIM**-0.5
        scores = self.masked(scores, length)
        weights = functional.softmax(scores, dim=-1)
        weights = functional.dropout(weights, self.dropout, self.training)
        merged = (weights @ v).transpose(1, 2).reshape(batch, length, HEADS * DIM)
        result: Tensor = self.out(merged)
        return result

    def masked(self, scores: Tensor, length: int) -> Tensor:
        i = torch.arange(length, device=scores.device)
        distance = i[None, :] - i[:, None]
        if self.alibi:
            slopes = torch.tensor([2.0**-n for n in range(HEADS)], device=scores.device)
            scores = scores + (slopes.view(HEADS, 1, 1) * distance).to(scores.dtype)
        hidden = distance > 0
        if self.blocks:
            near = i[None, :] // self.blocks == i[:, None] // self.blocks
            hidden = hidden | ~(near | (i[None, :] < self.blocks))
        return scores.masked_fill(hidden, -torch.inf)


def rewritten(
    module: Attention, *, prefer_flex: bool, length: int = LENGTH
) -> tuple[fx.GraphModule, fx.GraphModule, list[Any], Rewritten]:
    torch.manual_seed(0)
    module = module.double()
    x = torch.randn(2, length, 32, dtype=torch.float64, requires_grad=True)
    original, given = dynamo_graph(module, [x])
    changed = copy.deepcopy(original)
    (record,) = rewrite_attention(changed, prefer_flex=prefer_flex, flex_devices=("cpu",))
    return original, changed, given, record


WAYS = (
    ({"groups": 2}, "causal", False),
    ({"alibi": True}, "a fixed bias and mask", True),
    ({"alibi": True, "groups": 4}, "a fixed bias and mask", True),
    ({"blocks": 64}, "a fixed mask", True),
    ({"blocks": 64, "groups": 2}, "a fixed mask", True),
)


@pytest.mark.parametrize("prefer_flex", [False, True], ids=["library", "flex"])
@pytest.mark.parametrize(("options", "words", "flex"), WAYS, ids=str)
def test_both_ways_are_the_module(
    options: dict[str, Any], words: str, flex: bool, prefer_flex: bool
) -> None:
    original, changed, given, record = rewritten(Attention(**options), prefer_flex=prefer_flex)
    assert record.refused is None
    assert words in record.what
    assert record.or_flex is flex
    by_flex = flex and prefer_flex
    assert record.route == ("flex_attention" if by_flex else "scaled_dot_product_attention")
    if by_flex:  # on a CPU it has no gradient
        with torch.no_grad():
            torch.testing.assert_close(changed(*given), original(*given), rtol=1e-9, atol=1e-10)
        return
    for one, two in zip(results(original, given), results(changed, given), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("prefer_flex", [False, True], ids=["library", "flex"])
@pytest.mark.parametrize("options", [{"alibi": True}, {"groups": 2}], ids=str)
def test_dropout_in_training_stays_with_the_library(
    options: dict[str, Any], prefer_flex: bool
) -> None:
    module = Attention(dropout=0.25, **options)
    original, changed, given, record = rewritten(module, prefer_flex=prefer_flex)
    assert (record.refused, record.or_flex) == (None, False)
    assert record.route == "scaled_dot_product_attention"
    (call,) = fused_calls(changed)
    assert call.kwargs["dropout_p"] == 0.25
    assert record.changes == ("dropout draws other random numbers of the same distribution",)
    with torch.no_grad():
        assert changed(*given)[0].shape == original(*given)[0].shape


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "the mask is causal, which the library call takes as is_causal"),
        ({"alibi": True, "dropout": 0.25}, "FlexAttention has no dropout, here 0.25; train"),
    ],
    ids=str,
)
def test_why_flex_has_no_part_is_said(options: dict[str, Any], why: str) -> None:
    record = rewritten(Attention(**options), prefer_flex=True)[-1]
    assert not record.or_flex
    assert record.not_flex.startswith(why)
    assert nothing_in("flex_attention", [record]).startswith(f"{NO_FLEX}: {why}")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"alibi": True, "dropout": 0.25}, "FlexAttention has no dropout, here 0.25; train"),
        ({"alibi": True}, "FlexAttention is tried on a GPU only; on cpu it computes no gradients"),
    ],
    ids=str,
)
def test_without_a_gpu_what_the_site_itself_lacks_is_said_first(
    options: dict[str, Any], why: str
) -> None:
    torch.manual_seed(0)
    changed, _ = dynamo_graph(Attention(**options), [torch.randn(2, LENGTH, 32)])
    (record,) = rewrite_attention(changed, prefer_flex=True)
    assert record.not_flex.startswith(why)


def test_a_bias_that_is_trained_stays_with_the_library_and_the_reason_says_so() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return (q @ k.mT * 0.25 + bias).softmax(-1) @ v

    inputs = [torch.randn(2, 2, LENGTH, DIM) for _ in range(3)]
    for trained in (True, False):
        bias = torch.randn(LENGTH, LENGTH, requires_grad=trained)
        graph, _ = dynamo_graph(attention, [*inputs, bias])
        (record,) = rewrite_attention(graph, prefer_flex=True, flex_devices=("cpu",))
        assert record.refused is None
        assert record.not_flex.startswith("its bias is trained, and FlexAttention") is trained
        assert record.or_flex is not trained


def test_where_there_is_no_mask_the_library_reads_none() -> None:
    inputs = [torch.randn(2, 2, LENGTH, DIM) for _ in range(3)]
    graph, _ = dynamo_graph(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, inputs)
    (record,) = rewrite_attention(graph, prefer_flex=True, flex_devices=("cpu",))
    assert record.not_flex == "there is no mask or bias, and the library call reads none"


@pytest.mark.parametrize("prefer_flex", [False, True], ids=["library", "flex"])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "dense mask"])
def test_a_call_of_the_library_with_a_dense_mask_says_why_it_stays(
    masked: bool, prefer_flex: bool
) -> None:
    """It was "no site of it is in the graphs", as where there is no attention at all."""

    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        given = mask if masked else None
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=given)

    inputs = [torch.randn(2, 2, LENGTH, DIM) for _ in range(3)]
    graph, _ = dynamo_graph(attention, [*inputs, torch.ones(LENGTH, LENGTH, dtype=torch.bool)])
    before = graph.code
    found = rewrite_attention(graph, prefer_flex=prefer_flex, flex_devices=("cpu",))
    assert graph.code == before
    assert [record.refused for record in found] == [OWN_CALL] * (masked and prefer_flex)
    if found:
        line = nothing_in("flex_attention", found)
        assert line.startswith(
            "scaled_dot_product_attention of 2 heads of 16, 256 queries by 256 keys with a mask: "
            "stays, the program calls scaled_dot_product_attention itself"
        )


@pytest.mark.parametrize("prefer_flex", [False, True], ids=["library", "flex"])
def test_dropout_outside_training_is_none(prefer_flex: bool) -> None:
    module = Attention(dropout=0.25, alibi=True).eval()
    original, changed, given, record = rewritten(module, prefer_flex=prefer_flex)
    assert record.refused is None
    assert (record.route == "flex_attention") is prefer_flex
    with torch.no_grad():
        torch.testing.assert_close(changed(*given), original(*given), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("options", "seen"), [({"alibi": True}, 10), ({"blocks": 128}, 7)])
def test_blocks_that_a_fixed_mask_hides_are_known_before_the_step(
    options: dict[str, Any], seen: int
) -> None:
    """Of 16 blocks of 128 by 128 pairs."""
    length, module = 512, Attention(**options)
    _, changed, _, record = rewritten(module, prefer_flex=True, length=length)
    assert record.route == "flex_attention"
    buffers = [value for name, value in changed.named_buffers() if "blocks" in name]
    hidden = module.masked(torch.zeros(1, HEADS, length, length), length) == -torch.inf

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ~hidden[0, 0][query, key]

    wanted = create_block_mask(mask_mod, None, None, length, length, device="cpu")
    expected = [item for item in wanted.as_tuple() if isinstance(item, torch.Tensor)]
    assert len(buffers) == len(expected)
    for ours, theirs in zip(buffers, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert wanted.full_kv_num_blocks is not None
    assert int(wanted.kv_num_blocks.sum() + wanted.full_kv_num_blocks.sum()) == seen


def test_a_bias_that_masks_by_heads_has_blocks_by_heads() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i = torch.arange(LENGTH)
        reach = torch.tensor([8, 256]).view(2, 1, 1)
        distance = i[:, None] - i[None, :]
        seen = (distance >= 0) & (distance < reach)
        return (q @ k.mT * 0.25).masked_fill(~seen, -torch.inf).softmax(-1) @ v

    inputs = [torch.randn(1, 2, LENGTH, DIM, dtype=torch.float64) for _ in range(3)]
    graph, given = dynamo_graph(attention, inputs)
    changed = copy.deepcopy(graph)
    (record,) = rewrite_attention(changed, prefer_flex=True, flex_devices=("cpu",))
    assert record.route == "flex_attention"
    torch.testing.assert_close(changed(*given), graph(*given), rtol=1e-9, atol=1e-10)
    counts = next(b for n, b in changed.named_buffers() if "blocks" in n)
    assert counts.shape[1] == 2


def test_a_mask_of_the_call_needs_all_blocks() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.mT * 0.25).masked_fill(~mask[:, None, None, :], -torch.inf)
        return scores.softmax(-1) @ v

    inputs = [torch.randn(2, 2, LENGTH, DIM, dtype=torch.float64) for _ in range(3)]
    mask = torch.ones(2, LENGTH, dtype=torch.bool)
    mask[:, 100:] = False
    graph, given = dynamo_graph(attention, [*inputs, mask])
    changed = copy.deepcopy(graph)
    (record,) = rewrite_attention(changed, prefer_flex=True, flex_devices=("cpu",))
    assert record.route == "flex_attention"
    assert in_memory(changed) == 1
    torch.testing.assert_close(changed(*given), graph(*given), rtol=1e-9, atol=1e-10)


def in_memory(gm: fx.GraphModule) -> int:
    """Tensors that Inductor has to compute before FlexAttention reads them."""
    force = inductor_prims.force_stride_order
    return len(gm.graph.find_nodes(op="call_function", target=force))


def test_a_bias_of_the_call_is_computed_before_it_and_inductor_runs_it() -> None:
    """Else its row maximum, a buffer without a layout yet, would be read inside the kernel."""

    def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return (q @ k.mT * 0.25 + (bias * 2).permute(2, 0, 1)).softmax(-1) @ v

    inputs = [torch.randn(2, 2, LENGTH, DIM) for _ in range(3)]
    bias = torch.randn(LENGTH, LENGTH, 2)
    bias[7] = -1e9  # a query that sees no key
    counts: list[int] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        (record,) = rewrite_attention(gm, prefer_flex=True, flex_devices=("cpu",))
        assert record.route == "flex_attention"
        counts.append(in_memory(gm))
        return compile_fx(gm, given)

    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(attention, backend=backend, fullgraph=True)(*inputs, bias)
        torch.testing.assert_close(got, attention(*inputs, bias), rtol=1e-4, atol=1e-4)
    assert counts == [1]


def test_a_window_made_with_zeros_like_the_query_is_still_proved() -> None:
    """Mistral: the zeros take dtype and device of the query, no number of it."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None, :]
        low = torch.full_like(q[0, 0, :1, :1], -1e9)
        mask = torch.where((j <= i) & (j > i - 64), q.new_zeros(()), low)
        return (q @ k.mT * 0.25 + mask).softmax(-1) @ v

    inputs = [torch.randn(2, 2, LENGTH, DIM, dtype=torch.float64) for _ in range(3)]
    graph, given = dynamo_graph(attention, inputs)
    changed = copy.deepcopy(graph)
    (record,) = rewrite_attention(changed, prefer_flex=True, flex_devices=("cpu",))
    assert record.what.endswith("a causal window of 64 keys")
    assert in_memory(changed) == 0
    torch.testing.assert_close(changed(*given), graph(*given), rtol=1e-9, atol=1e-10)
