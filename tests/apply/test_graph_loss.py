"""Losses over a vocabulary, rewritten on captured Dynamo graphs: same numbers, no whole logits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import aot_eager
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.apply.chunked_loss import chunked_cross_entropy
from advisor.apply.graph.loss import rewrite_losses
from advisor.apply.graph.records import Rewritten
from advisor.apply.recipe import UNCHANGED
from advisor.pipeline.backend import SwapLog, recipe_backend
from tests.apply.test_graph_attention import dynamo_graph
from tests.builders.losses import (
    BATCH,
    CHUNKED,
    CLASSES,
    FEATURES,
    LENGTH,
    WHOLE,
    LossCase,
    loss_inputs,
    plain,
    shifted_and_upcast,
    two_losses,
)

Tensor = torch.Tensor
CHUNK = 4


def rewritten(
    function: Callable[..., Any], inputs: Sequence[Tensor]
) -> tuple[fx.GraphModule, fx.GraphModule, list[Any], tuple[Rewritten, ...]]:
    original, given = dynamo_graph(function, inputs)
    changed = copy.deepcopy(original)
    return original, changed, given, rewrite_losses(changed, chunk=CHUNK)


def results(function: Callable[..., Any], given: Sequence[Any], scale: float = 1.0) -> list[Tensor]:
    """The loss, and the gradients of it times `scale`, by every input that takes one."""
    leaves = [
        x.detach().clone().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x
        for x in given
    ]
    out = function(*leaves)
    loss = out[0] if isinstance(out, tuple | list) else out
    (loss * scale).backward()
    found = [x.grad for x in leaves if isinstance(x, Tensor) and x.grad is not None]
    return [loss.detach(), *found]


def calls(gm: fx.GraphModule) -> list[fx.Node]:
    return gm.graph.find_nodes(op="call_function", target=chunked_cross_entropy)


def backend_into(
    records: list[Rewritten], then: Callable[..., Any] = aot_eager
) -> Callable[..., Any]:
    def backend(gm: fx.GraphModule, given: list[Any]) -> Any:
        records.extend(rewrite_losses(gm, chunk=CHUNK))
        return then(gm, given)

    torch._dynamo.reset()
    return backend


@pytest.mark.parametrize("case", CHUNKED, ids=lambda case: case.name)
def test_spelling_is_replaced_exactly(case: LossCase) -> None:
    original, changed, given, records = rewritten(case.function, loss_inputs(torch.float64))
    assert [(r.refused, r.route) for r in records] == [(None, "chunked_loss")]
    (call,) = calls(changed)
    for name, value in case.expected.items():
        assert call.kwargs[name] == (pytest.approx(value) if name == "cut" else value)
    for one, two in zip(results(original, given), results(changed, given), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-10, atol=1e-12)
    assert rewrite_losses(changed) == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("case", CHUNKED, ids=lambda case: case.name)
def test_error_is_at_most_twice_that_of_eager(case: LossCase, dtype: torch.dtype) -> None:
    wanted = results(*dynamo_graph(case.function, loss_inputs(torch.float64)))
    original, changed, given, _ = rewritten(case.function, loss_inputs(dtype))
    before, after = results(original, given), results(changed, given)
    for reference, one, two in zip(wanted, before, after, strict=True):
        own = (one.double() - reference).norm()
        ours = (two.double() - reference).norm()
        allowed = 2 * own + reference.norm() * torch.finfo(one.dtype).eps
        assert one.dtype == two.dtype
        assert ours <= allowed, (own, ours)


@pytest.mark.parametrize(("case", "reason"), WHOLE, ids=lambda x: getattr(x, "name", ""))
def test_what_needs_its_logits_whole_is_left_as_it_was(case: LossCase, reason: str | None) -> None:
    gm, _ = dynamo_graph(case.function, loss_inputs(torch.float32))
    before = str(gm.graph)
    records = rewrite_losses(gm, chunk=CHUNK)
    if reason is None:
        assert records == ()
    else:
        (record,) = records
        assert record.refused is not None
        assert reason in record.refused
    assert str(gm.graph) == before


def test_two_losses_are_two_sites() -> None:
    original, changed, given, records = rewritten(two_losses, loss_inputs(torch.float64))
    assert [r.refused for r in records] == [None, None]
    for one, two in zip(results(original, given), results(changed, given), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-10, atol=1e-12)


class Sizes(TorchDispatchMode):
    """The largest number of elements of a tensor that any op makes."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, tuple | list) else (out,):
            if isinstance(item, Tensor):
                self.most = max(self.most, item.numel())
        return out


