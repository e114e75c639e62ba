"""The compiler's own kernels cut in two: its scheduler's kernels before and after, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import fx
from torch._inductor import config as inductor_config

from advisor.apply.compiler.cuts import CompiledKernel, cuts_of
from advisor.apply.compiler.names import VIEWS, keys_of
from advisor.errors import InvalidRecordError
from advisor.model.base import Phase
from advisor.model.cures import Split
from advisor.pipeline.backend import NOTHING_TOLD, SwapLog, Told, plan_backend
from advisor.pipeline.switch import GraphSwitch
from collectors.live.capture import HookPass, backend_with, no_compile_caches
from collectors.live.fx_graph import copied

Kernels = list[frozenset[str]]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    with no_compile_caches():
        yield


def _window(x: torch.Tensor) -> torch.Tensor:
    """An activation that every tap of a window computes again."""
    p = 3 * torch.sin(x) - 1.2
    total = p[:, :60]
    for i in range(1, 5):
        total = total + p[:, i : i + 60]
    return total


def _norm(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A norm with an activation, and beside it something that shares nothing with it."""
    n = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return F.gelu(n * weight), torch.tanh(y) + 1.0


def _compiled(
    function: Callable[..., Any], given: Sequence[torch.Tensor], told: Told
) -> tuple[Any, Kernels]:
    """What it returns, and its kernels by the names of the ops in them."""
    kernels: Kernels = []

    def see(scheduled: list[Any]) -> list[Any]:
        for one in scheduled:
            origins = {o.name for part in one.get_nodes() for o in part.node.origins}
            kernels.append(frozenset(origins))
        return scheduled

    settings: dict[str, Any] = {
        "_post_fusion_custom_pass": see,
        "realize_opcount_threshold": 1_000_000,
    }
    backend = plan_backend((), SwapLog(), told=told, **settings)
    torch.compiler.reset()
    return torch.compile(function, backend=backend)(*given), kernels


def _graph(function: Callable[..., Any], given: Sequence[torch.Tensor]) -> fx.Graph:
    """The post-grad graph of a function."""
    graphs: list[fx.Graph] = []

    def look(graph: fx.Graph, phase: Phase, identity: str) -> None:
        graphs.append(copied(graph))

    torch.compiler.reset()
    torch.compile(function, backend=backend_with(HookPass(look, "look")))(*given)
    return graphs[0]


def _cut(graph: fx.Graph, kernels: Kernels, part: str) -> tuple[Split, ...]:
    """The ways to cut the kernel that has an op."""
    named = [CompiledKernel(f"k{i}", tuple(names)) for i, names in enumerate(kernels)]
    return cuts_of(graph, next(kernel for kernel in named if part in kernel.nodes), named)


def test_a_producer_that_lowering_inlines_is_stored_and_kept_apart() -> None:
    x = torch.randn(32, 64)
    expected, before = _compiled(_window, [x], NOTHING_TOLD)
    assert len(before) == 1
    ways = _cut(_graph(_window, [x]), before, "sub")
    assert ways[0].words == "sub is stored once, not computed for each of 5 readers"
    result, after = _compiled(_window, [x], Told(splits=ways[:1]))
    torch.testing.assert_close(result, expected)
    # The same ops in two kernels, and none in both.
    assert len(after) == 2
    producer = next(kernel for kernel in after if "sub" in kernel and "add_3" not in kernel)
    assert producer == {"sin", "mul", "sub"}
    consumer = next(kernel for kernel in after if "add_3" in kernel)
    assert not consumer & producer
    assert consumer | producer == before[0]


