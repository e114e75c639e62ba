"""`ExecutionTrace`: every operator of a run with the identity of the memory that it touched.

Unlike a timeline it says exactly who read whose result: a tensor is a region of a storage, and a
storage that the allocator gave out again is another one, told apart by its generation.
"""

from __future__ import annotations

from advisor.model.base import Record, Warning_


class ExecutedTensor(Record, frozen=True, kw_only=True):
    """A region of memory: `storage` and `generation` name it, the rest says which part as what.

    `generation` counts allocations of the storage within the trace; 0 was there before. Offset,
    shape and strides are in elements; `strides` is None where they were not recorded.
    """

    storage: int
    generation: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    device: str

    @property
    def memory(self) -> tuple[int, int]:
        """What tells one allocation from every other."""
        return self.storage, self.generation


Argument = ExecutedTensor | tuple[ExecutedTensor, ...] | str


class ExecutedOp(Record, frozen=True, kw_only=True):
    """One operator, or a range around several; arguments by position, scalars as text ("": none).

    `schema` is the operator's own (`aten::mul_.Tensor(...) -> ...`), "" for ranges and kernels;
    `writes` are the positions of the arguments that it writes to; `is_view` says that its result is
    memory that it was given. `generated` is the compiler that made the kernel, "" for operators.
    `sequence` is autograd's number: that of a gradient's function is that of its forward op.
    """

    id: int
    parent: int
    record_function_id: int
    name: str
    schema: str = ""
    inputs: tuple[Argument, ...] = ()
    outputs: tuple[ExecutedTensor, ...] = ()
    writes: tuple[int, ...] = ()
    is_view: bool = False
    generated: str = ""
    sequence: int = -1

    @property
    def overload(self) -> str:
        """`aten::mul_.Tensor`, or the name where there is no schema."""
        return self.schema.partition("(")[0] or self.name

    def tensors(self) -> tuple[ExecutedTensor, ...]:
        """All tensors it was given, those of lists included."""
        found: list[ExecutedTensor] = []
        for argument in self.inputs:
            if isinstance(argument, ExecutedTensor):
                found.append(argument)
            elif isinstance(argument, tuple):
                found += argument
        return tuple(found)

    def written(self) -> tuple[ExecutedTensor, ...]:
        """The tensors it writes to."""
        found: list[ExecutedTensor] = []
        for position in self.writes:
            argument = self.inputs[position] if position < len(self.inputs) else ""
            if isinstance(argument, ExecutedTensor):
                found.append(argument)
            elif isinstance(argument, tuple):
                found += argument
        return tuple(found)


class ExecutionTrace(Record, frozen=True, kw_only=True):
    """All operators in the order in which they began; parents come before their children."""

    source: str
    schema: str
    ops: tuple[ExecutedOp, ...]
    warnings: tuple[Warning_, ...] = ()
