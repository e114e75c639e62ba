"""Graphs in a few lines: shapes and dtypes follow from operands, layouts are row-major by default.

sketch = Sketch()
x = sketch.input(64, 128)
y = sketch.op("mul", x, sketch.op("rsqrt", sketch.mean(x)))
graph = sketch.build(y)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from advisor.model.base import Location, Phase
from advisor.model.graph import Arg, AttributeValue, Graph, Node, TensorMeta, is_value, node_of
from advisor.model.optable import spec_of
from advisor.model.sizes import Dim, parse, product
from analyzers.dataflow import dataflow
from analyzers.row_programs import Group


def row_major(*shape: Dim) -> tuple[Dim, ...]:
    """Strides of a contiguous tensor; symbolic sizes multiply as text."""
    strides: list[Dim] = []
    for position in range(len(shape)):
        size = product(shape[position + 1 :])
        factors = (
            [*size.symbols]
            if size.symbols and size.coefficient == 1
            else [str(size.coefficient), *size.symbols]
        )
        strides.append("*".join(factors) if size.symbols else size.coefficient)
    return tuple(strides)


def tensor(
    *shape: Dim,
    dtype: str = "float32",
    strides: tuple[Dim, ...] | None = None,
    device: str = "cuda",
) -> TensorMeta:
    """A tensor's description, row-major unless strides are given."""
    return TensorMeta(
        dtype=dtype,
        shape=shape,
        strides=row_major(*shape) if strides is None else strides,
        device=device,
    )


