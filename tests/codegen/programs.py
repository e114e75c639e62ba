"""Random row programs: DAGs of ops over tiles, rows, columns and scalars, and their inputs."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import torch
from hypothesis import strategies as st

from advisor.model.plan import FusionPlan, PlanOutput
from advisor.verify.interpret import evaluate
from tests.builders.plan import PlanBuilder

FLOATS = ("float32", "bfloat16", "float16")
# Bounded slopes: rounding errors of operands do not grow, so one tolerance fits every program.
UNARY = ("tanh", "sigmoid", "abs", "relu", "neg", "sin", "cos", "erf")
BINARY = ("add", "sub", "maximum", "minimum")
REDUCTIONS = ("mean", "amax", "amin", "var", "sum")

PLAIN_KINDS = ("unary", "binary", "literal", "gate", "div", "norm", "cast", "where")
KINDS = ("unary", "binary", "literal", "gate", "div", "norm", "exp", "reduce", "cast", "where",
         "peak", "softmax", "centre")  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A plan, the sizes to run it with, and how its inputs lie in memory."""

    plan: FusionPlan
    sizes: tuple[int, ...]
    columns: int
    block_rows: int
    seed: int
    inner: tuple[int, ...] = ()

    @property
    def column_sizes(self) -> tuple[int, ...]:
        """The sizes of the column axes."""
        return (self.columns, *self.inner)

    def inputs(self) -> list[torch.Tensor]:
        """Values in [-2, 2]; what is not dense is cut, transposed or both out of larger storage."""
        generator = torch.Generator().manual_seed(self.seed)
        full = (*self.sizes, *self.column_sizes)
        found = []
        for item in self.plan.inputs:
            shape = [n if s else 1 for n, s in zip(full, self.plan.along(item), strict=True)]
            kind = getattr(torch, item.dtype)
            if item.dense:
                found.append(_values(shape, kind, generator))
                continue
            stored = [*reversed(shape[:-1]), shape[-1] + 3]
            if not item.unit_stride:
                stored[-1] = 2 * shape[-1] + 1
            rows = list(range(len(shape) - 2, -1, -1))
            step = 1 if item.unit_stride else 2
            whole = _values(stored, kind, generator).permute(*rows, len(shape) - 1)
            found.append(whole[..., : step * shape[-1] : step])
        return found