def test_logits_never_exist_whole() -> None:
    """Rows by classes is the largest number; chunks, weight and rows stay below it."""
    inputs = loss_inputs(torch.float32)
    original, changed, given, _ = rewritten(shifted_and_upcast, inputs)
    whole = BATCH * (LENGTH - 1) * CLASSES
    assert max(CHUNK * CLASSES, CLASSES * FEATURES + 1) > whole // 2  # the case can tell
    with Sizes() as before:
        results(original, given)
    with Sizes() as after:
        results(changed, given)
    assert before.most >= whole
    assert after.most == max(CLASSES * FEATURES, CHUNK * CLASSES)


def test_the_backward_pass_of_a_compiled_step_has_no_projection() -> None:
    """The partitioner of a compiler saves the gradients, and computes nothing again."""
    graphs: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, _: list[Any]) -> Any:
        graphs.append(gm)
        return gm

    compiler = aot_autograd(
        fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition
    )
    records: list[Rewritten] = []
    backend = backend_into(records, compiler)
    compiled = torch.compile(shifted_and_upcast, backend=backend, fullgraph=True)
    found = results(compiled, loss_inputs(torch.float32))
    torch.testing.assert_close(found, results(shifted_and_upcast, loss_inputs(torch.float32)))
    forward, backward = (
        [n.target for n in gm.graph.nodes if n.op == "call_function"] for gm in graphs
    )
    ours = torch.ops.fusion_advisor.chunked_cross_entropy.default
    assert forward.count(ours) == 1
    assert ours not in backward
    assert not {torch.ops.aten.mm.default, torch.ops.aten.addmm.default} & set(backward)
    assert [r.refused for r in records] == [None]


