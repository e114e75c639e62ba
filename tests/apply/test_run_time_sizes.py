"""Kernels in graphs that were compiled for any number of rows: right at each, and no new graphs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sympy
import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
)
from torch.nn import functional

pytest.importorskip("triton", reason="kernels need triton")

from advisor.apply.kernels import ReadyKernel
from advisor.apply.rewrite import Swap, rewrite
from advisor.apply.run_time_sizes import MAX_ROWS
from advisor.model.joining import join
from advisor.model.launch import LaunchConfig
from advisor.model.sizes import Size
from advisor.verify.region import region_disagreement
from analyzers.independent import candidates
from analyzers.row_programs import find_row_programs
from collectors.live.fx_graph import Lowered
from tests.apply.test_rewrite import assert_close_in_rows, swapped
from tests.builders import captured as models
from tests.builders.forked import Forked
from tests.builders.scans import refusals_of, scans_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _fresh_kernels() -> Iterator[None]:
    yield
    kernel_side_table.reset_table()


# --- the very kernels -----------------------------------------------------------------------------


def test_generated_kernels_run_in_one_graph_for_any_number_of_rows(interpreting: Forked) -> None:
    """Every scheme of rows, an inner size that a mask needs, a stride that follows from one."""
    done = interpreting.run("-m", "tests.builders.interpreted_graphs", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for case in found:
        assert case["graphs"] == 1, case
        assert case["refused"] == [None], case
        assert max(case["errors"]) < 1e-5, case
    told = {case["name"]: case["at run time"] for case in found}
    plain = ["n_rows"]
    assert told == {
        "registers": plain, "looped": plain, "online": plain, "split": plain, "product": plain,
        "inner size": ["n_rows", "size_1"],
        "transposed": ["in1_stride_1", "n_rows"],
        "looked up": ["in1_rows", "n_rows"],
        "column sums": plain,
    }  # fmt: skip


# --- graphs, kernels run by their plans -----------------------------------------------------------


def dynamic(step: Callable[..., Any], *inputs: torch.Tensor, axes: tuple[int, ...]) -> Lowered:
    """The graph of a step, compiled for any size of one axis of each input (-1: of none)."""
    for tensor, axis in zip(inputs, axes, strict=True):
        if axis >= 0:
            torch._dynamo.mark_dynamic(tensor, axis)
    (graph,) = models.captured(step, *inputs).graphs
    return graph.lowered


def ready(lowered: Lowered, config: LaunchConfig | None = None) -> list[ReadyKernel]:
    return [models.ready(plan, config) for plan in models.plans_of(lowered)]


def arguments_at(graph: fx.Graph, size: int) -> list[Any]:
    """Random arguments where every symbol is `size`."""
    generator = torch.Generator().manual_seed(size)

    def number(value: Any) -> int:
        if isinstance(value, int):
            return value
        held = value.node.expr
        return int(held.subs(dict.fromkeys(held.free_symbols, size)))

    found: list[Any] = []
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            found.append(number(value))
            continue
        shape, strides = map(number, value.shape), map(number, value.stride())
        made = torch.empty_strided(tuple(shape), tuple(strides), dtype=value.dtype)
        found.append(made.random_(0, 9, generator=generator).to(value.dtype) / 7)
    return found


def assert_same_at(lowered: Lowered, copy: Lowered, kernels: list[ReadyKernel], size: int) -> None:
    arguments = arguments_at(lowered.fx_graph, size)
    want = models.execute(lowered, arguments)
    got = models.execute(copy, arguments, kernels)
    for mine, theirs in zip(got, want, strict=True):
        if isinstance(theirs, torch.Tensor):
            assert mine.shape == theirs.shape
            assert mine.stride() == theirs.stride()
            assert_close_in_rows(mine, theirs, 1e-5)


def guards(lowered: Lowered) -> list[sympy.Basic]:
    values = (node.meta["val"] for node in lowered.fx_graph.find_nodes(op="placeholder"))
    symbol = next(value for value in values if isinstance(value, torch.SymInt))
    return [guard.expr for guard in symbol.node.shape_env.guards]


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, dim=-1)


def of_heads(x: torch.Tensor) -> torch.Tensor:
    """Rows of four axes, of which memory has other orders before and after."""
    heads = x.unflatten(-1, (4, 16)).transpose(1, 2)
    return functional.layer_norm(heads, (16,)).transpose(1, 2).flatten(2)


def group_norm(x: torch.Tensor) -> torch.Tensor:
    return functional.silu(functional.group_norm(x, 4))


def of_places(x: torch.Tensor) -> torch.Tensor:
    """A mask that is computed from the number of the row, of which nothing is read."""
    rows, columns = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])
    return torch.softmax(torch.where(columns <= rows, x, -1e9), -1)


def in_other_order(x: torch.Tensor) -> torch.Tensor:
    return torch.layer_norm(x.transpose(0, 1) * 2, (24,))


@pytest.mark.parametrize(
    ("step", "shape", "axis"),
    [
        (softmax, (6, 40), 0),
        (softmax, (2, 6, 40), 1),
        (of_heads, (2, 6, 64), 1),
        (of_heads, (3, 6, 64), 0),
        (group_norm, (6, 8, 5, 7), 0),
        (of_places, (6, 40), 0),
        (in_other_order, (5, 6, 24), 0),
        (in_other_order, (5, 6, 24), 1),
    ],
    ids=[
        "rows",
        "inner rows",
        "heads of sequences",
        "heads of batches",
        "group norm",
        "places",
        "inner rows in another order",
        "outer rows in another order",
    ],
)
def test_a_swapped_graph_is_right_at_every_size(
    step: Callable[..., Any], shape: tuple[int, ...], axis: int
) -> None:
    lowered = dynamic(step, torch.randn(*shape), axes=(axis,))
    kernels = ready(lowered)
    before = guards(lowered)
    copy, outcomes = swapped(lowered, kernels)
    assert [o.refused for o in outcomes] == [None] * len(outcomes)
    assert outcomes
    for size in (6, 2, 33, 1):
        assert_same_at(lowered, copy, kernels, size)
    # The one thing that is asked of a size: that row numbers fit into 32 bits.
    new = guards(lowered)[len(before) :]
    assert all(isinstance(g, sympy.Le) and g.rhs.is_number for g in new)
    assert all(g.rhs * 4096 >= MAX_ROWS for g in new), new


def test_sizes_of_no_rows_launch_nothing() -> None:
    """A graph can come to no rows where its own sizes are what is left of others."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x[2:] * 2, dim=-1)

    lowered = dynamic(step, torch.randn(6, 40), axes=(0,))
    kernels = ready(lowered)
    copy, outcomes = swapped(lowered, kernels)
    assert [o.refused for o in outcomes] == [None]
    for size in (9, 3, 2):
        assert_same_at(lowered, copy, kernels, size)


