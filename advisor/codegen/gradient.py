"""The gradient of a row program is a row program: reverse-mode differentiation of the op table.

Inputs are what the forward program reads and the gradients of its outputs; forward values are
computed again in registers, which moves fewer bytes than saving them. Everything is float32. A
gradient is summed over the columns in the kernel where its value has none; the sum over rows, of
values that do not span them, is linear: it is the last thing done, in the kernel or by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from advisor.codegen.derivatives import FLAT, POINTWISE, REDUCTIONS
from advisor.codegen.tape import Tape
from advisor.errors import IllegalFusionError, InvalidRecordError
from advisor.model.column_configs import holds_rows
from advisor.model.derived import dense_strides, renamed
from advisor.model.gathers import gathers
from advisor.model.graph import Arg
from advisor.model.optable import FLOAT_DTYPES, spec_of
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, PlanOutput, Site, plan_id
from advisor.model.spaces import Space, space_of

# Rows that are reduced both ways are held whole; longer ones do not fit beside their sums.
LONGEST_HELD = 8192


@dataclass(frozen=True)
class Gradient:
    """A plan and what it is called with.

    `given` are the forward inputs that it reads, `received` the outputs whose gradients it reads
    after them, `written` for each of its outputs the forward inputs that it is the gradient of.
    """

    plan: FusionPlan
    given: tuple[int, ...]
    received: tuple[int, ...]
    written: tuple[tuple[int, ...], ...]


def gradient(plan: FusionPlan) -> Gradient:
    """The gradient of a plan in all its floating-point inputs.

    Those of inputs that are the same for all rows are summed over the rows in the same pass, where
    one kernel can. Raises `IllegalFusionError` where there is none, or it is too large for one.
    """
    if plan.states:
        raise IllegalFusionError("no gradient is derived of a scan")
    if plan.product is not None:
        raise IllegalFusionError("no gradient is derived of a matrix product")
    if plan.late_values():
        raise IllegalFusionError("no gradient is derived of reductions over the rows")
    if plan.column_axes > 1 or plan.strided_outputs:
        raise IllegalFusionError("no gradient is derived of rows of several axes")
    if gathers(plan):
        raise IllegalFusionError("the gradient of a table adds up rows of equal indices elsewhere")
    backward = _Backward(plan)
    for op in reversed(plan.ops):
        backward.differentiate(op)
    try:
        found = backward.result(over_rows=True)
    except IllegalFusionError:
        return backward.result(over_rows=False)
    if any(site.columns > LONGEST_HELD for site in found.plan.sites) and holds_rows(found.plan):
        return backward.result(over_rows=False)
    return found


class _Backward:
    """Gradients by value, on a tape that starts as the forward program."""

    def __init__(self, plan: FusionPlan) -> None:
        self.plan, self.tape = plan, Tape(plan)
        self.sums: dict[str, str] = {}
        self.received: list[tuple[int, PlanInput]] = []
        for position, output in enumerate(plan.outputs):
            if output.dtype in FLOAT_DTYPES:
                self._receive(position, output)

    def _receive(self, position: int, output: PlanOutput) -> None:
        """The gradient of an output, an input of this program."""
        name = f"in{len(self.plan.inputs) + len(self.received)}"
        spans = (*(True,) * self.plan.row_axes, output.space == "tile")
        item = PlanInput(name=name, dtype=output.dtype, spans=spans, dense=True)
        self.received.append((position, item))
        self.tape.input(item)
        self._add(output.value, name)

    def _add(self, value: str, gradient: str) -> None:
        before = self.sums.get(value)
        self.sums[value] = gradient if before is None else self.tape.op("add", before, gradient)

    def differentiate(self, op: PlanOp) -> None:
        """Add what the gradient of an op's value gives its operands."""
        tape, arriving = self.tape, self.sums.get(op.name)
        if arriving is None or op.dtype not in FLOAT_DTYPES or op.op in FLAT:
            return
        if spec_of(op.op).kind == "reduction":
            self._add(str(op.args[0]), REDUCTIONS[op.op](tape, op, arriving))
            return
        rule = POINTWISE.get(op.op)
        if rule is None:
            raise IllegalFusionError(f"no derivative of {op.op} is known")
        for arg, part in zip(op.args, rule(tape, op, arriving), strict=True):
            if part is not None and tape.varies(arg):
                self._add(str(arg), self._folded(part, op, str(arg)))

    def _folded(self, part: str, op: PlanOp, arg: str) -> str:
        """Summed over the columns where the op has them and the operand has not."""
        tape = self.tape
        if not _columns(op.space) or _columns(tape.spaces[arg]):
            return part
        if _columns(tape.spaces[part]):
            return tape.op("sum", part)
        return tape.op("mul", part, tape.columns())

    def result(self, *, over_rows: bool) -> Gradient:
        """The gradients of all inputs as outputs, and only what they rest on.

        With `over_rows` those of inputs without rows are summed over them, without it the caller
        does that.
        """
        written: dict[str, list[int]] = {}
        for place, item in enumerate(self.plan.inputs):
            found = self.sums.get(item.name)
            if found is None or item.dtype not in FLOAT_DTYPES:
                continue
            tile = self.tape.spaces[found] == "tile"
            whole = tile and all(item.spans)
            if over_rows and tile and space_of(item.spans) == "column":
                found, whole = self.tape.over_rows(found), True
            value = self.tape.cast(found, item.dtype if whole else "float32")
            written.setdefault(value, []).append(place)
        if not written:
            raise IllegalFusionError("no output of it varies with a floating-point input")
        wanted: set[Arg] = set(written)
        for op in reversed(self.tape.ops):
            if op.name in wanted:
                wanted |= set(op.args)
        given = [n for n, item in enumerate(self.plan.inputs) if item.name in wanted]
        received = [(n, item) for n, item in self.received if item.name in wanted]
        inputs = [*(self.plan.inputs[n] for n in given), *(item for _, item in received)]
        ops = [op for op in self.tape.ops if op.name in wanted]
        plan = self._plan(inputs, ops, list(written), given)
        return Gradient(
            plan, tuple(given), tuple(n for n, _ in received), tuple(map(tuple, written.values()))
        )

    def _plan(
        self, inputs: list[PlanInput], ops: list[PlanOp], results: list[str], given: list[int]
    ) -> FusionPlan:
        names = {item.name: f"in{number}" for number, item in enumerate(inputs)}
        names |= {op.name: f"v{number}" for number, op in enumerate(ops)}
        tape, received = self.tape, inputs[len(given) :]
        found = msgspec.structs.replace(
            self.plan,
            rule="gradient",
            title=f"gradient of {self.plan.title or 'a row program'}",
            phase="backward",
            inputs=tuple(msgspec.structs.replace(i, name=names[i.name]) for i in inputs),
            ops=tuple(renamed(op, names) for op in ops),
            outputs=tuple(
                PlanOutput(value=names[v], dtype=tape.dtypes[v], space=tape.spaces[v])
                for v in results
            ),
            guards=(),
            sites=tuple(_site(s, given, received, len(results)) for s in self.plan.sites[:1]),
            prediction=None,
            backward_plan=None,
        )
        identity = plan_id("gradient", self.plan.id, found.signature())
        found = msgspec.structs.replace(found, id=identity)
        try:
            found.check()
        except InvalidRecordError as error:
            raise IllegalFusionError(f"its gradient is no plan: {error.what}") from error
        return found


def _columns(space: Space) -> bool:
    return space in ("tile", "column")


def _site(site: Site, given: Sequence[int], received: Sequence[PlanInput], results: int) -> Site:
    """The forward site with contiguous gradients beside its inputs."""
    strides = [site.input_strides[place] for place in given]
    sizes = (*site.row_sizes, site.columns)
    strides += [dense_strides(sizes, item.spans) for item in received]
    return msgspec.structs.replace(
        site,
        inputs=(*(site.inputs[n] for n in given), *(f"%{item.name}" for item in received)),
        outputs=tuple(f"%gradient{number}" for number in range(results)),
        input_strides=tuple(strides),
        run_time=None,
    )
