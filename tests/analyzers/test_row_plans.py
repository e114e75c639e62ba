"""Canonical programs: they compute what the graph computes, and structure alone decides their form."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from advisor.model.base import Location
from advisor.model.graph import Graph, Node, TensorMeta, is_value, literal_value, node_of
from advisor.model.optable import FLOAT_DTYPES, spec_of
from advisor.model.plan import FusionPlan, PlanOp
from advisor.verify.interpret import evaluate
from analyzers.dataflow import dataflow
from analyzers.row_plans import canonical_program, cluster, module_pattern, plan_of
from analyzers.row_programs import Group, find_row_programs
from tests.builders.graph import Sketch, assert_legal, broadcast

# --- a graph run node by node, in float64 -------------------------------------------------------------


def laid_out(values: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """`values` stored with the strides of `meta`, as a float64 or integer tensor."""
    shape, strides = [int(s) for s in meta.shape], [int(s) for s in meta.strides]
    stored = torch.empty(
        sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1, dtype=values.dtype
    )
    view = stored.as_strided(shape, strides)
    kept = [slice(0, 1) if stride == 0 else slice(None) for stride in strides]
    view[tuple(kept)] = values[tuple(kept)]
    return view


def run(graph: Graph, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every value of a graph of table ops; floats are float64 throughout."""
    values = dict(inputs)
    for node in graph.nodes:
        if node.op != "opaque":
            result = call(node, [values[a] if is_value(a) else literal_value(a) for a in node.args])
            values[node.value()] = laid_out(
                result.expand([int(s) for s in node.outputs[0].shape]), node.outputs[0]
            )
    return values


def call(node: Node, args: list[torch.Tensor | float]) -> torch.Tensor:
    meta = node.outputs[0]
    first = args[0]
    kind = torch.float64 if meta.dtype in FLOAT_DTYPES else getattr(torch, meta.dtype)
    if spec_of(node.op).kind == "reduction":
        assert isinstance(first, torch.Tensor)
        axes = node.attributes["axes"]
        keep = len(meta.shape) == first.dim()
        if node.op == "var":
            return torch.var(first, axes, correction=1, keepdim=keep)
        return getattr(torch, node.op)(first, axes, keepdim=keep)
    if spec_of(node.op).kind == "view":
        assert isinstance(first, torch.Tensor)
        return getattr(first, node.op)([int(s) for s in meta.shape])
    if node.op == "cast":
        assert isinstance(first, torch.Tensor)
        return first.to(kind)
    whole = [
        a if isinstance(a, torch.Tensor) else torch.tensor(a, dtype=torch.float64) for a in args
    ]
    name = {"div": "true_divide"}.get(node.op, node.op)
    return getattr(torch, name)(*whole).to(kind)


def as_plan_input(plan: FusionPlan, position: int, value: torch.Tensor) -> torch.Tensor:
    """What the kernel would read: the stored tensor at the site's strides, one element where it does not vary."""
    site, item = plan.sites[0], plan.inputs[position]
    sizes = (*site.row_sizes, site.columns)
    shape = [size if span else 1 for size, span in zip(sizes, item.spans, strict=True)]
    strides = [
        s if span else 0 for s, span in zip(site.input_strides[position], item.spans, strict=True)
    ]
    if item.dense:
        expected = list(torch.empty(shape).stride())
        assert all(n == 1 or a == b for n, a, b in zip(shape, strides, expected, strict=True))
    return value.as_strided(shape, strides)


def assert_equals_graph(
    graph: Graph, group: Group, values: Mapping[str, torch.Tensor]
) -> FusionPlan:
    """The group's program gives the graph's values at every output."""
    program = canonical_program(dataflow(graph), group)
    plan = plan_of([program], graph.phase, "planted")
    plan.check()
    given_inputs = [as_plan_input(plan, i, values[v]) for i, v in enumerate(program.site.inputs)]
    for name, result in zip(
        program.site.outputs, evaluate(plan, given_inputs, "exact"), strict=True
    ):
        want = values[name].reshape(-1)
        assert result.numel() == want.numel(), (
            f"{name} is written with {result.numel()} of {want.numel()} elements"
        )
        torch.testing.assert_close(result.reshape(-1), want, rtol=1e-9, atol=1e-9, equal_nan=True)
    return plan


