"""Where cuDNN takes a call of attention in training, and where its gradients may be wrong."""

from __future__ import annotations

from collections.abc import Callable
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
from advisor.apply.graph.records import Rewritten
from tests.apply.test_graph_attention import dynamo_graph, results
from tests.apply.test_graph_attention_calls import HEADS, QKV, Own, heads_alone

Tensor = torch.Tensor
attention = functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "_GPU", "cpu")


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
