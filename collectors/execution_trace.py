"""PyTorch's execution trace (`ExecutionTraceObserver`): JSON in, `ExecutionTrace` out.

The file names storages by address: the allocator gives one address out again and again. Nodes are
written when they end and numbered when they begin; both orders are followed, so that what an op
reads is the memory as it was when it began, and a result that no argument and no inner op brought
is a new allocation. Format: torch/csrc/profiler/standalone/execution_trace_observer.cpp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from advisor.errors import UnreadableError
from advisor.model.base import Warning_
from advisor.model.dtypes import RECORDED_DTYPES
from advisor.model.execution import Argument, ExecutedOp, ExecutedTensor, ExecutionTrace
from collectors.bytes_in import Source

MAX_BYTES = 4 << 30
_TENSOR = re.compile(r"Tensor\((?P<dtype>.*)\)")
_LIST = "GenericList["
_ALIAS = re.compile(r"\([a-z]+(?P<write>!)?(?: -> \*)?\)")


class _Values(msgspec.Struct, gc=False):
    values: list[Any]
    shapes: list[Any]
    types: list[str]
    strides: list[Any] = []


class _Attribute(msgspec.Struct, gc=False):
    name: str
    value: Any = None


class _Node(msgspec.Struct, gc=False):
    id: int
    name: str
    ctrl_deps: int
    inputs: _Values
    outputs: _Values
    attrs: list[_Attribute]


class _File(msgspec.Struct):
    nodes: list[_Node]
    schema: str = ""


def read_execution_trace(path: Path) -> ExecutionTrace:
    """The trace in a file, plain or compressed; raises `UnreadableError`."""
    parts, have = [], 0
    for chunk in Source(path).chunks():
        have += len(chunk)
        if have > MAX_BYTES:
            raise UnreadableError("is too large for an execution trace", where=str(path))
        parts.append(chunk)
    try:
        held = msgspec.json.decode(b"".join(parts), type=_File)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableError(
            "is no execution trace",
            where=str(path),
            why=str(error),
            remedy="record it with torch.profiler.ExecutionTraceObserver",
        ) from error
    reading = _Reading()
    ops = reading.ops(held.nodes)
    return ExecutionTrace(
        source=str(path), schema=held.schema, ops=ops, warnings=reading.warnings()
    )


@dataclass
class _Allocation:
    """How often a storage was given out, and the op that last did."""

    generation: int = 0
    op: int = -1


@dataclass
class _Reading:
    """Storages as they are while the nodes are gone through."""

    storages: dict[int, _Allocation] = field(default_factory=dict)
    inputs: dict[int, tuple[Argument, ...]] = field(default_factory=dict)
    unknown_types: set[str] = field(default_factory=set)
    unknown: int = 0
    ended: list[ExecutedOp] = field(default_factory=list)

    def ops(self, nodes: list[_Node]) -> tuple[ExecutedOp, ...]:
        """The nodes as ops, in the order in which they began."""
        begun = sorted(nodes, key=lambda node: node.id)
        place = 0
        for node in nodes:  # in the order in which they ended
            while place < len(begun) and begun[place].id <= node.id:
                self._begin(begun[place])
                place += 1
            self.ended.append(self._end(node))
        return tuple(sorted(self.ended, key=lambda op: op.id))

    def warnings(self) -> tuple[Warning_, ...]:
        """What could not be understood, counted."""
        if not self.unknown:
            return ()
        note = (
            f"tensors of types this reader does not know: {', '.join(sorted(self.unknown_types))}"
        )
        return (Warning_(code="execution-types", message=note, count=self.unknown),)

    def _begin(self, node: _Node) -> None:
        self.inputs[node.id] = tuple(self._arguments(node.inputs))

    def _end(self, node: _Node) -> ExecutedOp:
        attributes = {item.name: item.value for item in node.attrs}
        schema = str(attributes.get("op_schema") or "")
        writes, is_view = aliasing(schema)
        inputs = self.inputs.pop(node.id)
        given = {tensor.storage for tensor in _flat(inputs)}
        if schema:
            self._allocate(node, given)
        outputs = _flat(tuple(self._arguments(node.outputs)))
        return ExecutedOp(
            id=node.id,
            parent=node.ctrl_deps,
            record_function_id=int(attributes.get("rf_id") or 0),
            name=node.name,
            schema=schema,
            inputs=inputs,
            outputs=outputs,
            writes=writes,
            is_view=is_view,
            generated=str(attributes.get("kernel_backend") or ""),
            sequence=_whole(attributes.get("seq_id")),
        )

    def _allocate(self, node: _Node, given: set[int]) -> None:
        """A storage that the op was not given, and that no op inside it made, is a new one."""
        for tensor in _flat(tuple(self._arguments(node.outputs))):
            held = self.storages.setdefault(tensor.storage, _Allocation())
            if tensor.storage not in given and held.op < node.id:
                held.generation += 1
                held.op = node.id
                self._made_before(node.id, tensor.storage, held.generation)

    def _made_before(self, outer: int, storage: int, generation: int) -> None:
        """Kernels allocate their result unseen, and ops inside fill it before it is returned."""
        first = len(self.ended)
        while first and self.ended[first - 1].id > outer:
            first -= 1
        filled = False
        for at in range(first, len(self.ended)):
            op = self.ended[at]
            filled |= any(tensor.storage == storage for tensor in op.written())
            if filled:
                self.ended[at] = _renewed(op, storage, generation)

    def _arguments(self, values: _Values) -> list[Argument]:
        count = len(values.values)
        shapes = values.shapes if len(values.shapes) == count else [[]] * count
        strides = values.strides if len(values.strides) == count else [None] * count
        rows = zip(values.types, values.values, shapes, strides, strict=False)
        return [self._argument(*row) for row in rows]

    def _argument(self, kind: str, value: Any, shape: Any, strides: Any) -> Argument:
        if kind.startswith("Tensor("):
            return self._tensor(kind, value, shape, strides) or ""
        if kind.startswith(_LIST) and isinstance(value, list):
            kinds = kind[len(_LIST) : -1].split(",")
            if kinds and all(item.startswith("Tensor(") for item in kinds):
                steps = strides if isinstance(strides, list) else [None] * len(value)
                rows = zip(kinds, value, shape, steps, strict=False)
                items = [self._tensor(*row) for row in rows]
                return tuple(item for item in items if item is not None)
        return "" if kind == "None" or value == "<None>" else str(value)

    def _tensor(self, kind: str, value: Any, shape: Any, strides: Any) -> ExecutedTensor | None:
        match = _TENSOR.fullmatch(kind)
        name = match["dtype"] if match else kind
        dtype = RECORDED_DTYPES.get(name)
        if not isinstance(value, list) or len(value) < 6 or not isinstance(shape, list):
            return None
        if name.startswith("nullptr"):  # an undefined tensor: autograd's word for no gradient
            return None
        if dtype is None:
            self.unknown += 1
            self.unknown_types.add(name)
            return None
        tensor, storage, offset, elements, _, device = value[:6]
        # Tensors without memory share the address nil: each is a storage of its own.
        owner = int(storage) if elements else -int(tensor) - 1
        return ExecutedTensor(
            storage=owner,
            generation=self.storages.setdefault(owner, _Allocation()).generation,
            offset=int(offset),
            dtype=dtype,
            shape=tuple(shape),
            strides=tuple(strides)
            if isinstance(strides, list) and len(strides) == len(shape)
            else None,
            device=str(device),
        )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _renewed(op: ExecutedOp, storage: int, generation: int) -> ExecutedOp:
    """The op with another generation of a storage."""

    def renewed(argument: Argument) -> Argument:
        if isinstance(argument, tuple):
            return tuple(_new_memory(tensor, storage, generation) for tensor in argument)
        return argument if isinstance(argument, str) else _new_memory(argument, storage, generation)

    return replace(
        op,
        inputs=tuple(renewed(argument) for argument in op.inputs),
        outputs=tuple(_new_memory(tensor, storage, generation) for tensor in op.outputs),
    )


def _new_memory(tensor: ExecutedTensor, storage: int, generation: int) -> ExecutedTensor:
    return replace(tensor, generation=generation) if tensor.storage == storage else tensor


def _flat(arguments: tuple[Argument, ...]) -> tuple[ExecutedTensor, ...]:
    found: list[ExecutedTensor] = []
    for argument in arguments:
        if isinstance(argument, ExecutedTensor):
            found.append(argument)
        elif isinstance(argument, tuple):
            found += argument
    return tuple(found)


def aliasing(schema: str) -> tuple[tuple[int, ...], bool]:
    """(positions of the arguments written to, whether the result is memory that was given).

    `aten::t(Tensor(a) self) -> Tensor(a)` is a view; `mul_(Tensor(a!) self, ...)` writes.
    """
    _, opening, rest = schema.partition("(")
    if not opening:
        return (), False
    arguments, _, result = rest.rpartition(") -> ")
    parts = _split(arguments)
    positions = [part for part in parts if part != "*"]
    writes = tuple(
        at
        for at, part in enumerate(positions)
        if (match := _ALIAS.search(part)) is not None and match["write"]
    )
    shared = _ALIAS.search(result)
    return writes, shared is not None and not shared["write"]


def _split(text: str) -> list[str]:
    """Arguments at commas that no bracket encloses."""
    parts, depth, current = [], 0, ""
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return [*parts, current.strip()] if current.strip() else parts
