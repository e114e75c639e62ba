"""Bundled workloads: the registry loads no torch, and each sample runs, trains and is bf16."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from advisor.errors import UsageError
from advisor.samples import SAMPLES, sample_module

torch = pytest.importorskip("torch")


def test_an_unknown_sample_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="transformer_block"):
        sample_module("nothing")


def test_the_registry_loads_no_torch() -> None:
    code = "import sys, advisor.samples; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", [name for name, _, _ in SAMPLES])
def test_a_sample_infers_and_trains(name: str) -> None:
    sample = import_module(sample_module(name))
    model, inputs = sample.inference()
    with torch.no_grad():
        output = model(*inputs)
    assert output.dtype == inputs[0].dtype
    assert name == "dlrm" or output.shape == inputs[0].shape
    assert torch.isfinite(output).all()
    assert not model.training

    model, optimizer, loss = sample.train()
    before = seeded(loss, model)
    before.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    optimizer.step()
    assert model.training
    assert seeded(loss, model) < before


def seeded(loss: Callable[[Any], Any], model: Any) -> Any:
    """The loss with the same random draws (of dropout) at every call."""
    torch.manual_seed(0)
    return loss(model)


def test_the_block_attends_to_the_past_only() -> None:
    from advisor.samples import transformer_block

    model, (hidden,) = transformer_block.inference()
    changed = hidden.clone()
    changed[:, -1] += 1
    with torch.no_grad():
        assert torch.equal(model(hidden)[:, :-1], model(changed)[:, :-1])


def test_the_norm_equals_torchs_own() -> None:
    from advisor.samples.transformer_block import RMSNorm

    torch.manual_seed(0)
    norm, hidden = RMSNorm(64), torch.randn(3, 64)
    expected = torch.nn.functional.rms_norm(hidden, (64,), norm.weight, norm.epsilon)
    assert torch.allclose(norm(hidden), expected, atol=1e-6)


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    """The defining property: <R(m) q, R(n) k> is a function of m - n."""
    from advisor.samples.transformer_block import rotary_table, rotate

    torch.manual_seed(0)
    cosines, sines = rotary_table(16, 8)
    query, key = (torch.randn(8).expand(1, 1, 16, 8) for _ in range(2))
    turned_query, turned_key = rotate(query, cosines, sines), rotate(key, cosines, sines)
    assert torch.allclose(turned_query.norm(dim=-1), query.norm(dim=-1), atol=1e-5)
    scores = (turned_query @ turned_key.transpose(-1, -2))[0, 0]
    for distance in range(-3, 4):
        diagonal = scores.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-4)