def _values(shape: list[int], kind: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if kind == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    return torch.empty(shape).uniform_(-2, 2, generator=generator).to(kind)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """One to three outputs, reductions, masks, casts and broadcast inputs over 1-3 row axes."""
    axes, inner = draw(st.integers(1, 3)), draw(st.sampled_from(((), (), (3,), (16,), (2, 3))))
    make = PlanBuilder(row_axes=axes, column_axes=1 + len(inner))
    inputs = [make.input(draw(st.sampled_from(FLOATS)))]
    inputs += [_input(draw, make) for _ in range(draw(st.integers(0, 4)))]
    mask = make.input("bool") if draw(st.booleans()) else None
    parts = [_part(draw, make) for _ in range(draw(st.integers(1, 2)) if inner else 0)]
    values = [*inputs, *(make.op("add", inputs[0], part) for part in parts)]
    values.append(_reduce(draw, make, inputs[0]))
    for _ in range(draw(st.integers(2, 10))):
        values.append(_step(draw, make, values, inputs, mask))
    values.append(make.op("add", inputs[0], values[-1]))
    results = [v for v in values[len(inputs) :] if make.space(v) in ("tile", "row")]
    wanted = draw(st.lists(st.sampled_from(results), min_size=1, max_size=3, unique=True))
    strided = draw(st.lists(st.sampled_from(wanted), unique=True)) if draw(st.booleans()) else []
    turned = (
        [v for v in strided if make.space(v) == "tile"] if inner and draw(st.booleans()) else []
    )
    sizes = tuple(draw(st.integers(1, 4)) for _ in range(axes))
    widths = (1, 2, 7, 16, 33, 64, 100) if not inner else (1, 2, 7, 16)
    columns = draw(st.sampled_from(widths))
    return Program(
        plan=make.plan(
            *wanted,
            title="random",
            sizes=sizes,
            columns=(columns, *inner),
            strided=tuple(strided),
            turned=tuple(turned),
            unit_stride=draw(st.booleans()),
        ),
        sizes=sizes,
        columns=columns,
        block_rows=draw(st.sampled_from((1, 2, 4))),
        seed=draw(st.integers(0, 2**16)),
        inner=inner,
    )


@st.composite
def pointwise_programs(draw: st.DrawFn) -> Program:
    """Programs without reductions: tensors in any layout, parts of rows, several outputs."""
    axes, inner = draw(st.integers(1, 3)), draw(st.sampled_from(((), (), (3,), (16,))))
    make = PlanBuilder(row_axes=axes, column_axes=1 + len(inner))
    unit = draw(st.booleans())
    inputs = [make.input(draw(st.sampled_from(FLOATS)), dense=draw(st.booleans()))]
    inputs.append(make.input(draw(st.sampled_from(FLOATS)), dense=False, unit_stride=unit))
    inputs += [_input(draw, make) for _ in range(draw(st.integers(0, 2)))]
    values = [*inputs]
    if inner:
        values.append(make.op("mul", inputs[0], _part(draw, make)))
    for _ in range(draw(st.integers(1, 6))):
        values.append(_step(draw, make, values, inputs, None, PLAIN_KINDS))
    values.append(make.op("add", inputs[0], values[-1]))
    results = [v for v in values[len(inputs) :] if make.space(v) in ("tile", "row")]
    wanted = draw(st.lists(st.sampled_from(results), min_size=1, max_size=3, unique=True))
    strided = tuple(draw(st.lists(st.sampled_from(wanted), unique=True)))
    sizes = tuple(draw(st.integers(1, 5)) for _ in range(axes))
    columns = draw(st.sampled_from((1, 2, 7, 16) if inner else (1, 2, 7, 16, 33, 64, 100)))
    return Program(
        plan=make.plan(
            *wanted,
            title="random points",
            sizes=sizes,
            columns=(columns, *inner),
            strided=strided,
            unit_stride=draw(st.booleans()),
        ),
        sizes=sizes,
        columns=columns,
        block_rows=draw(st.sampled_from((1, 2, 4))),
        seed=draw(st.integers(0, 2**16)),
        inner=inner,
    )


def _part(draw: st.DrawFn, make: PlanBuilder) -> str:
    """An input of a part of each row: along some column axes, and perhaps some row axes."""
    count = make.column_axes
    spans = (*(draw(st.booleans()) for _ in range(make.row_axes)), True)
    kept = draw(st.integers(1, 2**count - 2))
    segments = tuple(bool(kept >> axis & 1) for axis in range(count))
    unit = not segments[-1] or draw(st.booleans())
    kind = draw(st.sampled_from(FLOATS))
    return make.input(kind, spans, segments=segments, unit_stride=unit)


@st.composite
def column_programs(draw: st.DrawFn) -> Program:
    """Reductions over the rows of tiles, what follows from them, and perhaps reductions of rows."""
    axes, inner = draw(st.integers(1, 3)), draw(st.sampled_from(((), (), (3,), (16,))))
    make = PlanBuilder(row_axes=axes, column_axes=1 + len(inner))
    inputs = [make.input(draw(st.sampled_from(FLOATS)))]
    inputs += [_input(draw, make) for _ in range(draw(st.integers(0, 3)))]
    column = make.input("float32", (False,) * axes + (True,))
    kinds = KINDS if draw(st.booleans()) else PLAIN_KINDS
    values = [*inputs]
    if inner:
        values.append(make.op("mul", inputs[0], _part(draw, make)))
    for _ in range(draw(st.integers(0, 5))):
        values.append(_step(draw, make, values, inputs, None, kinds))
    tiles = [v for v in values if make.space(v) == "tile"]
    late = [
        _over_rows(draw, make, draw(st.sampled_from(tiles))) for _ in range(draw(st.integers(1, 3)))
    ]
    for _ in range(draw(st.integers(0, 3))):
        name, value = draw(st.sampled_from(UNARY)), draw(st.sampled_from(late))
        made = make.op("add", value, column) if draw(st.booleans()) else make.op(name, value)
        late.append(make.cast(made, draw(st.sampled_from(FLOATS))))
    results = [v for v in values[len(inputs) :] if make.space(v) in ("tile", "row")]
    wanted = draw(st.lists(st.sampled_from(late), min_size=1, max_size=3, unique=True))
    wanted += draw(st.lists(st.sampled_from(results), max_size=2, unique=True)) if results else []
    sizes = tuple(draw(st.integers(1, 5)) for _ in range(axes))
    columns = draw(st.sampled_from((1, 2, 7, 16) if inner else (1, 2, 7, 16, 33, 64, 100)))
    strided = draw(st.lists(st.sampled_from(wanted), unique=True)) if draw(st.booleans()) else []
    return Program(
        plan=make.plan(
            *wanted,
            title="random columns",
            sizes=sizes,
            columns=(columns, *inner),
            strided=tuple(strided),
        ),
        sizes=sizes,
        columns=columns,
        block_rows=draw(st.sampled_from((1, 2, 4))),
        seed=draw(st.integers(0, 2**16)),
        inner=inner,
    )


def _over_rows(draw: st.DrawFn, make: PlanBuilder, value: str) -> str:
    name = draw(st.sampled_from(REDUCTIONS))
    wide = make.cast(value, "float32")
    if name == "var":
        return make.over_rows("var", wide, correction=0.0)
    return make.over_rows(name, make.op("mul", wide, 1 / 64) if name == "sum" else wide)


def _input(draw: st.DrawFn, make: PlanBuilder) -> str:
    spans = tuple(draw(st.booleans()) for _ in range(make.row_axes + 1))
    whole_rows = all(spans[:-1]) or not any(spans[:-1])
    dense = whole_rows and draw(st.booleans())
    unit = dense or not spans[-1] or draw(st.booleans())
    return make.input(draw(st.sampled_from(FLOATS)), spans, dense=dense, unit_stride=unit)


def _reduce(draw: st.DrawFn, make: PlanBuilder, value: str) -> str:
    name = draw(st.sampled_from(REDUCTIONS))
    wide = make.cast(value, "float32") if make.dtype(value) != "float32" else value
    if name == "var":
        return make.op("var", wide, correction=0.0)
    if name == "sum":
        return make.op("sum", make.op("mul", wide, 1 / 64))
    return make.op(name, wide)


def _step(
    draw: st.DrawFn,
    make: PlanBuilder,
    values: list[str],
    inputs: list[str],
    mask: str | None,
    kinds: tuple[str, ...] = KINDS,
) -> str:
    first, second = draw(st.sampled_from(values)), draw(st.sampled_from(values))
    kind = draw(st.sampled_from(kinds))
    if kind == "unary":
        return make.op(draw(st.sampled_from(UNARY)), first)
    if kind == "binary":
        return make.op(draw(st.sampled_from(BINARY)), first, second)
    if kind == "literal":
        number = draw(st.sampled_from((-1.5, 0.1, 1, 2.0)))
        return make.op(draw(st.sampled_from((*BINARY, "div"))), first, number)
    if kind == "gate":
        return make.op("mul", first, make.op("sigmoid", second))
    if kind == "div":
        return make.op("div", first, make.op("add", make.op("abs", second), 1.0))
    if kind == "norm":
        square = make.op("add", make.op("mul", second, second), 0.5)
        return make.op("mul", make.op("tanh", first), make.op("rsqrt", square))
    if kind == "exp":
        return make.op("exp", make.op("neg", make.op("abs", first)))
    if kind == "reduce" and make.space(first) in ("tile", "column"):
        return _reduce(draw, make, first)
    if kind == "softmax" and make.space(first) in ("tile", "column"):
        return _softmax(draw, make, first)
    if kind == "centre" and make.space(first) in ("tile", "column"):
        return _centred(draw, make, first)
    if kind == "where":
        # Only inputs are compared: they are the same numbers in every precision.
        test = mask or make.op("lt", draw(st.sampled_from(inputs)), 0.25)
        return make.op("where", test, first, draw(st.sampled_from((second, 0.5))))
    if kind == "peak":
        peak = make.op("eq", inputs[0], make.op("amax", inputs[0]))
        return make.op("where", peak, first, second)
    return make.cast(first, draw(st.sampled_from(FLOATS)))


def _softmax(draw: st.DrawFn, make: PlanBuilder, value: str) -> str:
    """Exponentials relative to the row's maximum over their sum, perhaps scaled, in either base."""
    wide = make.cast(value, "float32")
    exponent = make.op("sub", wide, make.op("amax", wide))
    if draw(st.booleans()):
        exponent = make.op("mul", exponent, 0.5)
    power = make.op(draw(st.sampled_from(("exp", "exp2"))), exponent)
    return make.op("div", power, make.op("sum", power))


def _centred(draw: st.DrawFn, make: PlanBuilder, value: str) -> str:
    """Deviations from the mean over their root mean square, written out or by the table's op."""
    wide = make.cast(value, "float32")
    apart = make.op("sub", wide, make.op("mean", wide))
    if draw(st.booleans()):
        spread = make.op("mean", make.op("mul", apart, apart))
    else:
        spread = make.op("var", wide, correction=0.0)
    return make.op("mul", apart, make.op("rsqrt", make.op("add", spread, 0.5)))


def magnitude(program: Program, inputs: list[torch.Tensor]) -> float:
    """The largest absolute value anywhere in the program, at least 1."""
    plan = program.plan
    every = tuple(PlanOutput(value=op.name, dtype=op.dtype, space=op.space) for op in plan.ops)
    values = evaluate(msgspec.structs.replace(plan, outputs=every), inputs, "exact")
    return max(1.0, *(float(v.double().abs().max()) for v in values))
