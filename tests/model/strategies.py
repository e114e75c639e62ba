"""Hypothesis strategies for every record, derived from the field types; invariants are built in."""

from __future__ import annotations

import types
import typing
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from advisor.model.applied import (
    ActionVerdict,
    Applied,
    Comparison,
    PlanVerdict,
    SetVerdict,
    Timing,
)
from advisor.model.base import Range, Record
from advisor.model.comparison import Comparability
from advisor.model.cures import Retuned, Split
from advisor.model.findings import Alternative, Evidence, Finding
from advisor.model.gate import ComparisonLimit, FindingLimit, GateConfig, MetricLimit
from advisor.model.graph import Graph, Node, TensorMeta
from advisor.model.guards import Prediction
from advisor.model.launch import IN_STEPS, SCANS, SHARED, LaunchConfig, Scheme
from advisor.model.optable import DTYPES, FLOAT8_MAX, FLOAT_DTYPES, ITEM_BYTES, OPS, RANDOM
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, PlanOutput, Site
from advisor.model.report import PlanSummary, Recommended, Report
from advisor.model.scores import ResidualQuantiles
from advisor.model.sizes import RunTimeSizes, Size
from advisor.model.spaces import Space, join_space, space_of

R = TypeVar("R", bound=Record)
plan_ids = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)
finding_ids = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,20}", fullmatch=True)