def test_gradients_over_all_rows() -> None:
    """Forward and backward of a training step, with sums over rows of any number."""
    model = torch.nn.Sequential(
        torch.nn.Linear(48, 48), torch.nn.LayerNorm(48), torch.nn.Linear(48, 16)
    )
    x = torch.randn(6, 48)
    torch._dynamo.mark_dynamic(x, 0)
    total = 0
    for item in models.captured_training(model, x).graphs:
        kernels = ready(item.lowered)
        copy, outcomes = swapped(item.lowered, kernels)
        assert [o.refused for o in outcomes] == [None] * len(outcomes)
        total += sum(o.swap.site.run_time is not None for o in outcomes)
        for size in (6, 31):
            assert_same_at(item.lowered, copy, kernels, size)
    assert total >= 2


def test_what_proves_a_plan_does_not_fix_its_sizes() -> None:
    lowered = dynamic(softmax, torch.randn(6, 40), axes=(0,))
    (kernel,) = ready(lowered)
    before = guards(lowered)
    (site,) = kernel.plan.sites
    assert region_disagreement(kernel.plan, site, lowered.fx_aliases, models.CPU) is None
    assert guards(lowered) == before
    assert [o.refused for o in swapped(lowered, [kernel])[1]] == [None]


# --- refused --------------------------------------------------------------------------------------