# --- random graphs ------------------------------------------------------------------------------------

UNARY = ("neg", "abs", "tanh", "sigmoid", "relu", "cos", "erf")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
KINDS = ("unary", "binary", "binary", "where", "reduce", "norm", "norm", "reshape", "expand")
REDUCTIONS = ("sum", "mean", "amax", "amin", "var")


@st.composite
def random_graphs(draw: st.DrawFn) -> tuple[Graph, dict[str, torch.Tensor]]:
    """Pointwise, reduction and view ops on a few inputs that broadcast against each other, in any layout."""
    sizes = st.sampled_from((3, 4, 2))
    full = (draw(sizes), *draw(st.lists(st.sampled_from((3, 4, 1)), max_size=2)), draw(sizes))
    sketch = Sketch()
    values: dict[str, torch.Tensor] = {}
    pool: list[str] = []
    for number in range(draw(st.integers(1, 4))):
        shape = full if number == 0 else tuple(draw(st.sampled_from((size, 1))) for size in full)
        shape = shape[draw(st.integers(0, len(shape))) if number else 0 :]
        pool.append(draw_input(draw, sketch, shape, values))
    sources = list(pool)
    start = pool[0] if sketch.meta(pool[0]).dtype != "bool" else sketch.cast(pool[0], "float32")
    pool += [
        start,
        sketch.reduce(draw(st.sampled_from(REDUCTIONS[:4])), start, keepdim=draw(st.booleans())),
    ]
    for _ in range(draw(st.integers(2, 10))):
        made = draw_op(draw, sketch, pool, sources, full)
        if made is not None:
            pool.append(made)
    used = {v for node in sketch.nodes for v in node.value_args}
    extra = draw(st.sets(st.sampled_from(pool), max_size=2))
    outputs = [v for v in pool if v not in sources and (v not in used or v in extra)]
    graph = sketch.build(*outputs)
    return graph, run(graph, values)


def draw_input(
    draw: st.DrawFn, sketch: Sketch, shape: tuple[int, ...], values: dict[str, torch.Tensor]
) -> str:
    """An input in row-major order, with its axes stored in another order, padded, or repeated in place."""
    order = draw(st.permutations(range(len(shape))))
    padding = draw(st.sampled_from((0, 0, 3)))
    repeated = (
        draw(st.sets(st.integers(0, 3), max_size=1)) if draw(st.integers(0, 3)) == 3 else set()
    )
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        if axis not in repeated:
            strides[axis] = step
            step = step * shape[axis] + padding
    boolean = draw(st.integers(0, 9)) == 0
    name = sketch.input(*shape, dtype="bool" if boolean else "float32", strides=tuple(strides))
    generator = torch.Generator().manual_seed(len(values))
    drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
    values[name] = laid_out(drawn > 0 if boolean else drawn, sketch.meta(name))
    return name