@cache
def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of one field type."""
    if hint in SPECIAL:
        return SPECIAL[hint]()
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([of(argument) for argument in arguments])
    if origin is tuple and Ellipsis not in arguments:
        return st.tuples(*(of(argument) for argument in arguments))
    if origin is tuple:
        return st.lists(of(arguments[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(of(arguments[0]), of(arguments[1]), max_size=2)
    if isinstance(hint, type) and issubclass(hint, Record):
        return records(hint)
    return PLAIN[hint]


PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**62), 2**62),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=8),
    bool: st.booleans(),
    type(None): st.none(),
}


def records(kind: type[R], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[R]:
    """Any record of `kind`; `fixed` fields are drawn from the strategies given."""
    hints = {n: h for n, h in typing.get_type_hints(kind).items() if n != "schema_version"}
    hints = {name: hint for name, hint in hints.items() if name in kind.__struct_fields__}
    return st.builds(kind, **{n: fixed[n] if n in fixed else of(h) for n, h in hints.items()})


def ordered(count: int, low: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(low, 2**62), min_size=count, max_size=count).map(sorted)


def ranges() -> st.SearchStrategy[Range]:
    return ordered(3, -(2**62)).map(lambda v: Range(low=v[0], mid=v[1], high=v[2]))


def residual_quantiles() -> st.SearchStrategy[ResidualQuantiles]:
    ordered_floats = st.lists(PLAIN[float], min_size=3, max_size=3).map(sorted)
    return ordered_floats.map(lambda v: ResidualQuantiles(low=v[0], mid=v[1], high=v[2]))


def timings() -> st.SearchStrategy[Timing]:
    return st.builds(
        lambda v, n: Timing(low_ns=v[0], median_ns=v[1], high_ns=v[2], samples=n),
        ordered(3, 0),
        st.integers(1, 1000),
    )


def comparisons() -> st.SearchStrategy[Comparison]:
    return st.builds(
        lambda before, after, v: Comparison(
            before=before,
            after=after,
            gain_low_ns=v[0],
            gain_mid_ns=v[1],
            gain_high_ns=v[2],
            clock="step",
        ),
        timings(),
        timings(),
        ordered(3, -(2**62)),
    )


def launches() -> st.SearchStrategy[LaunchConfig]:
    """A launch of any scheme."""
    powers = st.integers(0, 5).map(lambda n: 1 << n)

    def of_scheme(scheme: Scheme) -> st.SearchStrategy[LaunchConfig]:
        return st.builds(
            LaunchConfig,
            block_rows=powers,
            num_warps=powers,
            num_stages=st.integers(1, 3),
            scheme=st.just(scheme),
            block_columns=st.none() if scheme in ("registers", *SCANS) else powers,
            block_steps=powers if scheme in IN_STEPS else st.none(),
            splits=st.integers(1, 8) if scheme in SHARED else st.none(),
        )

    return st.sampled_from(get_args(Scheme)).flatmap(of_scheme)


def applications() -> st.SearchStrategy[Applied]:
    """An application whose set keeps only plans and actions that were kept."""
    verdicts = st.lists(
        records(PlanVerdict, plan_id=plan_ids, verdict=st.just("kept")), min_size=1, max_size=2
    )
    done = st.lists(records(ActionVerdict, verdict=st.just("kept")), max_size=2)

    def whole(drawn: tuple[list[PlanVerdict], list[ActionVerdict]]) -> st.SearchStrategy[Applied]:
        plans, actions = tuple(drawn[0]), tuple(drawn[1])
        kept = st.just(tuple(p.plan_id for p in plans))
        kinds = st.just(tuple(a.kind for a in actions))
        result = records(SetVerdict, plans=kept, actions=kinds)
        return records(Applied, plans=st.just(plans), actions=st.just(actions), set=result)

    return st.tuples(verdicts, done).flatmap(whole)


@st.composite
def findings(draw: st.DrawFn, known_plans: tuple[str, ...] = ()) -> Finding:
    """A finding that names only known plans and says why where it has no price."""
    names: st.SearchStrategy[str | None] = st.sampled_from((None, *known_plans))
    some = names.map(lambda name: () if name is None else (name,))
    alternatives = st.lists(records(Alternative, plan_ids=some), max_size=2)
    return draw(
        records(
            Finding,
            id=finding_ids,
            evidence=st.lists(records(Evidence), max_size=1).map(
                lambda some: (*some, Evidence(kind="cannot_judge", text="needs counters"))
            ),
            alternatives=alternatives.map(tuple),
            plan_id=names,
        )
    )


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """A report in which ids are unique and every reference resolves."""
    plans = tuple(
        draw(
            st.lists(records(PlanSummary, id=plan_ids), max_size=2, unique_by=lambda plan: plan.id)
        )
    )
    found = tuple(
        draw(
            st.lists(
                findings(tuple(p.id for p in plans)), max_size=3, unique_by=lambda each: each.id
            )
        )
    )
    order = tuple(f.id for f in found if f.kind == "opportunity")
    return draw(
        records(
            Report,
            plans=st.just(plans),
            findings=st.just(found),
            recommended=records(Recommended, order=st.just(order)),
        )
    )


def comparability() -> st.SearchStrategy[Comparability]:
    """A verdict that agrees with its reasons."""
    fraction = st.floats(0, 1)
    refused = st.lists(st.text(max_size=5), min_size=1, max_size=2).map(tuple)
    return records(
        Comparability, comparable=st.just(True), reasons=st.just(()), score=fraction
    ) | records(Comparability, comparable=st.just(False), reasons=refused, score=fraction)


def gate_configs() -> st.SearchStrategy[GateConfig]:
    """A configuration with at least one limit, all of them sane."""
    tolerances = st.none() | st.floats(0, 1e6)
    metric = records(
        MetricLimit,
        max=st.floats(0, 1e12),
        min=st.none(),
        max_increase=tolerances,
        max_decrease=tolerances,
        beyond_noise=st.just(False),
    )
    sizes = st.integers(0, 2**40)
    finding = records(
        FindingLimit, max=sizes, saving_above_ns=st.none() | sizes, unpriced=st.just("unknown")
    ) | records(FindingLimit, max=sizes, saving_above_ns=sizes)
    return records(
        GateConfig,
        metric=st.lists(metric, min_size=1, max_size=2).map(tuple),
        finding=st.lists(finding, max_size=2).map(tuple),
        comparison=records(ComparisonLimit, min_score=st.none() | st.floats(0, 1)),
    )


def tensor_metas() -> st.SearchStrategy[TensorMeta]:
    dims = st.lists(st.integers(0, 2**40) | st.sampled_from(["s0", "4*s0"]), max_size=4)
    return st.builds(
        lambda dtype, shape: TensorMeta(dtype=dtype, shape=tuple(shape), strides=tuple(shape)),
        st.sampled_from(sorted(ITEM_BYTES)),
        dims,
    )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A chain of table ops and opaque ones in which every argument exists before it is used."""
    nodes: list[Node] = []
    for position in range(draw(st.integers(1, 6))):
        spec = draw(st.sampled_from(OPS))
        arity = spec.arity if spec.arity >= 0 else draw(st.integers(0, 3))
        known = [node.value() for node in nodes]
        literals = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["inf", None])
        arguments = st.sampled_from(known) | literals if known else literals
        nodes.append(
            draw(
                records(
                    Node,
                    id=st.just(f"n{position}"),
                    op=st.just(spec.name),
                    args=st.lists(arguments, min_size=arity, max_size=arity).map(tuple),
                    outputs=st.just((draw(tensor_metas()),)),
                    mutates=st.just(tuple(known[:1])),
                    alias_of=st.none(),
                )
            )
        )
    return Graph(
        id=draw(st.text(max_size=5)),
        source="compiled",
        level="post_grad",
        phase=draw(st.sampled_from(["inference", "forward", "backward"])),
        nodes=tuple(nodes),
        inputs=(),
        outputs=(nodes[-1].value(),),
    )


