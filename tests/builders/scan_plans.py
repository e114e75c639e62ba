"""Scans as plans: a selective scan, decayed sums in either direction, steps that are not linear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

from advisor.model.graph import Arg
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, PlanOutput, Site, plan_id
from advisor.model.scan import PlanState
from advisor.model.spaces import Space, space_of
from tests.builders.plan import op_in_spaces


@dataclass
class ScanBuilder:
    """A scan over [lanes, steps, columns], built op by op."""

    sizes: tuple[int, int, int]
    inputs: list[PlanInput] = field(default_factory=list)
    strides: list[tuple[int, ...]] = field(default_factory=list)
    ops: list[PlanOp] = field(default_factory=list)
    spaces: dict[str, Space] = field(default_factory=dict)
    states: list[PlanState] = field(default_factory=list)
    outputs: list[PlanOutput] = field(default_factory=list)

    def input(
        self, spans: tuple[bool, bool, bool], dtype: str = "float32", *, reverse: bool = False
    ) -> str:
        """A tensor along the axes that it spans, dense but for the promise."""
        name = f"in{len(self.inputs)}"
        item = PlanInput(
            name=name, dtype=dtype, spans=spans, dense=False, unit_stride=True, reverse=reverse
        )
        self.inputs.append(item)
        self.strides.append(_dense(self.sizes, spans))
        self.spaces[name] = space_of(spans)
        return name

    def state(self, *, tile: bool = True) -> str:
        """The name of a state; `keep` says what it becomes."""
        name = f"s{sum(s.startswith('s') for s in self.spaces)}"
        self.spaces[name] = "tile" if tile else "row"
        return name

    def op(self, op: str, *args: Arg, dtype: str = "float32") -> str:
        """An op of a step."""
        made = op_in_spaces(f"v{len(self.ops)}", op, args, dtype, self.spaces)
        self.ops.append(made)
        self.spaces[made.name] = made.space
        return made.name

    def keep(self, state: str, value: str, initial: Arg = 0.0) -> None:
        """What a state becomes in every step."""
        space = self.spaces[state]
        assert space == self.spaces[value]
        self.states.append(
            PlanState(name=state, value=value, initial=initial, dtype="float32", space=space)  # type: ignore[arg-type]
        )

    def output(self, value: str, *, reverse: bool = False, last: bool = False) -> None:
        """A value that is written."""
        op = next(op for op in self.ops if op.name == value)
        self.outputs.append(
            PlanOutput(
                value=value,
                dtype=op.dtype,
                space=op.space,
                strided=True,
                reverse=reverse,
                last=last,
            )
        )

    def plan(self) -> FusionPlan:
        """The checked plan with one site."""
        lanes, steps, columns = self.sizes
        site = Site(
            graph="graph0",
            nodes=tuple(f"n{n}" for n in range(len(self.ops))),
            inputs=tuple(f"%a{n}" for n in range(len(self.inputs))),
            outputs=tuple(f"%b{n}" for n in range(len(self.outputs))),
            row_sizes=(lanes, steps),
            columns=columns,
            input_strides=tuple(self.strides),
            output_strides=tuple(_dense(self.sizes, output.along(2, 1)) for output in self.outputs),
            input_offsets=(0,) * len(self.inputs),
        )
        made = FusionPlan(
            id="0" * 16,
            rule="scan-written-out",
            title="a scan of tests",
            family="scan",
            phase="inference",
            row_axes=2,
            inputs=tuple(self.inputs),
            ops=tuple(self.ops),
            outputs=tuple(self.outputs),
            states=tuple(sorted(self.states, key=lambda state: state.name)),
            sites=(site,),
        )
        made.check()
        return made


def _dense(sizes: Sequence[int], spans: Sequence[bool]) -> tuple[int, ...]:
    held = [size if span else 1 for size, span in zip(sizes, spans, strict=True)]
    reach = [1, *accumulate(held[:0:-1], mul)][::-1]
    return tuple(stride if span else 0 for stride, span in zip(reach, spans, strict=True))


def selective(sizes: tuple[int, int, int], dtype: str = "float32") -> FusionPlan:
    """Mamba's: h = exp(-dt |A|) h + dt B x, y = h C; the last state is kept."""
    made = ScanBuilder(sizes)
    step, rate = made.input((True, True, False), dtype), made.input((True, False, True))
    drive, weight = made.input((False, True, True), dtype), made.input((False, True, True), dtype)
    state = made.state()
    size = made.op("abs", made.op("cast", step, dtype="float32"))
    decay = made.op("exp", made.op("neg", made.op("mul", size, made.op("abs", rate))))
    driven = made.op("mul", size, made.op("cast", drive, dtype="float32"))
    next_state = made.op("add", made.op("mul", decay, state), driven)
    products = made.op("mul", next_state, made.op("cast", weight, dtype="float32"))
    read = made.op("cast", made.op("sum", products), dtype=dtype)
    made.keep(state, next_state)
    made.output(read)
    made.output(next_state, last=True)
    return made.plan()


def decayed(sizes: tuple[int, int, int], *, back: bool = False, given: bool = False) -> FusionPlan:
    """h = sigmoid(a) h + b on lanes without columns; `given`: h begins with an input."""
    made = ScanBuilder((sizes[0], sizes[1], 1))
    a = made.input((True, True, False), reverse=back)
    b = made.input((True, True, False), reverse=back)
    first: Arg = made.input((True, False, False)) if given else 0.5
    state = made.state(tile=False)
    value = made.op("add", made.op("mul", made.op("sigmoid", a), state), b)
    made.keep(state, value, first)
    made.output(value, reverse=back)
    return made.plan()


def gated(sizes: tuple[int, int, int]) -> FusionPlan:
    """Two states that are not linear: an LSTM cell without its products."""
    made = ScanBuilder((sizes[0], sizes[1], 1))
    x, y = made.input((True, True, False)), made.input((True, True, False))
    hidden, cell = made.state(tile=False), made.state(tile=False)
    forget = made.op("sigmoid", made.op("add", x, hidden))
    memory = made.op("add", made.op("mul", forget, cell), made.op("tanh", y))
    value = made.op("mul", made.op("sigmoid", x), made.op("tanh", memory))
    made.keep(hidden, value)
    made.keep(cell, memory)
    made.output(value)
    made.output(memory, last=True)
    return made.plan()


def renamed(plan: FusionPlan) -> str:
    """The id that a plan gets from what it is."""
    return plan_id(plan.rule, "", plan.signature())
