"""A post-grad FX graph as a `Graph`: ATen spellings become ops of the table, constants become literals.

PyTorch's decompositions leave a few spellings of one computation (`pow(x, 2)`, `prepare_softmax_online`,
`var_mean`); they are brought to one form here and equal pure nodes are merged, so that one computation has
one signature on every device and version. The maps back to FX nodes stay outside the `Graph`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from advisor.model.base import Location, Phase
from advisor.model.graph import (
    Arg,
    AttributeValue,
    Graph,
    Level,
    Node,
    TensorMeta,
    literal,
    node_of,
    value_id,
)
from advisor.model.sizes import Dim

_MODULE_ROOT = re.compile(r"^L\['[^']*'\](\[\d+\])?\.?|^L__self___?|^_orig_mod\.?")
_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+), in ')

# FX targets that are one op of the table with the same operands in the same order.
_DIRECT: dict[str, str] = {
    **{
        f"aten.{name}.default": name
        for name in (
            "neg", "abs", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal",
            "sin", "cos", "tanh", "sigmoid", "erf", "relu", "floor", "ceil", "sign", "logical_not",
            "isnan", "isinf", "maximum", "minimum", "logical_and", "logical_or",
        )
    },
    **{
        f"aten.{name}.{overload}": name
        for name in ("mul", "eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Tensor", "Scalar")
    },
    "aten.div.Tensor": "div",
    "aten.div.Scalar": "div",
    "aten.pow.Tensor_Tensor": "pow",
    "aten.pow.Scalar": "pow",
    "aten.where.self": "where",
    "aten.where.ScalarSelf": "where",
    "aten.where.ScalarOther": "where",
    "aten.where.Scalar": "where",
    "aten.clamp_min.default": "maximum",
    "aten.clamp_max.default": "minimum",
}  # fmt: skip
_RESHAPES = frozenset(
    f"aten.{name}" for name in (
        "view.default", "reshape.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.default",
        "squeeze.dim", "squeeze.dims", "alias.default", "flatten.using_ints",
    )
)  # fmt: skip
_REDUCTIONS: dict[str, str] = {
    "aten.sum.dim_IntList": "sum", "aten.sum.default": "sum", "aten.mean.dim": "mean", "aten.mean.default": "mean",
    "aten.amax.default": "amax", "aten.amin.default": "amin", "aten.var.correction": "var",
}  # fmt: skip
_BITWISE = {
    "aten.bitwise_and.Tensor": "logical_and",
    "aten.bitwise_or.Tensor": "logical_or",
    "aten.bitwise_not.default": "logical_not",
}


@dataclass
class Lowered:
    """A graph and the way back: the FX node that holds a value, and every FX node that equals it."""

    graph: Graph
    fx_graph: fx.Graph
    fx_node: dict[str, fx.Node]
    fx_aliases: dict[str, list[fx.Node]]

    def copy(self) -> Lowered:
        """The same with an FX graph of its own, to be rewritten and thrown away."""
        copied = fx.Graph()
        renamed: dict[fx.Node, fx.Node] = {}
        copied.output(copied.graph_copy(self.fx_graph, renamed))
        return Lowered(
            graph=self.graph, fx_graph=copied,
            fx_node={value: renamed[node] for value, node in self.fx_node.items()},
            fx_aliases={value: [renamed[n] for n in nodes] for value, nodes in self.fx_aliases.items()},
        )  # fmt: skip


@dataclass
class _Builder:
    nodes: list[Node] = field(default_factory=list)
    meta: dict[str, TensorMeta] = field(default_factory=dict)
    values: dict[fx.Node, str | tuple[str, ...]] = field(default_factory=dict)
    literals: dict[fx.Node, Arg] = field(default_factory=dict)
    merged: dict[tuple[Any, ...], str] = field(default_factory=dict)
    fx_node: dict[str, fx.Node] = field(default_factory=dict)
    fx_aliases: dict[str, list[fx.Node]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def emit(
        self,
        source: fx.Node,
        op: str,
        args: Iterable[Arg],
        meta: TensorMeta,
        **attributes: AttributeValue,
    ) -> str:
        """Append one table op (or find its equal) and return its value."""
        arguments = tuple(args)
        key = (op, arguments, tuple(sorted(attributes.items())), meta.dtype, meta.shape)
        if key in self.merged:
            return self.merged[key]
        node_id = self._fresh(source.name)
        self.nodes.append(_node(source, node_id, op, arguments, (meta,), attributes))
        self.meta[value_id(node_id)] = meta
        self.merged[key] = value_id(node_id)
        return value_id(node_id)

    def bind(self, source: fx.Node, value: str) -> None:
        """Say that an FX node holds a value."""
        self.values[source] = value
        self.fx_node.setdefault(value, source)
        self.fx_aliases.setdefault(value, []).append(source)

    def arg(self, item: Any) -> Arg:
        """An FX argument as a value, a literal, or None where it is neither."""
        if isinstance(item, fx.Node):
            if item in self.literals:
                return self.literals[item]
            value = self.values.get(item)
            return value if isinstance(value, str) else None
        return literal(item) if isinstance(item, (int, float, bool)) else None

    def tensor_meta(self, tensor: torch.Tensor) -> TensorMeta:
        """Shape, strides and dtype of a (fake) tensor, symbolic sizes as text with their hints kept."""
        return TensorMeta(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(self._dim(size) for size in tensor.shape),
            strides=tuple(self._dim(size) for size in tensor.stride())
            if tensor.layout == torch.strided
            else (),
            device=tensor.device.type,
        )

    def _dim(self, size: Any) -> Dim:
        if isinstance(size, int):
            return size
        if size.node.maybe_as_int() is not None:
            return int(size)
        for symbol in size.node.expr.free_symbols:
            hint = size.node.shape_env.var_to_val.get(symbol)
            if hint is not None:
                self.hints[str(symbol)] = int(hint)
        return str(size.node.expr)

    def _fresh(self, name: str) -> str:
        candidate, number = name, 0
        while candidate in self.used:
            number += 1
            candidate = f"{name}.{number}"
        self.used.add(candidate)
        return candidate


def lower(graph: fx.Graph, graph_id: str, phase: Phase, level: Level = "post_grad") -> Lowered:
    """Lower an FX graph of ATen ops whose nodes carry fake tensors in `meta["val"]`."""
    builder = _Builder()
    inputs: list[str] = []
    outputs: tuple[str, ...] = ()
    for node in graph.nodes:
        if node.op == "output":
            leaves = [leaf for leaf in _flatten(node.args) if isinstance(leaf, fx.Node)]
            outputs = tuple(v for leaf in leaves if isinstance(v := builder.values.get(leaf), str))
            continue
        if node.op in ("placeholder", "get_attr"):
            inputs.append(node.name)
            _opaque(builder, node)
        elif node.op == "call_function":
            _call(builder, node)
        else:
            _opaque(builder, node)
    result = Graph(
        id=graph_id, source="compiled", level=level, phase=phase, nodes=tuple(builder.nodes),
        inputs=tuple(inputs), outputs=outputs, size_hints=builder.hints,
    )  # fmt: skip
    return Lowered(
        graph=result, fx_graph=graph, fx_node=builder.fx_node, fx_aliases=builder.fx_aliases
    )


def _call(builder: _Builder, node: fx.Node) -> None:
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        held = builder.values.get(node.args[0])
        index = node.args[1]
        if isinstance(held, tuple) and isinstance(index, int) and index < len(held):
            builder.bind(node, held[index])
            return
    name = str(node.target)
    handler = _HANDLERS.get(name)
    value = node.meta.get("val")
    if handler is None or not _is_dense_tensor(value):
        if name not in _MULTI_OUTPUT:
            _opaque(builder, node)
            return
        handler = _MULTI_OUTPUT[name]
    if not handler(builder, node):
        _opaque(builder, node)


def _is_dense_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _bind_op(
    builder: _Builder, node: fx.Node, op: str, args: Iterable[Any], **attributes: AttributeValue
) -> bool:
    arguments = [builder.arg(item) for item in args]
    if any(item is None for item in arguments):
        return False
    meta = builder.tensor_meta(node.meta["val"])
    builder.bind(node, builder.emit(node, op, arguments, meta, **attributes))
    return True


def _direct(builder: _Builder, node: fx.Node) -> bool:
    if node.kwargs:
        return False
    return _bind_op(builder, node, _DIRECT[str(node.target)], node.args)


def _bitwise(builder: _Builder, node: fx.Node) -> bool:
    if node.meta["val"].dtype != torch.bool:
        return False
    return _bind_op(builder, node, _BITWISE[str(node.target)], node.args)


def _add_sub(builder: _Builder, node: fx.Node) -> bool:
    left, right = node.args[0], node.args[1]
    alpha = node.args[2] if len(node.args) > 2 else node.kwargs.get("alpha", 1)
    op = "add" if ".add." in str(node.target) else "sub"
    if alpha == 1:
        return _bind_op(builder, node, op, (left, right))
    if not isinstance(right, fx.Node) or not isinstance(alpha, (int, float)):
        return False
    value = builder.arg(right)
    if not isinstance(value, str) or value not in builder.meta:
        return False
    scaled = builder.emit(node, "mul", (value, literal(alpha)), builder.meta[value])
    first = builder.arg(left)
    if first is None:
        return False
    builder.bind(
        node, builder.emit(node, op, (first, scaled), builder.tensor_meta(node.meta["val"]))
    )
    return True


def _power(builder: _Builder, node: fx.Node) -> bool:
    base, exponent = node.args[0], node.args[1]
    simple = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if exponent == 1 and isinstance(builder.arg(base), str) and node.meta["val"].is_contiguous():
        builder.bind(node, str(builder.arg(base)))
        return True
    if exponent == 2:
        return _bind_op(builder, node, "mul", (base, base))
    if exponent == 3:
        meta, value = builder.tensor_meta(node.meta["val"]), builder.arg(base)
        if value is None:
            return False
        squared = builder.emit(node, "mul", (value, value), meta)
        builder.bind(node, builder.emit(node, "mul", (squared, value), meta))
        return True
    if isinstance(exponent, (int, float)) and exponent in simple:
        return _bind_op(builder, node, simple[exponent], (base,))
    return _bind_op(builder, node, "pow", (base, exponent))


def _clamp(builder: _Builder, node: fx.Node) -> bool:
    bounds = [*node.args[1:], None, None][:2]
    low = node.kwargs.get("min", bounds[0])
    high = node.kwargs.get("max", bounds[1])
    value = builder.arg(node.args[0])
    meta = builder.tensor_meta(node.meta["val"])
    for op, bound in (("maximum", low), ("minimum", high)):
        if bound is None:
            continue
        limit = builder.arg(bound)
        if value is None or limit is None:
            return False
        value = builder.emit(node, op, (value, limit), meta)
    if not isinstance(value, str):
        return False
    builder.bind(node, value)
    return True


def _square(builder: _Builder, node: fx.Node) -> bool:
    return _bind_op(builder, node, "mul", (node.args[0], node.args[0]))


def _cast(builder: _Builder, node: fx.Node) -> bool:
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    return _bind_op(builder, node, "cast", node.args[:1], dtype=dtype)


def _reshape(builder: _Builder, node: fx.Node) -> bool:
    return _view(builder, node, "reshape")


def _expand(builder: _Builder, node: fx.Node) -> bool:
    return _view(builder, node, "expand")


def _view(builder: _Builder, node: fx.Node, op: str) -> bool:
    base = node.args[0]
    if isinstance(base, fx.Node) and base in builder.literals:
        builder.literals[node] = builder.literals[base]
        return True
    value = builder.arg(base)
    if not isinstance(value, str):
        return False
    node_id = builder._fresh(node.name)
    meta = builder.tensor_meta(node.meta["val"])
    shares = str(node.target) != "aten.clone.default"
    builder.nodes.append(
        _node(node, node_id, op, (value,), (meta,), {}, alias_of=value if shares else None)
    )
    builder.meta[value_id(node_id)] = meta
    builder.bind(node, value_id(node_id))
    return True


def _clone(builder: _Builder, node: fx.Node) -> bool:
    """A copy into row-major order keeps the linear order of elements: free once its source is fused."""
    if not node.meta["val"].is_contiguous():
        return False
    return _view(builder, node, "reshape")


def _constant(builder: _Builder, node: fx.Node) -> bool:
    """A tensor filled with one number is that number wherever the table's ops read it."""
    fill = node.args[-1] if str(node.target) != "aten.scalar_tensor.default" else node.args[0]
    if not isinstance(fill, (int, float, bool)):
        return False
    _opaque(builder, node)
    builder.literals[node] = literal(_as_dtype(fill, node.meta["val"].dtype))
    return True


