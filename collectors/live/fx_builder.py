"""Builds a `Graph` from FX nodes: values, literals, equal nodes merged, where each came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import fx

from advisor.model.base import Location
from advisor.model.graph import (
    Arg,
    AttributeValue,
    Boundary,
    Node,
    SourceOp,
    TensorMeta,
    literal,
    value_id,
)
from advisor.model.optable import spec_of
from advisor.model.sizes import Dim
from collectors.live.source_ops import (
    REPEATS,
    is_recomputed,
    label_of,
    named,
    origin_of,
    source_op,
)

_MODULE_ROOT = re.compile(r"^L\['[^']*'\](\[\d+\])?\.?(__self__\.?)?|^L__self___?|^_orig_mod\.?")
_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+), in ')
_TORCH = Path(torch.__file__).parent
# Namespaces of ops whose effect no tensor carries.
_BOUNDARIES: dict[str, Boundary] = {
    "streams": "stream",
    "control_deps": "stream",
    "_c10d_functional": "communication",
    "_c10d_functional_autograd": "communication",
    "c10d_functional": "communication",
    "c10d": "communication",
    "symm_mem": "communication",
}


@dataclass
class GraphBuilder:
    """The graph so far and the maps between its values and FX nodes, both ways."""

    nodes: list[Node] = field(default_factory=list)
    meta: dict[str, TensorMeta] = field(default_factory=dict)
    values: dict[fx.Node, str | tuple[str, ...]] = field(default_factory=dict)
    literals: dict[fx.Node, Arg] = field(default_factory=dict)
    merged: dict[tuple[Any, ...], str] = field(default_factory=dict)
    place: dict[str, int] = field(default_factory=dict)
    fx_node: dict[str, fx.Node] = field(default_factory=dict)
    fx_aliases: dict[str, list[fx.Node]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    cast_values: set[str] = field(default_factory=set)
    spent: set[str] = field(default_factory=set)

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
        held = self.meta.get(str(arguments[0])) if op == "cast" else None
        # Copies in two orders are two results.
        order = meta.strides if held is not None and held.dtype == meta.dtype else ()
        key = (op, arguments, tuple(sorted(attributes.items())), meta.dtype, meta.shape, order)
        if key in self.merged:
            self._repeat(self.merged[key], source)
            return self.merged[key]
        node_id = self.fresh(source.name)
        self.nodes.append(graph_node(source, node_id, op, arguments, (meta,), attributes))
        self.place[value_id(node_id)] = len(self.nodes) - 1
        self.meta[value_id(node_id)] = meta
        self.merged[key] = value_id(node_id)
        return value_id(node_id)

    def _repeat(self, value: str, source: fx.Node) -> None:
        """Note that a value is computed once more, if that is by an op of its own."""
        place = self.place[value]
        node, again = self.nodes[place], source_op(source)
        known = {SourceOp(origin=node.origin or "", label=node.label), *node.repeats}
        if again is not None and again not in known:
            self.nodes[place] = replace(node, repeats=(*node.repeats, again))

    def bind(self, source: fx.Node, value: str) -> None:
        """Say that an FX node holds a value."""
        self.values[source] = value
        self.fx_node.setdefault(value, source)
        self.fx_aliases.setdefault(value, []).append(source)

    def finished(self) -> tuple[Node, ...]:
        """All nodes; what no FX node holds is hidden inside the op that it was decomposed from.

        Those that are `spent` were views for somebody who reads what is behind them.
        """
        return tuple(
            replace(node, hidden=True)
            if spec_of(node.op).kind != "opaque" and node.value() not in self.fx_node
            else node
            for node in self.nodes
            if node.id not in self.spent
        )

    def forget(self) -> None:
        """After a write: equal ops are no longer equal values, and constants may have changed."""
        self.merged.clear()
        self.literals.clear()

    def arg(self, item: Any) -> Arg:
        """An FX argument as a value, a literal, or None where it is neither."""
        if isinstance(item, fx.Node):
            if item in self.literals:
                return self.literals[item]
            value = self.values.get(item)
            return value if isinstance(value, str) else None
        return literal(item) if isinstance(item, (int, float, bool)) else None

    def tensor_meta(self, tensor: torch.Tensor) -> TensorMeta:
        """Shape, strides, dtype of a (fake) tensor; symbolic sizes as text, their hints kept."""
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
        text = str(size.node.expr)
        shapes = size.node.shape_env
        known = getattr(shapes, "backed_var_to_val", None)  # formerly var_to_val
        for symbol in size.node.expr.free_symbols:
            hint = (shapes.var_to_val if known is None else known).get(symbol)
            if hint is not None:
                self.hints[str(symbol)] = int(hint)
        # A sum of symbols is a symbol of its own to whoever multiplies sizes.
        if size.node.hint is not None:
            self.hints[text] = int(size.node.hint)
        return text

    def fresh(self, name: str) -> str:
        """A node id that is not used yet."""
        candidate, number = name, 0
        while candidate in self.used:
            number += 1
            candidate = f"{name}.{number}"
        self.used.add(candidate)
        return candidate


def graph_node(
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
    """A node of the graph with the origin, label and location of the FX node it comes from."""
    target = source.op if source.op in ("placeholder", "get_attr") else str(source.target)
    return Node(
        id=node_id,
        op=op,
        args=args,
        attributes=attributes,
        outputs=outputs,
        target=target,
        label=label_of(source),
        origin=origin_of(named(source)),
        repeats=() if is_recomputed(source) else source.meta.get(REPEATS, ()),
        recomputed=is_recomputed(source),
        alias_of=alias_of,
        mutates=mutates,
        has_side_effect=bool(mutates) or (source.op == "call_function" and source.is_impure()),
        stream=_stream(source),
        boundary=_BOUNDARIES.get(str(source.target).partition(".")[0])
        if source.op == "call_function"
        else None,
        location=location_of(source if source.meta.get("stack_trace") else named(source)),
    )


def _stream(source: fx.Node) -> int | None:
    """The number by which Dynamo knows the stream that the user's code made current."""
    number = (source.meta.get("custom") or {}).get("stream")
    return number if isinstance(number, int) else None


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
    # Where the user called a module of torch, not where torch implements it.
    own = [frame for frame in frames if not _is_torch(frame["file"])] or frames
    return Location(module=module, file=short_path(own[-1]["file"]), line=int(own[-1]["line"]))