@st.composite
def plan_inputs(draw: st.DrawFn, position: int, row_axes: int) -> PlanInput:
    spans = tuple(draw(st.booleans()) for _ in range(row_axes + 1))
    whole = all(spans[:-1]) or not any(spans[:-1])
    return PlanInput(
        name=f"in{position}",
        dtype=draw(st.sampled_from([name for name in DTYPES if name not in FLOAT8_MAX])),
        spans=spans,
        dense=whole and draw(st.booleans()),
        unit_stride=draw(st.booleans()),
    )


@st.composite
def plan_ops(draw: st.DrawFn, position: int, known: dict[str, Space]) -> PlanOp:
    """An op over known values, its space worked out from its operands."""
    wide = [name for name, space in known.items() if space in ("tile", "column")]
    kinds = ("pointwise", "reduction") if wide else ("pointwise",)
    fit = [spec for spec in OPS if spec.kind in kinds and spec.name != RANDOM]
    spec = draw(st.sampled_from(fit))
    if spec.name == "cast":
        return _cast(f"v{position}", draw(st.sampled_from(sorted(known))), known, draw)
    dtype = draw(st.sampled_from(FLOAT_DTYPES))
    literals = st.integers(-9, 9) | st.sampled_from(["inf", "-inf", "nan", 0.5, True])
    if spec.kind == "reduction":
        args: tuple[Any, ...] = (draw(st.sampled_from(wide)),)
    else:
        choice = st.sampled_from(sorted(known)) | literals
        args = (
            draw(st.sampled_from(sorted(known))),
            *(draw(choice) for _ in range(spec.arity - 1)),
        )
    space: Space = "scalar"
    for arg in args:
        space = join_space(space, known[arg]) if arg in known else space
    if spec.kind == "reduction":
        space = "row" if space == "tile" else "scalar"
    values = {"dtype": dtype, "correction": 1}
    return PlanOp(
        name=f"v{position}", op=spec.name, args=args, dtype=dtype, space=space,
        attributes={name: values[name] for name in spec.attributes},
    )  # fmt: skip


def _cast(name: str, arg: str, known: dict[str, Space], draw: st.DrawFn) -> PlanOp:
    """A cast to any type; eight bits only hold what is stored, so it is the last of its value."""
    dtype = draw(st.sampled_from((*FLOAT_DTYPES, *FLOAT8_MAX)))
    attributes = {"dtype": dtype}
    return PlanOp(
        name=name, op="cast", args=(arg,), dtype=dtype, space=known[arg], attributes=attributes
    )