def _as_dtype(fill: float | int | bool, dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return bool(fill)
    if dtype.is_floating_point:
        return float(torch.tensor(float(fill), dtype=dtype).item())
    return int(fill)


def _reduce(builder: _Builder, node: fx.Node) -> bool:
    op = _REDUCTIONS[str(node.target)]
    value = builder.arg(node.args[0])
    if not isinstance(value, str) or value not in builder.meta:
        return False
    source, meta = builder.meta[value], builder.tensor_meta(node.meta["val"])
    if meta.dtype not in ("float16", "bfloat16", "float32", "float64"):
        return False
    if source.dtype != meta.dtype:
        wide = TensorMeta(
            dtype=meta.dtype, shape=source.shape, strides=source.strides, device=source.device
        )
        value = builder.emit(node, "cast", (value,), wide, dtype=meta.dtype)
    attributes: dict[str, AttributeValue] = {"axes": _axes(node, len(source.shape))}
    if op == "var":
        correction = node.kwargs.get("correction", 1)
        attributes["correction"] = 1.0 if correction is None else float(correction)  # type: ignore[arg-type]
    builder.bind(node, builder.emit(node, op, (value,), meta, **attributes))
    return True


def _axes(node: fx.Node, rank: int) -> tuple[int, ...]:
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if dims is None or dims == []:
        return tuple(range(rank))
    listed = dims if isinstance(dims, (list, tuple)) else (dims,)
    return tuple(sorted(int(d) % max(rank, 1) for d in listed))  # type: ignore[arg-type]


def _var_mean(builder: _Builder, node: fx.Node) -> bool:
    value = builder.arg(node.args[0])
    if not isinstance(value, str) or value not in builder.meta:
        return False
    axes = _axes(node, len(builder.meta[value].shape))
    correction = node.kwargs.get("correction", 1)
    metas = [builder.tensor_meta(tensor) for tensor in node.meta["val"]]
    variance = builder.emit(
        node, "var", (value,), metas[0], axes=axes,
        correction=1.0 if correction is None else float(correction),  # type: ignore[arg-type]
    )  # fmt: skip
    mean = builder.emit(node, "mean", (value,), metas[1], axes=axes)
    builder.values[node] = (variance, mean)
    return True


def _online_softmax(builder: _Builder, node: fx.Node) -> bool:
    """`prepare_softmax_online(x, dim)` returns the row maximum and sum(exp(x - maximum)), both kept as size 1."""
    value = builder.arg(node.args[0])
    if not isinstance(value, str) or value not in builder.meta:
        return False
    source = builder.meta[value]
    axes = (int(node.args[1]) % len(source.shape),)  # type: ignore[arg-type]
    metas = [builder.tensor_meta(tensor) for tensor in node.meta["val"]]
    wide = TensorMeta(
        dtype=metas[0].dtype, shape=source.shape, strides=source.strides, device=source.device
    )
    maximum = builder.emit(node, "amax", (value,), metas[0], axes=axes)
    shifted = builder.emit(node, "sub", (value, maximum), wide)
    exponent = builder.emit(node, "exp", (shifted,), wide)
    total = builder.emit(node, "sum", (exponent,), metas[1], axes=axes)
    builder.values[node] = (maximum, total)
    return True


_Handler = Callable[[_Builder, fx.Node], bool]
_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(_DIRECT, _direct),
    **dict.fromkeys(_BITWISE, _bitwise),
    **dict.fromkeys(_RESHAPES, _reshape),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **{f"aten.{n}.{o}": _add_sub for n in ("add", "sub") for o in ("Tensor", "Scalar")},
    "aten.pow.Tensor_Scalar": _power,
    "aten.square.default": _square,
    "aten.clamp.default": _clamp,
    "prims.convert_element_type.default": _cast,
    "aten._to_copy.default": _cast,
    "aten.expand.default": _expand,
    "aten.clone.default": _clone,
    "aten.full.default": _constant,
    "aten.scalar_tensor.default": _constant,
}
_MULTI_OUTPUT: dict[str, _Handler] = {
    "aten.var_mean.correction": _var_mean,
    "prims.prepare_softmax_online.default": _online_softmax,
}