def draw_op(
    draw: st.DrawFn, sketch: Sketch, pool: list[str], sources: list[str], full: tuple[int, ...]
) -> str | None:
    """One more op on values that exist, or None where what was drawn does not fit."""
    value = pool[-1] if draw(st.booleans()) else draw(st.sampled_from(pool))
    meta = sketch.meta(value)
    kind = draw(st.sampled_from(KINDS))
    if meta.dtype == "bool":
        return sketch.cast(value, "float32")
    if kind == "unary":
        return sketch.op(draw(st.sampled_from(UNARY)), value)
    if kind == "reduce" and meta.shape:
        axes = draw(st.sampled_from(((-1,), (-1,), (-1,), (-2, -1), (0,))))
        axes = axes if len(meta.shape) >= len(axes) else (-1,)
        if math.prod(int(meta.shape[a]) for a in axes) > 1:
            return sketch.reduce(
                draw(st.sampled_from(REDUCTIONS)), value, axes, keepdim=draw(st.booleans())
            )
        return sketch.reduce("amax", value, axes, keepdim=draw(st.booleans()))
    if kind == "norm" and meta.shape and meta.shape[-1] != 1:
        row = sketch.reduce(draw(st.sampled_from(REDUCTIONS)), value)
        return sketch.op(draw(st.sampled_from(BINARY)), value, row)
    if kind == "reshape" and meta.shape:
        return draw_reshape(draw, sketch, value)
    if kind == "expand":
        wanted = (
            tuple(int(s) for s in broadcast(meta.shape, full)) if fits(meta.shape, full) else None
        )
        return sketch.expand(value, *wanted) if wanted else None
    other = draw(st.sampled_from(pool))
    if draw(st.integers(0, 3)) == 0:
        return sketch.op(
            "add", value, draw(st.sampled_from((0.5, -2.0, 3))), shape=sketch.meta(value).shape
        )
    if not fits(meta.shape, sketch.meta(other).shape):
        return None
    if kind == "where":
        return draw_where(draw, sketch, value, other, sources)
    if sketch.meta(other).dtype == "bool":
        other = sketch.cast(other, "float32")
    return sketch.op(draw(st.sampled_from(BINARY)), value, other)


def fits(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    return all(
        a in (b, 1) or b == 1 for a, b in zip(reversed(first), reversed(second), strict=False)
    )


def draw_where(
    draw: st.DrawFn, sketch: Sketch, value: str, other: str, sources: list[str]
) -> str | None:
    """A choice by a comparison of inputs: rounding may not decide it."""
    floats = [v for v in sources if sketch.meta(v).dtype != "bool"]
    if not floats or sketch.meta(other).dtype == "bool":
        return None
    mask = sketch.op("lt", draw(st.sampled_from(floats)), draw(st.sampled_from((0.0, 0.5))))
    shapes = (sketch.meta(mask).shape, sketch.meta(value).shape, sketch.meta(other).shape)
    if not (fits(shapes[0], shapes[1]) and fits(shapes[0], shapes[2])):
        return None
    return sketch.op("where", mask, value, other)


def draw_reshape(draw: st.DrawFn, sketch: Sketch, value: str) -> str:
    """Merge two adjacent axes, split one, or add one of size 1."""
    shape = [int(s) for s in sketch.meta(value).shape]
    at = draw(st.integers(0, len(shape) - 1))
    how = draw(st.sampled_from(("merge", "split", "one", "flat")))
    if how == "merge" and at + 1 < len(shape):
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    elif how == "split" and shape[at] % 2 == 0:
        shape[at : at + 1] = draw(st.sampled_from(([2, shape[at] // 2], [shape[at] // 2, 2])))
    elif how == "flat":
        shape = [math.prod(shape[:-1]), shape[-1]]
    else:
        shape.insert(at + 1, 1)
    return sketch.reshape(value, *shape)


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_graphs())
def test_every_group_of_a_random_graph_computes_what_the_graph_computes(
    drawn: tuple[Graph, dict[str, torch.Tensor]],
) -> None:
    graph, values = drawn
    found = find_row_programs(graph)
    event(f"{len(found.whole)} groups")
    assert_legal(graph, list(found.whole))
    for group, core in zip(found.whole, found.cores, strict=True):
        plan = assert_equals_graph(graph, group, values)
        event(f"{min(len(plan.ops), 6)} ops", f"{len(plan.outputs)} outputs")
        if core is not None:
            event("has a core")
            assert_equals_graph(graph, core, values)
    assert_legal(
        graph, [core or whole for whole, core in zip(found.whole, found.cores, strict=True)]
    )
