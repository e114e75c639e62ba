"""Workloads that ship with the tool, so that a first run needs no model of one's own.

A sample is a module with two factories, `inference() -> (module, inputs)` and
`train() -> (model, optimizer, loss)` where `loss(model)` is a scalar tensor. Both build on torch's
default device. This package imports no torch: only loading a sample does.
"""

from __future__ import annotations

from advisor.errors import UsageError

PREFIX = "sample:"

# name, module, one line for people
SAMPLES: tuple[tuple[str, str, str], ...] = (
    (
        "transformer_block",
        "advisor.samples.transformer_block",
        "one decoder block, norm, rotary and attention written out in pieces (bf16)",
    ),
    (
        "bert_layer",
        "advisor.samples.bert_layer",
        "one encoder layer, attention written out, layer norms, GELU, dropout (bf16)",
    ),
    (
        "resnet_block",
        "advisor.samples.resnet_block",
        "one bottleneck block: convolutions, batch norms, ReLU, residual (bf16, channels last)",
    ),
    (
        "unet_block",
        "advisor.samples.unet_block",
        "one residual block of a diffusion model: group norms, SiLU, convolutions (bf16)",
    ),
    (
        "mamba_block",
        "advisor.samples.mamba_block",
        "one state-space block, its scan a loop over tokens (bf16)",
    ),
    (
        "dlrm",
        "advisor.samples.dlrm",
        "a recommendation model: embeddings, pairwise products, small networks (float32)",
    ),
)


def sample_module(name: str) -> str:
    """The module that holds sample `name`; raises `UsageError` that lists the samples."""
    for known, module, _ in SAMPLES:
        if name == known:
            return module
    raise UsageError(
        f"unknown sample {name!r}",
        remedy=f"the samples are: {', '.join(known for known, _, _ in SAMPLES)}",
    )
