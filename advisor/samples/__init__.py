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