@lru_cache(maxsize=4096)
def _is_torch(file: str) -> bool:
    return Path(file).is_relative_to(_TORCH)


def short_path(file: str) -> str:
    """A source file as people name it: from its package on, or from the working directory."""
    return _short_path(file, str(Path.cwd()))


@lru_cache(maxsize=4096)
def _short_path(file: str, here: str) -> str:
    _, installed, inside = file.rpartition("/site-packages/")
    if installed:
        return inside
    path = Path(file)
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def clean_module_path(path: str) -> str:
    """`L['self'].model.layers.slice(None)[0].norm` and its spellings as `model.layers.0.norm`."""
    text = _MODULE_ROOT.sub("", path)
    text = re.sub(r"\['([^']*)'\]|\[(\d+)\]", lambda m: f".{m[1] or m[2]}", text)
    text = text.replace("._modules", "").removeprefix("_modules").replace("_orig_mod.", "")
    return text.strip(".")


def flatten(item: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts."""
    if isinstance(item, (list, tuple)):
        return [leaf for part in item for leaf in flatten(part)]
    if isinstance(item, dict):
        return [leaf for part in item.values() for leaf in flatten(part)]
    return [item]


# Lowers a node, or says False where that is outside the table: it is opaque then.
Handler = Callable[[GraphBuilder, fx.Node], bool]
