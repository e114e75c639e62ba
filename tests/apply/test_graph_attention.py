"""Attention written out, rewritten on captured Dynamo graphs: same numbers, same gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from advisor.apply.graph.attention import rewrite_attention
from advisor.apply.graph.records import Rewritten
from tests.builders.attention import (
    FUSED,
    GROUPED,
    QKV,
    Case,
    padding,
    repeat_kv,
)
from tests.builders.attention_refused import REFUSED, mask_overwritten, written_between

Tensor = torch.Tensor


def dynamo_graph(
    function: Callable[..., Any], inputs: Sequence[Tensor], **options: Any
) -> tuple[fx.GraphModule, list[Any]]:
    """The only graph of a function, and the arguments it is called with."""
    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        found.append((copy.deepcopy(gm), list(given)))
        return gm

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True, **options)(*inputs)
    assert len(found) == 1
    return found[0]


def rewritten(
    case: Case, dtype: torch.dtype, **options: Any
) -> tuple[fx.GraphModule, fx.GraphModule, list[Any], tuple[Rewritten, ...]]:
    inputs = [x.requires_grad_(x.is_floating_point()) for x in case.inputs(dtype)]
    original, given = dynamo_graph(case.function, inputs)
    changed = copy.deepcopy(original)
    return original, changed, given, rewrite_attention(changed, **options)


def results(gm: Callable[..., Any], given: Sequence[Any], unused: int = 0) -> list[Tensor]:
    """Output and gradients of every input that takes one."""
    leaves = [
        x.detach().clone().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x
        for x in given
    ]
    (out,) = gm(*leaves)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64, device=out.device).to(
        out.dtype
    )
    weight = weight.view(out.shape).clone()
    if unused:
        weight[0, :, :unused] = 0
    out.backward(weight)
    return [out, *(x.grad for x in leaves if isinstance(x, Tensor) and x.grad is not None)]


def fused_calls(gm: fx.GraphModule) -> list[fx.Node]:
    return gm.graph.find_nodes(op="call_function", target=functional.scaled_dot_product_attention)


@pytest.mark.parametrize("case", FUSED, ids=lambda case: case.name)
def test_spelling_is_replaced_exactly(case: Case) -> None:
    original, changed, given, records = rewritten(case, torch.float64)
    assert [(r.refused, r.route) for r in records] == [(None, "scaled_dot_product_attention")]
    (call,) = fused_calls(changed)
    for name, wanted in case.call.items():
        value = call.kwargs[name]
        if wanted == "tensor":
            assert isinstance(value, fx.Node)
        else:
            assert value == pytest.approx(wanted) if name == "scale" else value == wanted
    before, after = (results(gm, given, case.unused) for gm in (original, changed))
    assert len(before) == len(after)
    for one, two in zip(before, after, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-10)
    assert rewrite_attention(changed) == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", FUSED, ids=lambda case: case.name)
def test_error_is_at_most_twice_that_of_eager(case: Case, dtype: torch.dtype) -> None:
    exact, exact_given = dynamo_graph(case.function, case.inputs(torch.float64))
    wanted = results(exact, exact_given, case.unused)
    original, changed, given, records = rewritten(case, dtype)
    assert records[0].refused is None
    before, after = (results(gm, given, case.unused) for gm in (original, changed))
    for reference, one, two in zip(wanted, before, after, strict=True):
        scale = reference.abs().max()
        own = (one.double() - reference).abs().max()
        ours = (two.double() - reference).abs().max()
        assert ours <= 2 * own + scale * torch.finfo(dtype).eps, (own, ours, scale)


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=lambda x: getattr(x, "name", ""))
def test_look_alike_is_refused_with_its_reason_and_left_as_it_was(
    case: Case, reason: str | None
) -> None:
    inputs = case.inputs(torch.bfloat16)
    gm, _ = dynamo_graph(case.function, inputs)
    before = str(gm.graph)
    records = rewrite_attention(gm, flex_devices=("cpu",))
    if reason is None:
        assert records == ()
    else:
        assert len(records) == 1
        assert records[0].refused is not None
        assert reason in records[0].refused
    assert str(gm.graph) == before


def test_of_two_sites_the_one_with_a_write_is_refused() -> None:
    original, changed, given, records = rewritten(Case(written_between, QKV, {}), torch.float64)
    assert [record.refused is None for record in records] == [True, False]
    for one, two in zip(results(original, given), results(changed, given), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-10)


def test_a_mask_written_to_later_was_zero_when_it_was_read() -> None:
    original, changed, given, (record,) = rewritten(Case(mask_overwritten, QKV, {}), torch.float64)
    assert record.what.endswith("a mask that allows everything")
    for one, two in zip(results(original, given), results(changed, given), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("case", FUSED[::4], ids=lambda case: case.name)
def test_names_play_no_part(case: Case) -> None:
    gm, _ = dynamo_graph(case.function, case.inputs(torch.float32))
    renamed = copy.deepcopy(gm)
    for number, node in enumerate(renamed.graph.nodes):
        if node.op != "placeholder":
            node._rename(f"softmax_matmul_{number}")
    plain, other = rewrite_attention(gm), rewrite_attention(renamed)
    assert plain == other
    assert [n.target for n in gm.graph.nodes] == [n.target for n in renamed.graph.nodes]


def dropout_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = functional.dropout((q @ k.mT * 0.25).softmax(-1), p=0.25, training=True)
    return weights @ v


def test_dropout_is_kept_with_its_probability_and_said_to_draw_other_numbers() -> None:
    case = Case(dropout_attention, ((2, 4, 64, 16),) * 3, {})
    _, changed, given, (record,) = rewritten(case, torch.float64)
    (call,) = fused_calls(changed)
    assert call.kwargs["dropout_p"] == 0.25
    assert record.changes == ("dropout draws other random numbers of the same distribution",)
    torch.manual_seed(0)
    with torch.no_grad():
        runs = torch.stack([changed(*given)[0] for _ in range(400)])
        q, k, v = case.inputs(torch.float64)
        mean = (q @ k.mT * 0.25).softmax(-1) @ v
    spread = runs.std(0) / 20
    assert ((runs.mean(0) - mean).abs() < 6 * spread).all()


def test_sizes_known_at_run_time_need_no_recompilation() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1) * 0.25).masked_fill(~mask[:, None, None, :], -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    records: list[Rewritten] = []
    graphs = 0

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        records.extend(rewrite_attention(gm))
        return gm

    torch._dynamo.reset()
    compiled = torch.compile(attention, backend=backend, fullgraph=True, dynamic=True)
    for batch, length in ((2, 8), (3, 24), (5, 11)):
        q, k, v = (torch.randn(batch, 4, length, 16) for _ in range(3))
        mask = torch.rand(batch, length) < 0.7
        mask[:, 0] = True
        torch.testing.assert_close(compiled(q, k, v, mask), attention(q, k, v, mask))
    assert [record.refused for record in records] == [None]
    assert graphs == 1


def test_a_size_known_at_run_time_is_no_argument() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v

    inputs = torch.randn(1, 4, 5, 16), torch.randn(3, 4, 9, 16), torch.randn(3, 4, 9, 16)
    gm, _ = dynamo_graph(attention, inputs, dynamic=True)
    before = str(gm.graph)
    (record,) = rewrite_attention(gm)
    assert record.refused == "its sizes are only known at run time"
    assert str(gm.graph) == before


def soft_capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Gemma 2: capped scores, a causal mask, grouped heads."""
    k, v = repeat_kv(k, 2), repeat_kv(v, 2)
    scores = torch.tanh(q @ k.mT * 0.25 / 2.0) * 2.0
    mask = torch.full((12, 12), torch.finfo(q.dtype).min, dtype=q.dtype, device=q.device).triu(1)
    return (scores + mask).softmax(-1) @ v


