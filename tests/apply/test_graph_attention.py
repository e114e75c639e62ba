"""Attention written out, rewritten on captured Dynamo graphs: same numbers, same gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional

from advisor.apply.graph.attention import rewrite_attention
from advisor.apply.graph.records import Rewritten
from tests.builders.attention import FUSED, Case

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
    case: Case, dtype: torch.dtype
) -> tuple[fx.GraphModule, fx.GraphModule, list[Any], tuple[Rewritten, ...]]:
    inputs = [x.requires_grad_(x.is_floating_point()) for x in case.inputs(dtype)]
    original, given = dynamo_graph(case.function, inputs)
    changed = copy.deepcopy(original)
    return original, changed, given, rewrite_attention(changed)


def results(gm: fx.GraphModule, given: Sequence[Any], unused: int = 0) -> list[Tensor]:
    """Output and gradients of every input that takes one."""
    leaves = [
        x.detach().clone().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x
        for x in given
    ]
    (out,) = gm(*leaves)
    weight = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).to(out.dtype)
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
