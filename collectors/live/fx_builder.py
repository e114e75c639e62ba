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
    GRADIENT,
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

_MODULE_ROOT = re.compile(r"^L\['[^']*'\](\[\d+\])?\.?(__self__\.?)?|^L__self___?|^_orig_mod\.?")
_FRAME = re.compile(r'File "(?P<file>.*)", line (?P<line>\d+), in ')
_TORCH = Path(torch.__file__).parent
# What AOTAutograd writes on nodes that only the backward pass computes.
_BACKWARD = "is_backward"
# RMSNorm of the library is one kernel on a GPU, in releases that know its gradient as one op.
_RMS_NORMS = (torch.nn.RMSNorm, torch.nn.functional.rms_norm, torch.rms_norm)
_FUSED_RMS_NORM = "aten._fused_rms_norm.default"
_CASTS = ("aten._to_copy", "prims.convert_element_type")
# Under this name a node keeps the equal ops that a pass merged into it.
REPEATS = "fusion_advisor_repeats"
# How far to look for the source op behind nodes that a compiler pass made.
_MOST_HOPS = 32
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
        label=_label(source),
        origin=_origin(_named(source)),
        repeats=() if _is_recomputed(source) else source.meta.get(REPEATS, ()),
        alias_of=alias_of,
        mutates=mutates,
        has_side_effect=bool(mutates) or (source.op == "call_function" and source.is_impure()),
        stream=_stream(source),
        boundary=_BOUNDARIES.get(str(source.target).partition(".")[0])
        if source.op == "call_function"
        else None,
        location=location_of(source if source.meta.get("stack_trace") else _named(source)),
    )


def _label(source: fx.Node) -> str:
    """The source op's kind."""
    target = source.op if source.op in ("placeholder", "get_attr") else str(source.target)
    return _library_call(source) or str(_named(source).meta.get("original_aten") or target)


def source_op(source: fx.Node) -> SourceOp | None:
    """The op of the user's program that a node is part of; None where eager may run none for it.

    Autocast keeps the casts of parameters: eager then runs one for several uses.
    """
    label = str(source.meta.get("original_aten") or "")
    if not label or _is_recomputed(source):
        return None
    if label.startswith(_CASTS) and source.all_input_nodes[0].op == "placeholder":
        return None
    origin = _origin(_named(source))
    return None if origin is None else SourceOp(origin=origin, label=_label(source))


def _library_call(source: fx.Node) -> str | None:
    """The op that a GPU runs for a library call which falls into pieces on the CPU only."""
    value, calls = source.meta.get("val"), source.meta.get("source_fn_stack") or [("", None)]
    on_cpu = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    fused = hasattr(torch.ops.aten, "_fused_rms_norm_backward")
    return _FUSED_RMS_NORM if on_cpu and fused and calls[-1][1] in _RMS_NORMS else None


def _stream(source: fx.Node) -> int | None:
    """The number by which Dynamo knows the stream that the user's code made current."""
    number = (source.meta.get("custom") or {}).get("stream")
    return number if isinstance(number, int) else None


def _named(source: fx.Node) -> fx.Node:
    """The node whose source op this one serves: for a node the compiler made, its consumer.

    The backward graph computes parts of the forward pass again, to spare memory. Eager does not: it
    reads what the forward pass saved. Such a node belongs to the gradient that needs it.

    A pass that rewrites a pattern leaves nodes without a place in the program; the first user
    of theirs that has one belongs to the op that the pattern was.
    """
    original = str(source.meta.get("original_aten") or "")
    again = _is_recomputed(source)
    if original and not original.startswith("prims.prepare") and not again:
        return source
    pending, seen = list(source.users), 0
    while pending and seen < _MOST_HOPS:
        node = pending.pop(0)
        seen += 1
        placed = node.meta.get("stack_trace") or node.meta.get("from_node")
        if again:
            placed = node.meta.get("partitioner_tag") == _BACKWARD
        if placed and node.meta.get("original_aten") is not None:
            return node
        pending += list(node.users)
    return source


def _is_recomputed(source: fx.Node) -> bool:
    """Whether a node of the backward graph is a copy of one of the forward graph."""
    return (
        source.op == "call_function"
        and bool(source.meta.get("autograd_backward"))
        and source.meta.get("partitioner_tag") != _BACKWARD
    )


def _origin(source: fx.Node) -> str | None:
    """The node of the graph Dynamo captured that this one was decomposed from.

    Gradients are in no such graph. A `..._backward` op runs once for each op of the forward pass,
    whose sequence number it carries; any other gradient node is an op by itself.
    """
    chain = source.meta.get("from_node") or []
    if not chain:
        if source.meta.get("partitioner_tag") != _BACKWARD or source.op != "call_function":
            return None
        number = source.meta.get("seq_nr")
        whole = "_backward" in str(source.meta.get("original_aten")) and number is not None
        return f"{GRADIENT}{number if whole else source.name}"
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