def _opaque(builder: _Builder, node: fx.Node) -> None:
    """Anything else: its tensors, what it shares storage with and what it writes, from the op's schema."""
    value = node.meta.get("val", node.meta.get("example_value"))
    tensors = [t for t in _flatten(value) if _is_dense_tensor(t)] if value is not None else []
    node_id = builder._fresh(node.name)
    arguments = [builder.values.get(n) for n in node.all_input_nodes]
    flat = tuple(
        dict.fromkeys(v for a in arguments if a for v in (a if isinstance(a, tuple) else (a,)))
    )
    alias, mutated = _aliasing(builder, node)
    metas = tuple(builder.tensor_meta(t) for t in tensors)
    builder.nodes.append(
        _node(node, node_id, "opaque", flat, metas, {}, alias_of=alias, mutates=mutated)
    )
    held = tuple(value_id(node_id, k) for k in range(max(len(metas), 1)))
    for name, meta in zip(held, metas, strict=False):
        builder.meta[name] = meta
    if isinstance(value, (list, tuple)):
        builder.values[node] = held
    else:
        builder.bind(node, held[0])


def _aliasing(builder: _Builder, node: fx.Node) -> tuple[str | None, tuple[str, ...]]:
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.op != "call_function":
        return None, ()
    alias: str | None = None
    written: list[str] = []
    for position, parameter in enumerate(schema.arguments):
        if parameter.alias_info is None:
            continue
        given = (
            node.args[position] if position < len(node.args) else node.kwargs.get(parameter.name)
        )
        for leaf in _flatten(given):
            value = builder.arg(leaf) if isinstance(leaf, fx.Node) else None
            if not isinstance(value, str):
                continue
            alias = alias or value
            if parameter.alias_info.is_write:
                written.append(value)
    return alias, tuple(written)


