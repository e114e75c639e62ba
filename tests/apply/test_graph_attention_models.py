"""Models of `transformers` with attention written out: rewritten, then Inductor, equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.debugging import aot_eager
from torch._inductor.compile_fx import compile_fx
from torch.nn import functional

from advisor.apply.graph.attention import rewrite_attention
from advisor.apply.graph.records import Rewritten

transformers = pytest.importorskip("transformers")
SMALL: dict[str, Any] = {"vocab_size": 90, "attn_implementation": "eager"}
WIDTH: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}


def llama(layers: int = 1) -> Any:
    config = transformers.LlamaConfig(
        **SMALL, **WIDTH, num_hidden_layers=layers, num_key_value_heads=2
    )
    return transformers.LlamaForCausalLM(config)


def bert(layers: int = 1) -> Any:
    config = transformers.BertConfig(**SMALL, **WIDTH, num_hidden_layers=layers)
    return transformers.BertModel(config)


def gpt2(layers: int = 1) -> Any:
    drop = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    config = transformers.GPT2Config(**SMALL, **drop, n_layer=layers, n_embd=64, n_head=4)
    return transformers.GPT2LMHeadModel(config)


def t5() -> Any:
    config = transformers.T5Config(
        **SMALL, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def mistral() -> Any:
    config = transformers.MistralConfig(
        **SMALL, **WIDTH, num_hidden_layers=2, num_key_value_heads=2, sliding_window=5
    )
    return transformers.MistralForCausalLM(config)


def gemma2() -> Any:
    config = transformers.Gemma2Config(
        **SMALL, **WIDTH, num_hidden_layers=2, num_key_value_heads=2, head_dim=16, sliding_window=5
    )
    return transformers.Gemma2ForCausalLM(config)


def tokens() -> torch.Tensor:
    return torch.randint(1, 90, (2, 12), generator=torch.Generator().manual_seed(0))


class Rewriting:
    """A Dynamo backend that rewrites, keeps the records and hands on."""

    def __init__(self, inner: Callable[..., Any], **options: Any) -> None:
        self.inner, self.options = inner, options
        self.records: list[Rewritten] = []
        self.calls: list[fx.Node] = []

    def __call__(self, gm: fx.GraphModule, given: list[Any]) -> Any:
        self.records += rewrite_attention(gm, **self.options)
        target = functional.scaled_dot_product_attention
        self.calls += gm.graph.find_nodes(op="call_function", target=target)
        return self.inner(gm, given)


def compiled(model: Any, inner: Callable[..., Any], **options: Any) -> tuple[Any, Rewriting]:
    torch._dynamo.reset()
    backend = Rewriting(inner, **options)
    return torch.compile(model, backend=backend), backend


@pytest.mark.parametrize(
    ("build", "causal"), [(llama, True), (bert, False), (gpt2, True)], ids=["llama", "bert", "gpt2"]
)
def test_inductor_gives_what_eager_gives(build: Callable[[], Any], causal: bool) -> None:
    torch.manual_seed(0)
    model = build().eval()
    fast, backend = compiled(model, compile_fx)
    with torch.no_grad():
        wanted, got = model(tokens())[0], fast(tokens())[0]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert [record.refused for record in backend.records] == [None]
    (call,) = backend.calls
    assert call.kwargs["attn_mask"] is None
    assert call.kwargs["is_causal"] is causal


@pytest.mark.parametrize(
    ("build", "sites"), [(llama, 1), (gpt2, 1), (mistral, 2), (t5, 6)], ids=lambda x: str(x)[10:15]
)
def test_training_gives_the_gradients_of_eager(build: Callable[[], Any], sites: int) -> None:
    torch.manual_seed(0)
    model = build().double().train()
    fast, backend = compiled(model, aot_eager)

    def gradients(step: Any) -> list[torch.Tensor]:
        model.zero_grad()
        step(input_ids=tokens(), labels=tokens(), use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    wanted, got = gradients(model), gradients(fast)
    assert [record.refused for record in backend.records] == [None] * sites
    # The models compute their softmax in float32 whatever their dtype.
    for one, two in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("padded", ["left", "right"])
def test_padding_gives_the_same_logits(padded: str) -> None:
    torch.manual_seed(0)
    model = llama(2).eval()
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[0, slice(0, 4) if padded == "left" else slice(8, None)] = 0
    fast, backend = compiled(model, aot_eager)
    with torch.no_grad():
        wanted = model(tokens(), attention_mask=mask).logits
        got = fast(tokens(), attention_mask=mask).logits
    assert [record.refused for record in backend.records] == [None, None]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_capped_scores_of_gemma_become_flex_attention() -> None:
    torch.manual_seed(0)
    model = gemma2().eval()
    fast, backend = compiled(model, aot_eager, flex_devices=("cpu",))
    with torch.no_grad():
        wanted, got = model(tokens()).logits, fast(tokens()).logits
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert [(r.refused, r.route) for r in backend.records] == [(None, "flex_attention")] * 2
    first, second = (record.what for record in backend.records)
    assert "scores capped by tanh, a causal window of 5 keys" in first
    assert second.endswith("scores capped by tanh, causal")


def test_returned_attention_weights_are_left() -> None:
    torch.manual_seed(0)
    model = bert().eval()
    fast, backend = compiled(model, aot_eager)
    with torch.no_grad():
        wanted = model(tokens(), output_attentions=True).attentions[0]
        got = fast(tokens(), output_attentions=True).attentions[0]
    torch.testing.assert_close(got, wanted)
    (record,) = backend.records
    assert record.refused == "the attention weights are also read by the graph's output"
    assert record.location.module == "encoder.layer.0.attention.self"