def soft_capped_and_padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.tanh(q @ k.mT * 0.25 / 2.0) * 2.0
    low = torch.finfo(q.dtype).min
    return scores.masked_fill(~mask[:, None, None, :], low).softmax(-1) @ v


CAPPED = (
    Case(soft_capped, GROUPED, {}),
    Case(soft_capped_and_padded, QKV, {}, padding),
)


@pytest.mark.parametrize("case", CAPPED, ids=lambda case: case.name)
def test_capped_scores_become_flex_attention(case: Case) -> None:
    original, changed, given, (record,) = rewritten(case, torch.float64, flex_devices=("cpu",))
    assert (record.refused, record.route) == (None, "flex_attention")
    with torch.no_grad():
        torch.testing.assert_close(changed(*given), original(*given), rtol=1e-9, atol=1e-10)


def test_capped_scores_need_a_device_of_flex_attention() -> None:
    _, changed, _, (record,) = rewritten(CAPPED[0], torch.float64)
    assert record.route == "flex_attention"
    assert record.refused == (
        "FlexAttention is tried on a GPU only; on cpu it computes no gradients"
    )
    assert not fused_calls(changed)


@pytest.mark.parametrize("name", ["mistral_window", "t5_relative_bias", "alibi_slopes", "bert"])
def test_masks_go_to_flex_attention_if_preferred(name: str) -> None:
    case = next(case for case in FUSED if case.name == name)
    graph, given = dynamo_graph(case.function, case.inputs(torch.float64))
    changed = copy.deepcopy(graph)
    (record,) = rewrite_attention(changed, prefer_flex=True, flex_devices=("cpu",))
    assert (record.refused, record.route) == (None, "flex_attention")
    torch.testing.assert_close(changed(*given), graph(*given), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", ["llama_eager", "mistral_window", "alibi_slopes"])
@pytest.mark.parametrize("prefer_flex", [False, True], ids=["library", "flex"])
def test_the_default_device_of_the_caller_plays_no_part(name: str, prefer_flex: bool) -> None:
    (case,) = [case for case in FUSED if case.name == name]
    options = {"prefer_flex": prefer_flex, "flex_devices": ("cpu",)}
    original, changed, _, records = rewritten(case, torch.float32, **options)
    again = copy.deepcopy(original)
    with torch.device("meta"):
        assert rewrite_attention(again, **options) == records
    assert again.print_readable(print_output=False) == changed.print_readable(print_output=False)


def test_record_says_what_and_where() -> None:
    gm, _ = dynamo_graph(FUSED[1].function, FUSED[1].inputs(torch.bfloat16))
    (record,) = rewrite_attention(gm)
    assert record.what == (
        "attention of 4 heads, 2 to one of keys and values, of 16, 12 queries by 12 keys, causal"
    )
    assert record.location.file is not None
    assert record.location.file.endswith("tests/builders/attention.py")


def test_weights_without_gradient_are_refused() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.no_grad():
            weights = (q @ k.mT).softmax(-1)
        return weights @ v

    _, changed, _, (record,) = rewritten(Case(attention, QKV, {}), torch.float32)
    assert record.refused == "_set_grad_enabled changes the mode in the middle of it"
    assert not fused_calls(changed)


def test_autocast_keeps_its_dtype() -> None:
    case = next(case for case in FUSED if case.name == "added_padding")

    def attention(*inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return case.function(*inputs)

    inputs = case.inputs(torch.float32)
    gm, given = dynamo_graph(attention, inputs)
    changed = copy.deepcopy(gm)
    (record,) = rewrite_attention(changed)
    assert record.refused is None
    (before,), (after,) = gm(*given), changed(*given)
    assert after.dtype == before.dtype == torch.bfloat16
    torch.testing.assert_close(after, before, rtol=2e-2, atol=2e-2)


def test_checkpointed_attention_is_rewritten_and_its_mask_still_proved() -> None:
    def layer(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (q @ k.mT * 0.25 + mask).softmax(-1) @ v

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.full((12, 12), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
        return checkpoint(layer, q, k, v, mask, use_reentrant=False)

    case = Case(attention, QKV, {})
    inputs = [x.requires_grad_() for x in case.inputs(torch.float64)]
    records: list[Rewritten] = []
    calls: list[fx.Node] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        records.extend(rewrite_attention(gm))
        for module in gm.children():
            calls.extend(fused_calls(module))
        return aot_eager(gm, given)

    torch._dynamo.reset()
    out = torch.compile(attention, backend=backend, fullgraph=True)(*inputs)
    assert [record.refused for record in records] == [None]
    assert [call.kwargs["is_causal"] for call in calls] == [True]
    torch.testing.assert_close(out, attention(*inputs), rtol=1e-9, atol=1e-10)
    gradients = torch.autograd.grad(out.square().sum(), inputs)
    wanted = torch.autograd.grad(attention(*inputs).square().sum(), inputs)
    torch.testing.assert_close(gradients, wanted, rtol=1e-9, atol=1e-10)