def _node(
    source: fx.Node,
    node_id: str,
    op: str,
    args: tuple[Arg, ...],
    outputs: tuple[TensorMeta, ...],
    attributes: dict[str, AttributeValue],
    *,
    alias_of: str | None = None,
    mutates: tuple[str, ...] = (),
) -> Node:
    target = source.op if source.op in ("placeholder", "get_attr") else str(source.target)
    return Node(
        id=node_id, op=op, args=args, attributes=attributes, outputs=outputs, target=target,
        label=str(_named(source).meta.get("original_aten") or target), origin=_origin(_named(source)), alias_of=alias_of,
        mutates=mutates, has_side_effect=bool(mutates) or (source.op == "call_function" and source.is_impure()),
        location=location_of(source),
    )  # fmt: skip


def _named(source: fx.Node) -> fx.Node:
    """The node whose source op this one belongs to: a compiler's own op serves the op of its consumer."""
    if str(source.target) not in _MULTI_OUTPUT or not str(source.target).startswith("prims."):
        return source
    users = [user for item in source.users for user in item.users]
    return next((u for u in users if u.meta.get("original_aten") is not None), source)


def _origin(source: fx.Node) -> str | None:
    """The node of the graph Dynamo captured that this one was decomposed from."""
    chain = source.meta.get("from_node") or []
    if not chain:
        return None
    earliest = chain[0]
    while getattr(earliest, "from_node", None):
        earliest = earliest.from_node[0]
    return str(earliest.name)


