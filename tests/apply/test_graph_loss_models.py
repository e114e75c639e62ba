"""Losses of `transformers`' models: found in what Dynamo captures of them, equal to eager."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.debugging import aot_eager

from advisor.apply.graph.loss import rewrite_losses
from advisor.apply.graph.records import Rewritten
from advisor.pipeline.with_loss import seen_with_loss
from collectors.live.workload import Workload

transformers = pytest.importorskip("transformers")
SMALL: dict[str, Any] = {
    "vocab_size": 90, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_key_value_heads": 2,
}  # fmt: skip


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def gemma2() -> Any:
    config = transformers.Gemma2Config(
        **SMALL, head_dim=16, final_logit_softcapping=3.0, attn_implementation="eager"
    )
    return transformers.Gemma2ForCausalLM(config)


def granite() -> Any:
    return transformers.GraniteForCausalLM(
        transformers.GraniteConfig(**SMALL, logits_scaling=8.0, tie_word_embeddings=True)
    )


@pytest.mark.parametrize("make", [llama, gemma2, granite])
def test_the_loss_of_a_model_needs_no_logits(make: Any) -> None:
    torch.manual_seed(0)
    model = make().train()
    tokens = torch.randint(0, 90, (2, 24))
    labels = tokens.masked_fill(torch.rand(2, 24) < 0.2, -100)
    records: list[Rewritten] = []

    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        records.extend(rewrite_losses(gm, chunk=16))
        return aot_eager(gm, given)

    def loss(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(input_ids=tokens, labels=labels, use_cache=False).loss
        return found

    torch._dynamo.reset()
    parameters = list(model.parameters())
    found = torch.compile(loss, backend=backend)(tokens, labels)
    gradients = torch.autograd.grad(found, parameters)
    wanted = loss(tokens, labels)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients, torch.autograd.grad(wanted, parameters))
    assert [(r.refused, r.what) for r in records] == [
        (None, "cross-entropy of 48 rows over 90 classes")
    ]


def test_a_model_that_returns_its_logits_keeps_them() -> None:
    model = llama()
    tokens = torch.randint(0, 90, (2, 24))
    records: list[Rewritten] = []

    def backend(gm: fx.GraphModule, _: list[Any]) -> Any:
        records.extend(rewrite_losses(gm, chunk=16))
        return gm

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(input_ids=tokens, labels=tokens, use_cache=False)
    (record,) = records
    assert record.refused is not None
    assert re.match(r"the logits made at .*modeling_llama.py:\d+ leave the graph", record.refused)


def test_compiled_with_its_loss_it_returns_none() -> None:
    """`.loss` of the output is all that a training step takes: the logits are nobody's."""
    torch.manual_seed(0)
    model = llama().train()
    tokens = torch.randint(0, 90, (2, 512))
    work = Workload(
        "llama", "training", torch.device("cpu"), model,
        optimizer=torch.optim.SGD(model.parameters()),
        loss=lambda part: part(input_ids=tokens, labels=tokens, use_cache=False).loss,
    )  # fmt: skip
    rewrite = functools.partial(rewrite_losses, chunk=16)
    (record,) = seen_with_loss(work, rewrite, ())
    assert (record.refused, record.with_loss) == (None, True)
    assert record.location.file is not None
    assert record.location.file.endswith("loss_utils.py")