def broadcast(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape of a pointwise result."""
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = []
    for position in range(-rank, 0):
        sizes = [s[position] for s in shapes if len(s) >= -position]
        wide = [size for size in sizes if not parse(size).is_one]
        assert len(set(wide)) <= 1, f"{shapes} do not broadcast"
        result.append(wide[0] if wide else 1)
    return tuple(result)


class Sketch:
    """Adds nodes in order; every method returns the name of the new value."""

    def __init__(self, phase: Phase = "inference", identity: str = "g0", **hints: int) -> None:
        self.phase, self.identity, self.hints = phase, identity, hints
        self.nodes: list[Node] = []
        self.inputs: list[str] = []

    def input(
        self,
        *shape: Dim,
        dtype: str = "float32",
        strides: tuple[Dim, ...] | None = None,
        device: str = "cuda",
    ) -> str:
        """A parameter, buffer or activation from outside."""
        meta = tensor(*shape, dtype=dtype, strides=strides, device=device)
        value = self._add("opaque", (), meta, target="placeholder", name="in")
        self.inputs.append(node_of(value)[0])
        return value

    def op(
        self,
        name: str,
        *args: Arg,
        dtype: str | None = None,
        shape: tuple[Dim, ...] | None = None,
        strides: tuple[Dim, ...] | None = None,
        device: str | None = None,
        **node: Any,
    ) -> str:
        """A pointwise op; `dtype` defaults to bool for comparisons, else to the last operand's."""
        metas = [self.meta(a) for a in args if is_value(a)]
        kind = dtype or ("bool" if spec_of(name).result == "bool" else metas[-1].dtype)
        size = broadcast(*(m.shape for m in metas)) if shape is None else shape
        attributes: dict[str, AttributeValue] = {"dtype": kind} if name == "cast" else {}
        meta = tensor(
            *size,
            dtype=kind,
            strides=strides,
            device=device or (metas[0].device if metas else "cuda"),
        )
        return self._add(name, args, meta, attributes=attributes, **node)

    def cast(self, value: str, dtype: str) -> str:
        """The value in another dtype."""
        return self.op("cast", value, dtype=dtype)

    def reduce(
        self,
        name: str,
        value: str,
        axes: tuple[int, ...] = (-1,),
        *,
        keepdim: bool = True,
        **node: Any,
    ) -> str:
        """A reduction over some axes, the last by default."""
        source = self.meta(value)
        rank = len(source.shape)
        reduced = tuple(sorted(axis % rank for axis in axes))
        shape = tuple(
            1 if d in reduced else s
            for d, s in enumerate(source.shape)
            if keepdim or d not in reduced
        )
        attributes: dict[str, AttributeValue] = {"axes": reduced}
        if name == "var":
            attributes["correction"] = 1.0
        meta = tensor(*shape, dtype=source.dtype, device=source.device)
        return self._add(name, (value,), meta, attributes=attributes, **node)

    def mean(self, value: str, axes: tuple[int, ...] = (-1,), *, keepdim: bool = True) -> str:
        """The mean over some axes."""
        return self.reduce("mean", value, axes, keepdim=keepdim)

    def reshape(self, value: str, *shape: Dim, strides: tuple[Dim, ...] | None = None) -> str:
        """The same elements in the same linear order."""
        source = self.meta(value)
        meta = tensor(*shape, dtype=source.dtype, strides=strides, device=source.device)
        return self._add("reshape", (value,), meta, alias_of=value)

    def expand(self, value: str, *shape: Dim) -> str:
        """Size-1 and missing leading axes repeated without a copy."""
        source = self.meta(value)
        lead = len(shape) - len(source.shape)
        strides: tuple[Dim, ...] = (0,) * lead + tuple(
            stride if size == wanted else 0
            for size, stride, wanted in zip(source.shape, source.strides, shape[lead:], strict=True)
        )
        meta = tensor(*shape, dtype=source.dtype, strides=strides, device=source.device)
        return self._add("expand", (value,), meta, alias_of=value)

    def opaque(
        self,
        target: str,
        *args: Arg,
        outputs: tuple[TensorMeta, ...] | None = None,
        mutates: tuple[str, ...] = (),
        alias_of: str | None = None,
        **node: Any,
    ) -> str:
        """Any other op; its output is like its first argument unless given."""
        metas = outputs if outputs is not None else (self.meta(args[0]),)
        return self._add(
            "opaque",
            args,
            *metas,
            target=target,
            mutates=mutates,
            alias_of=alias_of,
            has_side_effect=bool(mutates),
            **node,
        )

    def softmax(self, value: str) -> str:
        """Softmax over the last axis in five ops."""
        weights = self.op("exp", self.op("sub", value, self.reduce("amax", value)))
        return self.op("div", weights, self.reduce("sum", weights))

    def rms_norm(self, value: str, weight: str) -> str:
        """RMS norm over the last axis in six ops."""
        scale = self.op("rsqrt", self.op("add", self.mean(self.op("mul", value, value)), 1e-6))
        return self.op("mul", self.op("mul", value, scale), weight)

    def meta(self, value: Arg) -> TensorMeta:
        """The description of a value."""
        name, output = node_of(str(value))
        return next(node for node in self.nodes if node.id == name).outputs[output]

    def build(self, *outputs: str) -> Graph:
        """The checked graph."""
        graph = Graph(
            id=self.identity,
            source="compiled",
            level="post_grad",
            phase=self.phase,
            nodes=tuple(self.nodes),
            inputs=tuple(self.inputs),
            outputs=outputs,
            size_hints=dict(self.hints),
        )
        graph.check()
        return graph

    def _add(
        self,
        op: str,
        args: tuple[Arg, ...],
        *outputs: TensorMeta,
        attributes: dict[str, AttributeValue] | None = None,
        name: str = "",
        **node: Any,
    ) -> str:
        identity = f"{name or op}{len(self.nodes)}"
        fields: dict[str, Any] = {
            "target": op,
            "label": f"aten.{op}.default",
            "location": Location(),
            **node,
        }
        made = Node(
            id=identity, op=op, args=args, attributes=attributes or {}, outputs=outputs, **fields
        )
        self.nodes.append(made)
        return made.value()


def assert_legal(graph: Graph, groups: Iterable[Group]) -> None:
    """With every group as one node there is no cycle, and every value needed outside is written."""
    groups = list(groups)
    owner = {name: f"group {i}" for i, group in enumerate(groups) for name in group.own}
    flow = dataflow(graph)
    edges: dict[str, set[str]] = {}

    def reads(node: Node, here: str, inside: frozenset[str] = frozenset()) -> None:
        for value in node.value_args:
            source = node_of(flow.base(value))[0]
            if owner.get(source, source) != here and source not in inside:
                edges.setdefault(owner.get(source, source), set()).add(here)

    for node in graph.nodes:
        if spec_of(node.op).kind != "view" and node.id not in owner:
            reads(node, node.id)
    for i, group in enumerate(groups):
        for name in group.members:
            reads(flow.nodes[name], f"group {i}", frozenset(group.members))
    assert_no_cycle(edges)
    assert len([name for group in groups for name in group.own]) == len(owner)
    for group in groups:
        assert set(group.space.outputs) == _needed(graph, group, groups)


def assert_no_cycle(edges: Mapping[str, set[str]]) -> None:
    """Nothing waits for itself."""
    state: dict[str, int] = {}

    def visit(name: str) -> None:
        assert state.get(name) != 1, f"a cycle through {name}"
        if state.get(name) is None:
            state[name] = 1
            for after in edges.get(name, ()):
                visit(after)
            state[name] = 2

    for name in list(edges):
        visit(name)


def _needed(graph: Graph, group: Group, groups: Iterable[Group]) -> set[str]:
    """What a group must write: its own values that leave the graph or that others read."""
    flow = dataflow(graph)
    others = [other for other in groups if other is not group]
    computing = {n: [g for g in others if n in g.members] for n in flow.index}
    owned = {name for other in others for name in other.own}
    needed = {flow.base(v) for v in graph.outputs}
    for node in graph.nodes:
        if spec_of(node.op).kind == "view" or node.id in group.own:
            continue
        for value in node.value_args:
            source = node_of(flow.base(value))[0]
            # Not read only where every kernel that computes the reader computes this too.
            if node.id not in owned or any(source not in g.members for g in computing[node.id]):
                needed.add(flow.base(value))
    return {f"%{name}" for name in group.own} & needed