def location_of(source: fx.Node) -> Location:
    """Module path, file and line of an FX node, as far as the compiler recorded them."""
    module = None
    stack = source.meta.get("nn_module_stack")
    if stack:
        path = str(list(stack.values())[-1][0])
        module = clean_module_path(path) or None
    frames = list(_FRAME.finditer(source.meta.get("stack_trace") or ""))
    if not frames:
        return Location(module=module)
    return Location(module=module, file=frames[-1]["file"], line=int(frames[-1]["line"]))


def clean_module_path(path: str) -> str:
    """`L['self'].model.layers.slice(None)[0].norm` and its spellings as `model.layers.0.norm`."""
    text = _MODULE_ROOT.sub("", path)
    text = re.sub(r"\['([^']*)'\]|\[(\d+)\]", lambda m: f".{m[1] or m[2]}", text)
    text = text.replace("._modules", "").replace("_orig_mod.", "")
    return text.strip(".")


def _flatten(item: Any) -> list[Any]:
    if isinstance(item, (list, tuple)):
        return [leaf for part in item for leaf in _flatten(part)]
    if isinstance(item, dict):
        return [leaf for part in item.values() for leaf in _flatten(part)]
    return [item]


__all__ = ["Lowered", "clean_module_path", "location_of", "lower", "node_of"]