@st.composite
def plans(draw: st.DrawFn) -> FusionPlan:
    """A valid plan: random ops of the table over random inputs, at least one output."""
    row_axes = draw(st.integers(1, 3))
    first = PlanInput(name="in0", dtype="float32", spans=(True,) * (row_axes + 1), dense=True)
    rest = [draw(plan_inputs(n, row_axes)) for n in range(1, draw(st.integers(1, 3)))]
    tables = _table(1 + len(rest), row_axes) if draw(st.booleans()) else ()
    inputs = (first, *rest, *tables)
    known: dict[str, Space] = {item.name: space_of(item.spans) for item in inputs}
    ops = [
        PlanOp(
            name="v0", op="cast", args=("in0",), dtype="float32", space="tile",
            attributes={"dtype": "float32"},
        )
    ]  # fmt: skip
    known["v0"] = "tile"
    for position in range(1, draw(st.integers(1, 7))):
        ops.append(draw(plan_ops(position, known)))
        if ops[-1].dtype not in FLOAT8_MAX:
            known[ops[-1].name] = ops[-1].space
    outputs = [op for op in ops if op.space in ("tile", "row")][-2:]
    sizes = st.integers(0, 2**40)
    per_axis = st.lists(sizes, min_size=row_axes + 1, max_size=row_axes + 1).map(tuple)
    count = len(inputs)
    some = records(Size, coefficient=sizes)
    walk = st.lists(some, min_size=row_axes + 1, max_size=row_axes + 1).map(tuple)
    run_time = records(
        RunTimeSizes,
        row_sizes=st.lists(some, min_size=row_axes, max_size=row_axes).map(tuple),
        column_sizes=st.tuples(some),
        input_strides=st.lists(walk, min_size=count, max_size=count).map(tuple),
        output_strides=st.just(()),
    )
    sites = records(
        Site,
        run_time=st.none() | run_time,
        row_sizes=st.lists(sizes, min_size=row_axes, max_size=row_axes).map(tuple),
        columns=sizes,
        executions=st.floats(0, 1e6),
        column_sizes=st.just(()),
        output_strides=st.just(()),
        members=st.just(()),
        inputs=st.just(tuple(f"%a{n}" for n in range(count))),
        outputs=st.just(tuple(f"%b{n}" for n in range(len(outputs)))),
        input_strides=st.lists(per_axis, min_size=count, max_size=count).map(tuple),
        table_rows=st.just(()),
    )
    if tables:
        sites = st.builds(_with_table, sites, st.integers(1, 2**40))
    return draw(
        records(
            FusionPlan,
            id=plan_ids,
            family=st.just("row_program"),
            members=st.just(()),
            states=st.just(()),
            product=st.none(),
            row_axes=st.just(row_axes),
            column_axes=st.just(1),
            inputs=st.just(inputs),
            ops=st.just(tuple(ops)),
            outputs=st.just(
                tuple(PlanOutput(value=op.name, dtype=op.dtype, space=op.space) for op in outputs)
            ),
            sites=st.lists(sites, max_size=2).map(tuple),
            backward_plan=st.none() | plan_ids,
        )
    )


def _table(position: int, row_axes: int) -> tuple[PlanInput, ...]:
    """An index for every row, and the table whose rows it names."""
    rows = (True,) * row_axes
    index = PlanInput(name=f"in{position}", dtype="int64", spans=(*rows, False), dense=True)
    table = PlanInput(
        name=f"in{position + 1}", dtype="bfloat16", spans=(*rows, True), dense=False,
        gathered=index.name,
    )  # fmt: skip
    return (index, table)


def _with_table(site: Site, rows: int) -> Site:
    """The site with a table of so many rows as its last input."""
    strides = (site.columns, *(0 for _ in site.row_sizes[1:]), 1)
    return msgspec.structs.replace(
        site,
        input_strides=(*site.input_strides[:-1], strides),
        table_rows=(*(0 for _ in site.inputs[1:]), rows),
    )


def splits() -> st.SearchStrategy[Split]:
    """Two or three groups of ops named by hashes, none in two of them."""
    keys = st.lists(plan_ids, min_size=3, max_size=6, unique=True)
    return st.builds(
        lambda kernel, words, names: Split(
            kernel=kernel, words=words, groups=((names[0],), (names[1],), tuple(names[2:]))
        ),
        st.text(max_size=8), st.text(max_size=8), keys,
    )  # fmt: skip


def retuned() -> st.SearchStrategy[Retuned]:
    """Another launch of a kernel of the compiler."""
    powers = st.integers(0, 5).map(lambda n: 1 << n)
    blocks = st.dictionaries(st.sampled_from(("XBLOCK", "R0_BLOCK")), powers)
    return records(
        Retuned, source=plan_ids, blocks=blocks, num_warps=powers, num_stages=st.integers(1, 8)
    )


SPECIAL: dict[Any, Any] = {
    Split: splits,
    Retuned: retuned,
    Range: ranges,
    ResidualQuantiles: residual_quantiles,
    Timing: timings,
    Comparison: comparisons,
    LaunchConfig: launches,
    Prediction: lambda: records(
        Prediction, bytes_before=st.integers(0, 2**62), bytes_after=st.integers(0, 2**62)
    ),
    TensorMeta: tensor_metas,
}
