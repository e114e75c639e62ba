"""A graph under construction from executed ops: who reads whom is known, not guessed.

The memory of a run is followed: which value each allocation holds, and which region it fills. What
is read as it was written is that value; another region of it is a view. A write to memory that held
something before is a mutation of that value, ordered by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from advisor.model.base import Location
from advisor.model.execution import ExecutedOp, ExecutedTensor
from advisor.model.graph import START, AttributeValue, Node, TensorMeta, node_of, value_id
from analyzers.inferred_builder import InferredBuilder
from analyzers.inferred_values import is_dense_row_major, row_major
from analyzers.recorded_ops import Operand, RecordedOp


@dataclass(frozen=True)
class Placed(Operand):
    """An operand that knows its memory."""

    memory: tuple[int, int] = (0, 0)
    offset: int = 0


@dataclass(frozen=True)
class Held:
    """What an allocation holds: a value, and the region of it that the value fills."""

    value: str
    region: Placed


def placed(tensor: ExecutedTensor) -> Placed:
    """A tensor of an execution trace as an operand."""
    return Placed(tensor.dtype, tensor.shape, tensor.strides, tensor.memory, tensor.offset)


def recorded(op: ExecutedOp, location: Location) -> RecordedOp:
    """An executed op in the form that translation reads."""
    arguments = tuple(
        placed(item)
        if isinstance(item, ExecutedTensor)
        else tuple(placed(tensor) for tensor in item)
        if isinstance(item, tuple)
        else item
        for item in op.inputs
    )
    return RecordedOp(op.name, arguments, location)


@dataclass
class ExecutionBuilder(InferredBuilder):
    """Finds operands by their memory; `written` are the allocations that some op wrote to."""

    memories: dict[tuple[int, int], Held] = field(default_factory=dict)
    written: dict[tuple[int, int], None] = field(default_factory=dict)

    def operand(self, item: Operand) -> str:
        """The value that an operand reads, through a view where it is not read as it lies."""
        if not isinstance(item, Placed):
            return self._input(item)
        held = self.memories.get(item.memory)
        if held is None:
            value = self._input(item)
            # What the program repeats without a copy is stored once.
            source = value if _dense(item) else self._stored(value)
            self.memories[item.memory] = Held(source, _stored_region(item))
            return value
        if _same_region(held.region, item):
            return held.value
        return self._part(held, item)

    def rollback(self, mark: int) -> None:
        """Forget the nodes since `mark`, and what was first read through them."""
        dropped = {node.id for node in self.nodes[mark:]}
        super().rollback(mark)
        for memory, held in list(self.memories.items()):
            if node_of(held.value)[0] in dropped:
                del self.memories[memory]

    def overwrite(self) -> None:
        """In-place ops are mutations here; the pool of guesses is of no use."""

    def settle(self, value: str, tensor: ExecutedTensor) -> bool:
        """Give a translated result the layout that it really had; False if it is something else."""
        meta, actual = self._metas[value], _meta(tensor)
        if (meta.dtype, meta.shape) != (actual.dtype, actual.shape):
            return False
        at = self._place(value)
        self.nodes[at] = msgspec.structs.replace(self.nodes[at], outputs=(actual,))
        self._metas[value] = actual
        return True

    def define(self, value: str, tensor: ExecutedTensor) -> None:
        """An op made a new allocation with this value."""
        self.memories[tensor.memory] = Held(value, placed(tensor))

    def mutate(self, value: str, tensor: ExecutedTensor) -> None:
        """The table op behind `value` wrote its result over what the memory held."""
        held = self.memories.get(tensor.memory)
        self.written[tensor.memory] = None
        if held is None:
            # Fresh memory that nothing was known of: the write defines it.
            self.define(value, tensor)
            return
        whole = _same_region(held.region, placed(tensor))
        at = self._place(value)
        self.nodes[at] = msgspec.structs.replace(
            self.nodes[at], mutates=(held.value,), alias_of=held.value
        )
        if whole:
            self.memories[tensor.memory] = Held(value, placed(tensor))

    def call(
        self,
        op: ExecutedOp,
        reads: Sequence[Operand],
        attributes: dict[str, AttributeValue],
        *,
        side_effect: bool = False,
    ) -> Node:
        """An op outside the table, with what it reads, writes and makes."""
        args = tuple(self.operand(item) for item in reads)
        mutated = []
        for tensor in op.written():
            held = self.memories.get(tensor.memory)
            self.written[tensor.memory] = None
            mutated += [held.value] if held is not None else []
        given = {tensor.memory for tensor in op.tensors()}
        made = [tensor for tensor in op.outputs if tensor.memory not in given]
        filled = [t for t in op.written() if t.memory not in self.memories and t not in made]
        alias = self._replaced(op) if not made and not filled else None
        results = [*made, *filled, *(op.written() if alias is not None else ())]
        metas = tuple(_meta(tensor) for tensor in results)
        node = Node(
            id=f"n{len(self.nodes)}",
            op="opaque",
            args=args,
            attributes=attributes,
            outputs=metas,
            target=op.overload.replace("::", "."),
            label=op.name,
            origin=self._origin,
            alias_of=alias,
            mutates=tuple(dict.fromkeys(mutated)),
            has_side_effect=side_effect,
            location=self._op.location,
        )
        self.nodes.append(node)
        for output, tensor in enumerate(results):
            self._metas[value_id(node.id, output)] = metas[output]
            self.define(value_id(node.id, output), tensor)
        return node

    def _replaced(self, op: ExecutedOp) -> str | None:
        """The value that an op in place replaces as a whole, where it is one."""
        written = op.written()
        held = self.memories.get(written[0].memory) if len(written) == 1 else None
        if held is None or not _same_region(held.region, placed(written[0])):
            return None
        return held.value

    def outputs(self) -> tuple[str, ...]:
        """What outlives the ops: memory from before that was written, and results nobody read."""
        read = {value for node in self.nodes for value in (*node.value_args, *node.mutates)}
        inputs = set(self.inputs)
        kept: dict[str, None] = {}
        for memory, held in self.memories.items():
            before = memory[1] == 0
            is_result = node_of(held.value)[0] not in inputs
            if (before and memory in self.written) or (is_result and held.value not in read):
                kept[held.value] = None
        return tuple(kept)

    def _stored(self, value: str) -> str:
        """The input behind an expanded one."""
        node = self.nodes[self._place(value)]
        return str(node.args[0]) if node.op == "expand" else value

    def _place(self, value: str) -> int:
        """Where the node of a value stands: nodes are numbered as they are appended."""
        return int(node_of(value)[0].removeprefix("n"))

    def _part(self, held: Held, item: Placed) -> str:
        """Another region of an allocation than the value it holds fills."""
        stored = held.region
        meta = self._metas[held.value]
        same_bytes = meta.dtype == item.dtype and stored.offset == item.offset
        if same_bytes and stored.elements == item.elements and not _is_part(item):
            return self._view(held.value, meta, item)
        strides = item.strides if item.strides is not None else row_major(item.shape)
        wide = TensorMeta(dtype=item.dtype, shape=item.shape, strides=strides)
        cut: dict[str, AttributeValue] = {START: item.offset - stored.offset}
        return self._append(
            "opaque", (held.value,), wide, cut, target="aten.as_strided", alias=held.value
        ).value()


def _meta(tensor: ExecutedTensor) -> TensorMeta:
    strides = tensor.strides if tensor.strides is not None else row_major(tensor.shape)
    return TensorMeta(dtype=tensor.dtype, shape=tensor.shape, strides=strides)


def _dense(item: Placed) -> bool:
    return item.dense_shape() == item.shape


def _stored_region(item: Placed) -> Placed:
    return Placed(item.dtype, item.dense_shape(), item.strides, item.memory, item.offset)


def _is_part(item: Placed) -> bool:
    return item.extent() > item.elements


def _same_region(held: Placed, item: Placed) -> bool:
    """Whether the very elements are read in the very order; axes of size 1 may have any stride."""
    if (held.shape, held.dtype, held.offset) != (item.shape, item.dtype, item.offset):
        return False
    if held.strides == item.strides:
        return True
    if held.strides is None or item.strides is None:
        dense = held.strides or item.strides or ()
        return is_dense_row_major(item.shape, dense)
    rows = zip(item.shape, held.strides, item.strides, strict=True)
    return all(size == 1 or mine == theirs for size, mine, theirs in rows)
