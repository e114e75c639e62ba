"""Canonical programs: they compute what the graph does, and structure alone decides their form."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from advisor.model.graph import Graph
from advisor.model.plan import FusionPlan
from advisor.verify.interpret import evaluate
from analyzers.dataflow import dataflow
from analyzers.row_plans import Program, canonical_program, cluster, module_pattern, plan_of
from analyzers.row_programs import Group, find_row_programs
from collectors.live.capture import capture
from collectors.live.workload import load_workload
from tests.builders.graph import Sketch, assert_legal, broadcast
from tests.builders.renamed import renamed
from tests.builders.torch_graph import laid_out, run


def as_plan_input(plan: FusionPlan, position: int, value: torch.Tensor) -> torch.Tensor:
    """What the kernel would read: the stored tensor at the strides of the site."""
    site, item = plan.sites[0], plan.inputs[position]
    spans = plan.along(item)
    shape = [size if span else 1 for size, span in zip(site.sizes, spans, strict=True)]
    strides = [
        s if span else 0 for s, span in zip(site.input_strides[position], spans, strict=True)
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
    found = evaluate(plan, given_inputs, "exact")
    for position, (name, result) in enumerate(zip(program.site.outputs, found, strict=True)):
        want = values[name]
        assert result.numel() == want.numel(), (
            f"{name} is written with {result.numel()} of {want.numel()} elements"
        )
        memory = result.contiguous()
        if program.site.output_strides:
            strides = program.site.output_strides[position]
            shape = plan.outputs[position].shape(program.site.row_sizes, program.site.column_axes)
            memory = torch.empty_strided(shape, strides, dtype=result.dtype).copy_(result)
        got = memory.as_strided(want.shape, want.stride())
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, equal_nan=True)
    return plan


# --- random graphs --------------------------------------------------------------------------------

UNARY = ("neg", "abs", "tanh", "sigmoid", "relu", "cos", "erf")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
KINDS = ("unary", "binary", "binary", "where", "reduce", "norm", "norm", "reshape", "expand")
REDUCTIONS = ("sum", "mean", "amax", "amin", "var")


@st.composite
def random_graphs(draw: st.DrawFn) -> tuple[Graph, dict[str, torch.Tensor]]:
    """Pointwise, reduction and view ops on a few inputs that broadcast, in any layout."""
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
    if draw(st.booleans()):
        pool.append(draw_input(draw, sketch, full, values))
        start = sketch.op("mul", start, pool[-1], dtype="float32")
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
    """An input in row-major or another order of axes, padded, or repeated in place."""
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


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(random_graphs())
def test_every_group_of_a_random_graph_computes_what_the_graph_computes(
    drawn: tuple[Graph, dict[str, torch.Tensor]],
) -> None:
    graph, values = drawn
    # Larger numbers lose more digits to cancellation than the comparison forgives.
    assume(all(value.double().abs().max() < 1e4 for value in values.values()))
    found = find_row_programs(graph)
    event(f"{len(found.whole)} groups")
    assert_legal(graph, list(found.whole))
    for group in found.every_group():
        plan = assert_equals_graph(graph, group, values)
        event(f"{min(len(plan.ops), 6)} ops", f"{len(plan.outputs)} outputs")
        if group.shares.again:
            event("computes something again")
    plain = [p or whole for whole, p in zip(found.whole, found.plain, strict=True)]
    assert_legal(graph, plain)
    cores = [core or whole for whole, core in zip(plain, found.cores, strict=True)]
    assert_legal(graph, cores)
    if found.others:
        event("chosen among several sets")


# --- names decide nothing -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample_graphs() -> list[Graph]:
    """The bundled block, inference and training: inference, forward and backward graph."""
    found = []
    for target in ("sample:transformer_block", "sample:transformer_block:train"):
        workload = load_workload(target, torch.device("cpu"))
        found += [item.lowered.graph for item in capture(workload, generate_code=False)[0].graphs]
    return found


def test_renaming_everything_changes_no_candidate(sample_graphs: list[Graph]) -> None:
    assert [graph.phase for graph in sample_graphs] == ["inference", "forward", "backward"]
    for graph in sample_graphs:
        other, names = renamed(graph)
        assert other.fingerprint() == graph.fingerprint()
        before, after = find_row_programs(graph), find_row_programs(other)
        assert len(before.whole) >= 2
        for mine, theirs in zip(
            (*before.whole, *before.cores), (*after.whole, *after.cores), strict=True
        ):
            if mine is None or theirs is None:
                assert mine is theirs
                continue
            assert [names[name] for name in mine.members] == list(theirs.members)
            first = canonical_program(dataflow(graph), mine)
            second = canonical_program(dataflow(other), theirs)
            assert first.signature() == second.signature()
            assert first.site.input_strides == second.site.input_strides
        assert [(names[m.seed], names[m.node]) for m in before.near_misses] == [
            (m.seed, m.node) for m in after.near_misses
        ]


def test_groups_of_the_sample_are_legal_together(sample_graphs: list[Graph]) -> None:
    for graph in sample_graphs:
        found = find_row_programs(graph)
        assert_legal(graph, found.whole)
        assert_legal(graph, [core or w for w, core in zip(found.whole, found.cores, strict=True)])


# --- one program, one signature -------------------------------------------------------------------


def program_of(graph: Graph) -> Program:
    (group,) = find_row_programs(graph).whole
    return canonical_program(dataflow(graph), group)


def norm(
    *shape: int,
    dtype: str = "float32",
    epsilon: float = 1e-6,
    strides: tuple[int, ...] | None = None,
) -> Graph:
    s = Sketch()
    x, weight = s.input(*shape, dtype=dtype, strides=strides), s.input(shape[-1], dtype=dtype)
    scale = s.op("rsqrt", s.op("add", s.mean(s.op("mul", x, x)), epsilon))
    return s.build(s.op("mul", s.op("mul", x, scale), weight))


def test_sizes_are_not_part_of_the_signature_but_dtypes_constants_and_layout_are() -> None:
    base = program_of(norm(64, 128)).signature()
    assert program_of(norm(32, 512)).signature() == base
    assert program_of(norm(4, 16, 128)).signature() == base
    assert program_of(norm(64, 128, dtype="bfloat16")).signature() != base
    assert program_of(norm(64, 128, epsilon=1e-5)).signature() != base
    assert program_of(norm(64, 128, strides=(256, 1))).signature() != base


def test_rows_that_every_input_walks_alike_are_one_axis() -> None:
    whole, apart = (
        program_of(norm(4, 16, 128)),
        program_of(norm(4, 16, 128, strides=(4096, 128, 1))),
    )
    assert (whole.row_axes, whole.site.row_sizes, whole.site.columns) == (1, (64,), 128)
    assert (apart.row_axes, apart.site.row_sizes, apart.site.columns) == (2, (4, 16), 128)
    assert apart.site.input_strides == ((4096, 128, 1), (0, 0, 1))
    assert [item.dense for item in apart.inputs] == [False, True]


def test_the_order_of_independent_nodes_is_not_part_of_the_signature() -> None:
    def graph(swapped: bool) -> Graph:
        s = Sketch()
        x = s.input(16, 32)
        row = s.mean(x)
        first, second = ("exp", "tanh") if not swapped else ("tanh", "exp")
        made = {op: s.op(op, s.op("sub", x, row)) for op in (first, second)}
        return s.build(made["exp"], made["tanh"])

    assert (
        program_of(graph(swapped=False)).signature() == program_of(graph(swapped=True)).signature()
    )


def test_one_input_read_in_two_ways_is_two_inputs() -> None:
    s = Sketch()
    table = s.input(32)
    square = s.input(32, 32)
    row = s.mean(s.op("mul", square, s.reshape(table, 32, 1)))
    program = program_of(s.build(s.op("add", s.op("mul", square, row), table)))
    assert sorted(program.site.inputs) == sorted([square, table, "%reshape2"])
    assert sorted(item.spans for item in program.inputs) == [
        (False, True),
        (True, False),
        (True, True),
    ]


def test_an_input_used_twice_is_one() -> None:
    s = Sketch()
    x = s.input(16, 32)
    program = program_of(s.build(s.op("sub", s.op("exp", x), s.mean(s.op("mul", x, x)))))
    assert program.site.inputs == (x,)


def test_an_expanded_input_is_read_where_it_is_stored() -> None:
    s = Sketch()
    scores, mask = s.input(2, 4, 8, 8), s.input(2, 1, 1, 8)
    program = program_of(s.build(s.softmax(s.op("add", scores, s.expand(mask, 2, 4, 8, 8)))))
    assert program.site.inputs == (scores, mask)
    assert program.inputs[1].spans == (True, False, True)
    assert program.site.row_sizes == (2, 32)
    assert program.site.input_strides[1] == (8, 0, 1)


def test_equal_programs_of_a_phase_are_one_plan_with_their_sites() -> None:
    graphs = [norm(64, 128), norm(32, 512), norm(64, 128, epsilon=1e-5)]
    programs = [program_of(graph) for graph in graphs]
    clusters = cluster([*(("forward", p) for p in programs), ("backward", programs[0])])
    assert [len(found) for found in clusters] == [2, 1, 1]
    plan = plan_of(clusters[0], "forward", "norm")
    assert [site.columns for site in plan.sites] == [128, 512]
    assert plan.phase == "forward"
    assert plan.id != plan_of(clusters[0], "backward", "norm").id
    assert plan.id == plan_of(clusters[0], "forward", "another title").id


def test_guards_hold_what_the_code_relies_on() -> None:
    program = program_of(norm(4, 16, 128, dtype="bfloat16", strides=(4096, 128, 1)))
    guards = {(g.kind, g.subject): g.value for g in plan_of([program], "inference", "t").guards}
    assert guards == {
        ("columns_at_most", "columns"): 2**30,
        ("dtype", "in0"): "bfloat16",
        ("layout", "in0"): "unit_column_stride",
        ("dtype", "in1"): "bfloat16",
        ("layout", "in1"): "row_major",
    }


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("model.layers.3.norm", "model.layers.*.norm"),
        ("0.attention", "*.attention"),
        ("layers.12", "layers.*"),
        ("conv2d.norm1", "conv2d.norm1"),
        ("blocks.1.2.norm", "blocks.*.*.norm"),
        (None, ""),
    ],
)
def test_layer_numbers_are_no_part_of_a_plans_place(path: str | None, pattern: str) -> None:
    assert module_pattern(path) == pattern