def reasons(lowered: Lowered, kernels: list[ReadyKernel]) -> list[str | None]:
    """Why nothing was swapped; what was begun is taken back."""
    copy, outcomes = swapped(lowered, kernels)
    kinds = [node.target for node in copy.fx_graph.nodes]
    assert triton_kernel_wrapper_functional not in kinds
    assert kinds == [node.target for node in lowered.fx_graph.nodes]
    return [outcome.refused for outcome in outcomes]


def test_rows_of_unknown_length_are_refused() -> None:
    lowered = dynamic(softmax, torch.randn(6, 40), axes=(1,))
    assert reasons(lowered, ready(lowered)) == ["the length of its rows is only known at run time"]


def test_a_group_of_programs_is_refused() -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x * 2, -1), torch.layer_norm(y, (24,))

    lowered = dynamic(step, torch.randn(6, 40), torch.randn(5, 24), axes=(0, 0))
    small, _ = candidates(find_row_programs(lowered.graph), lowered.graph.phase)
    kernel = models.ready(join([item.plan for item in small], "0" * 16, "both"))
    why = "its sizes are only known at run time, and a group is called with known ones"
    assert reasons(lowered, [kernel]) == [why]


def test_a_scan_has_no_site_where_sizes_are_unknown() -> None:
    def step(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for place in range(8):
            state = a[:, place] * state + x[:, place]
            states.append(state)
        return torch.stack(states, 1)

    known = models.captured(step, torch.rand(6, 8, 16), torch.randn(6, 8, 16)).graphs[0].lowered
    (plan,) = scans_of(known)
    torch.compiler.reset()
    lowered = dynamic(step, torch.rand(6, 8, 16), torch.randn(6, 8, 16), axes=(0, 0))
    assert refusals_of(lowered) == ["its sizes are only known at run time"]
    assert reasons(lowered, [models.ready(plan)]) == []


def with_first_site(kernel: ReadyKernel, **sizes: Any) -> ReadyKernel:
    """The kernel of a plan with another site before its own."""
    (site,) = kernel.plan.sites
    other = msgspec.structs.replace(site, **sizes)
    plan = msgspec.structs.replace(kernel.plan, sites=(other, site))
    return ReadyKernel(plan, kernel.source, kernel.config, kernel.path, kernel.functions)


def test_a_size_that_weighs_more_than_that_it_was_tuned_for_is_refused() -> None:
    lowered = dynamic(softmax, torch.randn(600, 40), axes=(0,))
    (kernel,) = ready(lowered)
    small = with_first_site(kernel, row_sizes=(6,))
    assert reasons(lowered, [small]) == [
        "most of what was seen has 600 rows, and its kernel was tuned for 6"
    ]
    often = with_first_site(kernel, row_sizes=(6,), executions=200.0)
    assert [o.refused for o in swapped(lowered, [often])[1]] == [None]


def test_columns_that_were_not_verified_are_refused() -> None:
    lowered = dynamic(softmax, torch.randn(6, 40), axes=(0,))
    (kernel,) = ready(lowered)
    (site,) = kernel.plan.sites
    plan = msgspec.structs.replace(
        kernel.plan, sites=(msgspec.structs.replace(site, columns=48, row_sizes=(6,)),)
    )
    other = ReadyKernel(plan, kernel.source, kernel.config, kernel.path, kernel.functions)
    assert reasons(lowered, [other]) == [
        "rows of 40 columns were not verified, those of its sites were"
    ]


def test_a_size_that_no_node_has_is_refused() -> None:
    """Sites found in a graph name its sizes; another name leads nowhere."""
    lowered = dynamic(softmax, torch.randn(6, 40), axes=(0,))
    (kernel,) = ready(lowered)
    (site,) = kernel.plan.sites
    assert site.run_time is not None
    gone = msgspec.structs.replace(
        site.run_time, row_sizes=(Size(coefficient=1, symbols=("nowhere",)),)
    )
    site = msgspec.structs.replace(site, run_time=gone)
    copy = lowered.copy()
    outcomes = rewrite(
        copy.fx_graph, copy.fx_node, copy.fx_aliases, [Swap(kernel, kernel.plan, site)]
    )
    assert outcomes[0].refused == "its size nowhere is not at hand where it is called"
    assert len(copy.fx_graph.nodes) == len(lowered.fx_graph.nodes)