@pytest.mark.parametrize("scale", [1.0, 1024.0, 1 / 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_scaled_gradients_keep_their_precision(dtype: torch.dtype, scale: float) -> None:
    """As with a gradient scaler, or a loss divided by the number of accumulated batches."""
    wanted = results(plain, loss_inputs(torch.float64), scale)
    _, changed, given, _ = rewritten(plain, loss_inputs(dtype))
    before, after = results(plain, loss_inputs(dtype), scale), results(changed, given, scale)
    for reference, one, two in zip(wanted, before, after, strict=True):
        own = (one.double() - reference).norm()
        ours = (two.double() - reference).norm()
        assert ours <= 2 * own + reference.norm() * torch.finfo(dtype).eps


def test_gradients_add_up_over_several_backward_passes() -> None:
    compiled = torch.compile(plain, backend=backend_into([]), fullgraph=True)
    ours, theirs = loss_inputs(torch.float32), loss_inputs(torch.float32)
    for seed in range(3):
        labels = loss_inputs(torch.float32, seed)[-1]
        for function, inputs in ((compiled, ours), (plain, theirs)):
            (function(*inputs[:3], labels) / 3).backward()
    for one, two in zip(theirs[:2], ours[:2], strict=True):
        torch.testing.assert_close(two.grad, one.grad)


def test_autocast_keeps_its_dtypes() -> None:
    def function(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return plain(torch.tanh(h), w, b, y)

    inputs = loss_inputs(torch.float32)
    records: list[Rewritten] = []
    compiled = torch.compile(function, backend=backend_into(records), fullgraph=True)
    found, wanted = results(compiled, inputs), results(function, inputs)
    exact = results(lambda h, w, b, y: plain(torch.tanh(h), w, b, y), loss_inputs(torch.float64))
    assert [r.refused for r in records] == [None]
    for reference, one, two in zip(exact, wanted, found, strict=True):
        assert one.dtype == two.dtype
        own, ours = ((x.double() - reference).norm() for x in (one, two))
        assert ours <= 2 * own + reference.norm() * torch.finfo(torch.bfloat16).eps


def test_autocast_around_the_compiled_call_is_the_same() -> None:
    inputs = loss_inputs(torch.float32)
    compiled = torch.compile(plain, backend=backend_into([]), fullgraph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = compiled(*inputs), plain(*inputs)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


def test_without_gradients_only_the_loss_is_computed() -> None:
    inputs = loss_inputs(torch.float32)
    compiled = torch.compile(plain, backend=backend_into([]), fullgraph=True)
    _, changed, given, _ = rewritten(plain, inputs)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs), plain(*inputs))
        with Sizes() as seen:
            changed(*given)
    assert seen.most == max(CHUNK * CLASSES, BATCH * LENGTH * FEATURES)


def test_a_frozen_weight_gets_no_gradient() -> None:
    h, w, b, y = loss_inputs(torch.float32)
    w.requires_grad_(False)
    compiled = torch.compile(plain, backend=backend_into([]), fullgraph=True)
    (found,) = torch.autograd.grad(compiled(h, w, b, y), h)
    torch.testing.assert_close(found, torch.autograd.grad(plain(h, w, b, y), h)[0])


def test_sizes_known_at_run_time_need_no_recompilation() -> None:
    records: list[Rewritten] = []
    compiled = torch.compile(shifted_and_upcast, backend=backend_into(records), fullgraph=True)
    for length in (9, 5, 12, 7):
        h, w, b, _ = loss_inputs(torch.float32)
        h = torch.randn(3, length, FEATURES, requires_grad=True)
        y = torch.randint(0, CLASSES, (3, length))
        expected = torch.autograd.grad(shifted_and_upcast(h, w, b, y), (h, w))
        found = torch.autograd.grad(compiled(h, w, b, y), (h, w))
        torch.testing.assert_close(found, expected)
    # The first sizes as they are, all others in one graph.
    assert [r.refused for r in records] == [None, None]
    assert records[1].what == "cross-entropy of any number of rows over 53 classes"


def test_where_no_memory_is_saved_the_loss_stays() -> None:
    gm, _ = dynamo_graph(plain, loss_inputs(torch.float32))
    (record,) = rewrite_losses(gm)
    assert record.refused is not None
    assert record.refused.startswith("it would save no memory")


def test_record_says_what_is_saved() -> None:
    def loss(h: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return functional_loss(h, w, y)

    def functional_loss(h: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(h @ w.t(), y)

    h = torch.randn(4096, 8, requires_grad=True)
    w = torch.randn(1000, 8, requires_grad=True)
    gm, _ = dynamo_graph(loss, [h, w, torch.zeros(4096, dtype=torch.long)])
    (record,) = rewrite_losses(gm)
    assert record.what == "cross-entropy of 4096 rows over 1000 classes"
    # 4096 x 1000 x 4 bytes, in whose place the compiler puts their gradient, less 1024 rows.
    assert record.changes == (
        "15.6 MiB of logits never exist whole: 1024 rows at a time, 11.7 MiB less memory at the"
        " loss",
    )
    assert record.location.file is not None


def test_the_backend_of_a_recipe_does_it_before_inductor() -> None:
    log = SwapLog()
    backend = recipe_backend(UNCHANGED.with_action("chunked_loss"), log)
    h = torch.randn(600, FEATURES, requires_grad=True)
    w = torch.randn(CLASSES, FEATURES, requires_grad=True)
    y = torch.randint(0, CLASSES, (600,))

    def loss(h: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(h.tanh() @ w.t(), y).square()

    torch._dynamo.reset()
    found = torch.compile(loss, backend=backend, fullgraph=True)(h, w)
    torch.testing.assert_close(found, loss(h, w))
    torch.testing.assert_close(
        torch.autograd.grad(found, (h, w)), torch.autograd.grad(loss(h, w), (h, w))
    )
    assert [(r.refused, r.route) for r in log.rewritten] == [(None, "chunked_loss")]
