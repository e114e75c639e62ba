"""A graph under construction from recorded ops: nodes, views between them, guesses counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec

from advisor.model.base import Location
from advisor.model.graph import Arg, AttributeValue, Node, TensorMeta
from advisor.model.sizes import Dim
from analyzers.inferred_values import (
    ValuePool,
    is_dense_row_major,
    row_major,
    same_layout,
)
from analyzers.recorded_ops import Operand, RecordedOp

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_RANKS = {
    name: rank
    for rank, name in enumerate(
        (
            "bool",
            "uint8",
            "int8",
            "int16",
            "int32",
            "int64",
            "float16",
            "bfloat16",
            "float32",
            "float64",
        )
    )
}


@dataclass
class InferredBuilder:
    """Nodes in order, the pool of values operands may read, and the op being translated."""

    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    pool: ValuePool = field(default_factory=ValuePool)
    views: int = 0
    guessed_outputs: int = 0
    once_reduced: set[str] = field(default_factory=set)
    stored: list[str] = field(default_factory=list)
    _op: RecordedOp = field(default_factory=lambda: RecordedOp("", ()))
    _origin: str = ""
    _taken: set[str] = field(default_factory=set)
    _read: list[tuple[str, bool]] = field(default_factory=list)
    _metas: dict[str, TensorMeta] = field(default_factory=dict)
    _left: tuple[Operand, str] | None = None
    _written: bool = False
    _updates_buffer: bool = False

    def begin(self, op: RecordedOp, origin: str, *, accumulates: bool = False) -> None:
        """Start translating an op; its nodes share `origin`.

        `accumulates`: it adds to the gradient of a parameter, a buffer that no earlier op made.
        """
        self._op, self._origin = op, origin
        self._written = op.name.endswith("_") and op.name != "aten::copy_"
        self._updates_buffer = accumulates
        self._taken, self._read = set(), []

    def end(self, *, library_call: bool, product: bool = False) -> None:
        """The op is done: its reads count from now on."""
        if not product:
            self._left = None
        for name, cut in self._read:
            self.pool.read(name, cut=cut)
        self.pool.tick(library_call)

    def rollback(self, mark: int) -> None:
        """Forget the nodes since `mark` (a length of `nodes`): the op turned out to be opaque."""
        dropped = {node.id for node in self.nodes[mark:]}
        del self.nodes[mark:]
        self.inputs = [name for name in self.inputs if name not in dropped]
        self._taken, self._read = set(), []

    def meta(self, value: str) -> TensorMeta:
        """Shape, strides and dtype of a value made here."""
        return self._metas[value]

    # --- operands ---------------------------------------------------------------------------------

    def operand(self, item: Operand) -> str:
        """The value that an operand reads, through a view if it is not read as it lies."""
        if not item.shape:
            return self._input(item)
        written, self._written = self._written, False
        if written and self._updates_buffer:
            return self._input(item)
        found = self.pool.find(item, self._taken, written=written)
        if found is None:
            self._updates_buffer |= written
            return self._input(item)
        self._taken.add(found.name)
        self._read.append((found.name, item.extent() > item.elements))
        if same_layout(found.meta, item):
            return found.name
        self.views += 1
        return self._view(found.name, found.meta, item)

    def _shared(self, item: Operand, left: Operand | None) -> str:
        if item is left and self._left is not None and self._left[0] == left:
            self._read.append((self._left[1], False))
            return self._left[1]
        return self.operand(item)

    def scalar(self, position: int) -> Arg:
        """A scalar argument as a literal, or as an input where its value was not recorded."""
        number = self._op.number(position)
        if number is not None and math.isfinite(number):
            return number
        return self._input(Operand("float32", (), ()))

    def either(self, position: int) -> Arg:
        """The tensor at a position, or the scalar there."""
        item = self._op.tensor(position)
        # A Python number in tensor arithmetic is recorded as a tensor of double or int64, no axes.
        if item is None or (not item.shape and item.dtype in ("float64", "int64")):
            return self.scalar(position)
        return self.operand(item)

    def _input(self, item: Operand) -> str:
        """A value from outside, stored without its repeated axes."""
        dtype = item.dtype or "float32"
        strides = item.strides if item.strides is not None else row_major(item.shape)
        stored = item.dense_shape()
        meta = TensorMeta(dtype=dtype, shape=stored, strides=strides)
        node = self._append("opaque", (), meta, {}, target="placeholder", origin=None)
        self.inputs.append(node.id)
        if stored == item.shape:
            return node.value()
        wide = TensorMeta(dtype=dtype, shape=item.shape, strides=strides)
        return self._append("expand", (node.value(),), wide, {}, alias=node.value()).value()

    def _view(self, value: str, stored: TensorMeta, item: Operand) -> str:
        """`value` as it is read: reshaped or repeated if the order stays, else an opaque view."""
        strides = item.strides if item.strides is not None else row_major(item.shape)
        dense = item.dense_shape()
        meta = TensorMeta(dtype=stored.dtype, shape=dense, strides=strides)
        plain = is_dense_row_major(dense, strides) and is_dense_row_major(
            stored.shape, stored.strides
        )
        if plain:
            if dense != stored.shape:
                value = self._append("reshape", (value,), meta, {}, alias=value).value()
        else:
            part = item.extent() > item.elements
            target = "aten.slice" if part else "aten.permute"
            value = self._append("opaque", (value,), meta, {}, target=target, alias=value).value()
        if dense != item.shape:
            wide = TensorMeta(dtype=stored.dtype, shape=item.shape, strides=strides)
            value = self._append("expand", (value,), wide, {}, alias=value).value()
        return value

    # --- results ----------------------------------------------------------------------------------

    def emit(
        self, op: str, args: tuple[Arg, ...], meta: TensorMeta, **attributes: AttributeValue
    ) -> str:
        """One table op of the current source op."""
        return self._append(op, args, meta, attributes).value()

    def pointwise(self, op: str, *args: Arg, dtype: str | None = None) -> str:
        """One pointwise op: the result has the broadcast shape and the promoted dtype."""
        metas = [self._metas[a] for a in args if isinstance(a, str) and a in self._metas]
        return self.emit(op, args, self.result(metas, dtype))

    def result(self, metas: list[TensorMeta], dtype: str | None = None) -> TensorMeta:
        """Broadcast shape, promoted dtype, strides in the order of the first full-size operand."""
        shape = _broadcast([m.shape for m in metas])
        leader = next((m for m in metas if m.shape == shape), None)
        return TensorMeta(
            dtype=dtype or _promote(metas),
            shape=shape,
            strides=_follow(leader, shape),
        )

    def opaque(
        self,
        meta: TensorMeta | None,
        reads: tuple[Operand, ...],
        attributes: dict[str, AttributeValue],
        left: Operand | None = None,
    ) -> str:
        """A library call or anything else that is not in the table.

        `left` is the left operand of a matrix product. The product straight before it with an equal
        one reads the same value: two products in a row with nothing between would be one.
        """
        args = tuple(self._shared(item, left) for item in reads if item.shape)
        if left is not None:
            self._left = (left, args[[item for item in reads if item.shape].index(left)])
        metas = () if meta is None else (meta,)
        if meta is not None and args and not reads[0].dtype:
            # Lists of tensors are recorded without dtypes: it is that of what they were bound to.
            metas = (msgspec.structs.replace(meta, dtype=self._metas[args[0]].dtype),)
        node = Node(
            id=f"n{len(self.nodes)}",
            op="opaque",
            args=args,
            attributes=attributes,
            outputs=metas,
            target=_target(self._op.name),
            label=self._op.name,
            origin=self._origin,
            location=self._op.location,
        )
        self.nodes.append(node)
        if metas:
            self._metas[node.value()] = metas[0]
        return node.value()

    def publish(self, value: str) -> None:
        """Make the result of the current op readable by later ones."""
        self.pool.add(value, self._metas[value])
        if self._updates_buffer:
            self.pool.keep(value)

    def store(self, value: str) -> None:
        """The result went into a buffer of the caller: it leaves the step, unread as it is."""
        self.stored.append(value)

    def overwrite(self) -> None:
        """The op wrote into its first operand: nobody reads the old value again."""
        if self._read and not self._updates_buffer:
            self.pool.finish(self._read[0][0])

    def _append(
        self,
        op: str,
        args: tuple[Arg, ...],
        meta: TensorMeta,
        attributes: dict[str, AttributeValue],
        target: str = "",
        origin: str | None = "",
        alias: str | None = None,
    ) -> Node:
        node = Node(
            id=f"n{len(self.nodes)}",
            op=op,
            args=args,
            attributes=attributes,
            outputs=(meta,),
            target=target or _target(self._op.name),
            label=self._op.name,
            origin=self._origin if origin == "" else origin,
            alias_of=alias,
            location=Location() if origin is None else self._op.location,
        )
        self.nodes.append(node)
        self._metas[node.value()] = meta
        return node


def _target(name: str) -> str:
    """`aten::mul` as graphs spell it: `aten.mul`."""
    return name.replace("::", ".")


def _broadcast(shapes: list[tuple[Dim, ...]]) -> tuple[int, ...]:
    """PyTorch's broadcast shape; recorded sizes are all numbers."""
    known = [tuple(int(size) for size in shape) for shape in shapes]
    rank = max((len(shape) for shape in known), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))


def _promote(metas: list[TensorMeta]) -> str:
    """PyTorch's type promotion as the table needs it: tensors with axes outrank those without."""
    ranked = [m for m in metas if m.shape] or metas
    names = {m.dtype for m in ranked}
    if {"float16", "bfloat16"} <= names:
        return "float32"
    return max(names, key=lambda n: _RANKS.get(n, -1), default="float32")


def is_float(dtype: str) -> bool:
    """Whether a dtype is a floating-point one that kernels compute in."""
    return dtype in _FLOATS


def _follow(leader: TensorMeta | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Dense strides in the memory order of an operand, as PyTorch's element-wise kernels write."""
    if leader is None or any(stride == 0 for stride in leader.strides):
        return row_major(shape)
    order = sorted(range(len(shape)), key=lambda axis: (-int(leader.strides[axis]), axis))
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)
