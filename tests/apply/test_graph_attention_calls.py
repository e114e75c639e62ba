"""Calls of `scaled_dot_product_attention`: made to fit fused kernels, and kept from cuDNN.

The checks are those of PyTorch on CUDA. Here they are made for the CPU, so that what is rewritten
can be run and compared; `tests/gpu` holds them against PyTorch's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import aot_eager
from torch._inductor.compile_fx import compile_fx
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from advisor.apply.graph import sdpa
from advisor.apply.graph.attention import rewrite_attention
from advisor.apply.graph.cudnn import attention_without_cudnn
from advisor.apply.graph.products import tensor
from advisor.apply.graph.records import Rewritten
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


# --- cuDNN ------------------------------------------------------------------------------------


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = (q @ k.mT) * 0.25
    return (scores if mask is None else scores.masked_fill(mask, -torch.inf)).softmax(-1) @ v


def merged(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(2, -1, 64)


def as_llama(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    x = written_out(q, k, v).transpose(1, 2).contiguous()
    return functional.linear(x.reshape(2, 32, -1).contiguous(), w)


def as_gpt2(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    x = written_out(q, k, v).permute(0, 2, 1, 3).contiguous().view(2, 32, 64)
    out: Tensor = torch.addmm(w[0], x.view(-1, 64), w)
    return out


def as_einsum(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    weights = torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1)
    return torch.einsum("bhqk,bhkd->bqhd", weights, v).reshape(2, 32, 64) @ w


def read_as_it_is(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    return written_out(q, k, v).sin()


def read_twice(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    x = written_out(q, k, v)
    return functional.linear(merged(x), w) + merged(x)


def gated(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    return functional.linear(merged(written_out(q, k, v)) * 2, w)


def weights_on_the_left(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    return torch.matmul(w, merged(written_out(q, k, v)).mT)


def heads_to_rows(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    return functional.linear(written_out(q, k, v).reshape(2, 32, 64), w)


def beside_another(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    return as_llama(q, k, v, w) + attention(q, k, v).sin().sum()


def beside_another_of_that_layout(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    return as_llama(q, k, v, w) + functional.linear(merged(attention(q, k, v)), w)


def beside_another_size(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    return as_llama(q, k, v, w) + attention(q[:, :, :8], k, v).sin().sum()


def beside_a_checkpoint(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
    other = checkpoint(lambda *x: attention(*x).sin(), q, k, v, use_reentrant=False)
    return as_llama(q, k, v, w) + other.sum()


WEIGHTS = (64, 64)
KEPT = (as_llama, as_gpt2, as_einsum, beside_another_of_that_layout, beside_another_size)
LEFT_OUT = (read_as_it_is, read_twice, gated, weights_on_the_left, heads_to_rows)
BESIDE = (beside_another, beside_a_checkpoint)


def rewritten(
    function: Callable[..., Tensor], *, trains: bool = True, dtype: torch.dtype = torch.bfloat16
) -> tuple[fx.GraphModule, list[Any], Rewritten]:
    inputs = Own(function, (*QKV, WEIGHTS), dtype=dtype).inputs()
    with torch.set_grad_enabled(trains):
        gm, given = dynamo_graph(function, inputs)
    (record,) = rewrite_attention(gm)
    assert record.refused is None
    return gm, given, record


@pytest.mark.parametrize("function", KEPT, ids=lambda f: f.__name__)
def test_cudnn_stays_where_the_gradient_has_the_usual_layout(
    function: Callable[..., Tensor],
) -> None:
    gm, _, record = rewritten(function)
    assert "cudnn" in record.backends
    assert record.changes == ()
    assert not gm.graph.find_nodes(op="call_function", target=attention_without_cudnn)


@pytest.mark.parametrize("function", [*LEFT_OUT, *BESIDE], ids=lambda f: f.__name__)
def test_cudnn_is_left_out_where_its_gradients_may_be_wrong(
    function: Callable[..., Tensor],
) -> None:
    gm, given, record = rewritten(function)
    assert record.backends == ("flash", "memory-efficient", "math")
    (reason,) = record.changes
    assert reason.startswith("cuDNN is left out: it keeps a plan for gradients of one layout")
    another = "another call of these sizes is read in another layout"
    assert reason.endswith(another) is (function in BESIDE)
    assert len(gm.graph.find_nodes(op="call_function", target=attention_without_cudnn)) == 1
    original, _ = dynamo_graph(function, Own(function, (*QKV, WEIGHTS)).inputs())
    for one, two in zip(results(original, given), results(gm, given), strict=True):
        assert (one - two).abs().max() <= 0.02 * one.abs().max()


def test_the_layout_in_which_the_gradient_comes_is_the_one_that_is_promised() -> None:
    """Of every result that keeps cuDNN: dense as [batch, length, heads, dim]."""
    for function in KEPT[:3]:
        gm, given, _ = rewritten(function)
        (call,) = sdpa.attention_calls_of(gm)
        seen: list[tuple[int, ...]] = []
        spy = gm.graph.call_function(_spying(seen), (call.node,))
        for reader in list(call.node.users):
            if reader is not spy:
                reader.replace_input_with(call.node, spy)
        call.node.append(spy)
        gm.recompile()
        results(gm, given)
        assert seen == [(2048, 16, 64, 1)]


def _spying(seen: list[tuple[int, ...]]) -> Callable[[Tensor], Tensor]:
    def spy(x: Tensor) -> Tensor:
        x.register_hook(lambda gradient: seen.append(gradient.stride()))
        return x

    return spy


@pytest.mark.parametrize("function", LEFT_OUT, ids=lambda f: f.__name__)
def test_without_gradients_or_in_float32_there_is_nothing_to_leave_out(
    function: Callable[..., Tensor],
) -> None:
    _, _, record = rewritten(function, trains=False)
    assert "cudnn" in record.backends
    assert record.changes == ()
    _, _, record = rewritten(function, dtype=torch.float32)
    assert record.backends == ("memory-efficient", "math")
    assert record.changes == ()


@pytest.mark.parametrize(
    ("length", "left_out"), [(64, True), (128, False), (192, True), (96, False)]
)
def test_masks_of_lengths_that_cudnn_pads_wrongly(length: int, left_out: bool) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, w: Tensor) -> Tensor:
        mask = torch.zeros(length, length, dtype=torch.bool, device=q.device)
        mask[:, 3] = True
        return functional.linear(merged(written_out(q, k, v, mask)), w)

    inputs = Own(function, (*((2, 4, length, 16),) * 3, WEIGHTS)).inputs()
    gm, _ = dynamo_graph(function, inputs)
    (record,) = rewrite_attention(gm)
    assert ("cudnn" not in record.backends) is left_out
    assert any("gradient of the query may be NaN" in text for text in record.changes) is left_out


def test_what_is_traced_is_the_call_without_cudnn_and_it_is_undone() -> None:
    states: list[bool] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is attention:
                states.append(torch.backends.cuda.cudnn_sdp_enabled())
            return function(*args, **(kwargs or {}))

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        (record,) = rewrite_attention(gm)
        assert "cudnn" not in record.backends
        with Watch():
            return aot_eager(gm, given)

    torch._dynamo.reset()
    inputs = Own(read_as_it_is, (*QKV, WEIGHTS)).inputs()
    torch.compile(read_as_it_is, backend=backend, fullgraph=True)(*inputs)
    assert states
    assert not any(states)
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_a_kernel_chosen_in_a_function_of_the_graph_is_the_one_compiled() -> None:
    """Why leaving cuDNN out while tracing suffices, shown with the choice that a CPU has."""
    found: list[list[str]] = []

    def by_math(*args: Any, **kwargs: Any) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return attention(*args, **kwargs)

    def keep(module: fx.GraphModule, _: Any) -> Any:
        found.append([str(node.target) for node in module.graph.nodes])
        return module.forward

    def backend(chosen: Any, gm: fx.GraphModule, given: list[Any]) -> Any:
        for node in gm.graph.find_nodes(op="call_function", target=attention):
            node.target = chosen
        gm.recompile()
        return aot_autograd(fw_compiler=keep)(gm, given)

    inputs = [torch.randn(HEADS) for _ in range(3)]
    for chosen in (attention, by_math):
        torch._dynamo.reset()
        torch.compile(heads_alone, backend=partial(backend, chosen))(*inputs)
    fused = ["flash" in " ".join(targets) for targets in found]
    assert fused == [True, False]


def test_inductor_compiles_a_graph_without_cudnn() -> None:
    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        rewrite_attention(gm)
        return compile_fx(gm, given)

    inputs = Own(read_as_it_is, (*QKV, WEIGHTS), dtype=torch.bfloat16).inputs()
    torch._dynamo.reset()
    got = torch.compile(read_as_it_is, backend=backend, fullgraph=True)(*inputs)
    torch.testing.assert_close(got, read_as_it_is(*inputs), rtol=2e-2, atol=2e-2)
    (gradient,) = torch.autograd.grad(got.square().sum(), inputs[:1])
    (wanted,) = torch.autograd.grad(read_as_it_is(*inputs).square().sum(), inputs[:1])
    torch.testing.assert_close(gradient, wanted, rtol=5e-2, atol=5e-2)