def test_a_kernel_is_cut_after_its_reduction_and_nothing_else_changes() -> None:
    given = [torch.randn(16, 64), torch.randn(64), torch.randn(8, 8)]
    expected, before = _compiled(_norm, given, NOTHING_TOLD)
    ways = _cut(_graph(_norm, given), before, "mean")
    way = next(way for way in ways if way.words == "mean is a kernel with what it sums")
    result, after = _compiled(_norm, given, Told(splits=(way,)))
    for mine, other in zip(result, expected, strict=True):
        torch.testing.assert_close(mine, other)
    fused = next(kernel for kernel in before if "mean" in kernel)
    assert "erf" in fused
    assert len(after) == len(before) + 1
    assert set(before) - {fused} < set(after)
    parts = set(after) - set(before)
    assert frozenset().union(*parts) == fused
    assert {"mean" in part and "erf" in part for part in parts} == {False}


def test_every_op_can_be_a_kernel_of_its_own() -> None:
    x = torch.randn(32, 64)
    _, before = _compiled(_window, [x], NOTHING_TOLD)
    graph = _graph(_window, [x])
    way = _cut(graph, before, "sub")[-1]
    assert way.words == "every op a kernel of its own"
    computed = [n.name for n in graph.nodes if n.op == "call_function" and n.target not in VIEWS]
    _, after = _compiled(_window, [x], Told(splits=(way,)))
    assert len(after) == len(computed)


def test_ops_are_named_by_what_they_compute_not_by_how_they_are_called() -> None:
    x = torch.randn(32, 64)
    keys = keys_of(_graph(_window, [x]))
    graph = next(iter(keys)).graph
    for number, node in enumerate(graph.nodes):
        if node.op == "call_function":
            node.name = f"other_{number}"
    assert list(keys_of(graph).values()) == list(keys.values())
    assert len(set(keys.values())) == len(keys)


def test_a_split_of_another_graph_changes_nothing() -> None:
    x = torch.randn(32, 64)
    _, before = _compiled(_window, [x], NOTHING_TOLD)
    way = _cut(_graph(_window, [x]), before, "sub")[0]
    _, larger = _compiled(_window, [torch.randn(33, 64)], Told(splits=(way,)))
    assert len(larger) == 1


def test_a_switch_cuts_the_graphs_that_hold_a_split_alone() -> None:
    x = torch.randn(32, 64)

    def halves(x: torch.Tensor) -> torch.Tensor:
        y = _window(x)
        torch._dynamo.graph_break()
        return y.cos()

    switch = GraphSwitch()
    part = torch.compile(halves, backend=switch.backend())
    expected = part(x)
    seen = switch.seen()
    assert ["sub" in str(one.kernels) for one in seen] == [True, False]
    kernel = next(kernel for kernel in seen[0].kernels if "sub" in kernel.nodes)
    ways = cuts_of(seen[0].graph, kernel, seen[0].kernels)
    log = SwapLog()
    selection = switch.with_kernels((), log, Told(splits=ways[:1]))
    assert list(selection.graphs) == [0]
    assert [cut.values for cut in log.cuts] == [("sub",)]
    switch.select(selection)
    torch.testing.assert_close(part(x), expected)


def test_splits_are_data_and_are_checked() -> None:
    split = Split(kernel="k", words="w", groups=(("a" * 24,), ("b" * 24,)))
    split.check()
    assert msgspec.json.decode(msgspec.json.encode(split), type=Split) == split
    for groups in ((("a" * 24,),), (("a" * 24,), ("a" * 24,)), (("os.system",), ("b" * 24,))):
        with pytest.raises(InvalidRecordError):
            msgspec.structs.replace(split, groups=groups).check()


def test_other_choices_of_the_user_still_hold() -> None:
    x = torch.randn(32, 64)
    with inductor_config.patch(max_fusion_size=1):
        _, most = _compiled(_norm, [x, torch.randn(64), x], NOTHING_TOLD)
    way = Split(kernel="k", words="", groups=(("a" * 24,), ("b" * 24,)))
    with inductor_config.patch(max_fusion_size=1):
        _, same = _compiled(_norm, [x, torch.randn(64), x], Told(splits=(way,)))
    assert most == same
