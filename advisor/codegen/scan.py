"""Scans as Triton source: the state of every lane in registers, from the first step to the last.

`scan_steps` takes one step after the other, whatever a step does; loads of later steps are on their
way meanwhile, by the pipeline of the loop or because several steps are read before the first one.
Where a step is linear in its state, s' = a s + b, steps can be joined: `scan_blocks` computes a
block of them at once, `scan_chunks` gives shares of the steps to several programs, for few lanes
with many steps; each says what its share does to a state, then takes its steps again from the state
that the shares before it leave.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.codegen import abi
from advisor.codegen.exponentials import pointwise_helpers
from advisor.codegen.expressions import reducer
from advisor.codegen.layout import INDENT
from advisor.codegen.streamed import kernel_text
from advisor.codegen.values import Values, widened
from advisor.model.graph import Arg
from advisor.model.launch import Scheme
from advisor.model.optable import spec_of
from advisor.model.plan import FusionPlan, PlanInput, PlanOp
from advisor.model.scan import PlanState, fixed_values, lane_axes, linear_path, stateful

HELPERS: dict[str, str] = {
    "then": '''
@triton.jit
def then(a, b, next_a, next_b):
    """Two steps s' = a s + b as one, the second after the first."""
    return next_a * a, next_a * b + next_b
''',
}


def scan_kernels(plan: FusionPlan, scheme: Scheme, title: str) -> list[str]:
    """The kernels of a scheme, in the order of their launches."""
    kernels = abi.kernels(plan, scheme)
    if scheme == "scan_blocks":
        doc = f"{title}; one program takes BLOCK_ROWS lanes through BLOCK_STEPS steps at once."
        return [kernel_text(kernels[0], doc, _Blocks(plan).body())]
    steps = _Steps(plan)
    if scheme == "scan_steps":
        doc = f"{title}; one program takes BLOCK_ROWS lanes through all steps."
        return [kernel_text(kernels[0], doc, steps.body())]
    first = f"{title}: what each share of the steps does to a state."
    return [
        kernel_text(kernels[0], first, steps.share()),
        kernel_text(kernels[1], f"{title}; each share of the steps.", steps.finish()),
    ]


def scan_helper_names(plan: FusionPlan, scheme: Scheme) -> set[str]:
    """The device functions that the kernels call."""
    reduced = (reducer(op.op) for op in plan.ops)
    found = pointwise_helpers(plan) | {helper for helper in reduced if helper is not None}
    return found | ({"then"} if scheme == "scan_blocks" else set())


WALK = "for start in tl.range({first}, {last}, UNROLL, num_stages=STAGES):"
TURNS = "for turn in tl.static_range(UNROLL):"
READ_TOGETHER = "# What UNROLL steps read is on its way together."


class _Scan(Values):
    """What all schemes share: where tensors lie, which ops run when, how a linear step is told."""

    # How an index along lanes and one along columns become tiles.
    lane_tile, column_tile, ones = "[:, None]", "[None, :]", "(1, 1)"

    def __init__(self, plan: FusionPlan) -> None:
        super().__init__(plan)
        self.lanes, self.axis = lane_axes(plan), plan.row_axes - 1
        self.dtypes |= {state.name: state.dtype for state in plan.states}
        self.spaces |= {state.name: state.space for state in plan.states}
        self.fixed = fixed_values(plan)
        ways = [*(item.reverse for item in plan.inputs), *(o.reverse for o in plan.outputs)]
        self.reversed = any(ways)

    # --- places in memory -------------------------------------------------------------------------

    def begin(self) -> list[str]:
        """The lanes and columns of a program, and zero as wide as an index must be."""
        lines = [
            f"lanes = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS){self.lane_tile}",
            f"columns = tl.arange(0, BLOCK_COLUMNS){self.column_tile}",
            "lane_ok = (lanes < n_lanes) | EVEN_ROWS",
            "column_ok = (columns < n_columns) | EVEN_COLUMNS",
            f"zero = tl.zeros({self.ones}, tl.int64)",
        ]
        rest = "lanes"
        for axis, size in reversed(abi.size_names(self.plan)):
            lines += [f"axis_{axis} = zero + {rest} % {size}", f"above_{axis} = {rest} // {size}"]
            rest = f"above_{axis}"
        return [*lines, f"axis_0 = zero + {rest}"]

    def place(self, name: str) -> str:
        """Where a tensor of the first step lies, for every lane and column."""
        tensor = self.strided[name]
        terms = [name] + ([f"{name}_offset"] if name in self.inputs else [])
        for axis, stride in tensor.strides:
            if axis != self.axis:
                terms.append(f"{self._index(axis)} * {stride}")
        if tensor.unit is not None:
            terms.append("columns")
        return " + ".join(terms)

    def _index(self, axis: int) -> str:
        return "columns" if axis > self.axis else f"axis_{axis}"

    def along_steps(self, name: str, *, reverse: bool) -> str:
        """How far from there a step lies."""
        stride = dict(self.strided[name].strides).get(self.axis)
        if stride is None:
            return ""
        return f" + {'back' if reverse else 'ahead'} * {stride}"

    def mask(self, spans: Sequence[bool], *more: str) -> str:
        """Where there is something to read or write."""
        found = ["lane_ok"] if any(spans[: self.lanes]) else []
        found += ["column_ok"] if spans[-1] else []
        return " & ".join([*found, *(more if spans[self.axis] else ())])

    def read(self, item: PlanInput, *more: str) -> str:
        """An input of this step, or of all."""
        return f"{item.name}_value = {widened(item, self.stored(item, *more))}"

    def stored(self, item: PlanInput, *more: str) -> str:
        """The same as it is in memory."""
        walked = item.spans[self.axis]
        at = self.here(item.name, reverse=item.reverse) if walked else self.place(item.name)
        return self._loaded(item, at, self.mask(item.spans, *more))

    def here(self, name: str, *, reverse: bool) -> str:
        """Where a tensor that is walked along the steps has these."""
        return f"{name}_at{self.along_steps(name, reverse=reverse)}"

    def write(self, position: int, value: str, *more: str) -> str:
        """An output of this step, or of the last."""
        output = self.plan.outputs[position]
        name = f"out{position}"
        spans = (*(True,) * self.lanes, not output.last, output.space == "tile")
        where = (
            self.mask(spans, *more) if not output.last else " & ".join([self.mask(spans), *more])
        )
        at = self.place(name) if output.last else self.here(name, reverse=output.reverse)
        return f"tl.store({at}, {value}, mask={where})"

    def places(self, names: Sequence[str]) -> list[str]:
        """Where those tensors begin that are walked along the steps."""
        walked = [i.name for i in self.plan.inputs if i.spans[self.axis]]
        walked += [f"out{n}" for n, output in enumerate(self.plan.outputs) if not output.last]
        return [f"{name}_at = {self.place(name)}" for name in names if name in walked]

    # --- what runs when ---------------------------------------------------------------------------

    def before(self) -> list[str]:
        """What is the same in all steps."""
        lines = [self.read(item) for item in self.plan.inputs if not item.spans[self.axis]]
        return lines + [self.assign(op) for op in self.plan.ops if op.name in self.fixed]

    def shape(self, state: PlanState) -> str:
        """The tile of a state."""
        return f"(BLOCK_ROWS, {'BLOCK_COLUMNS' if state.space == 'tile' else '1'})"

    def first(self, state: PlanState) -> str:
        """A state before the first step."""
        if isinstance(state.initial, str) and state.initial in self.inputs:
            return f"{state.name} = tl.broadcast_to({state.initial}_value, {self.shape(state)})"
        number = self.operand(state.initial, "float32")
        return f"{state.name} = tl.full({self.shape(state)}, {number}, tl.float32)"

    # --- linear steps -----------------------------------------------------------------------------

    def linear(self) -> tuple[list[str], str, str]:
        """Statements for a step's a and b in s' = a s + b, and what these are called."""
        known = stateful(self.plan)
        parts: dict[str, tuple[str, str]] = {self.plan.states[0].name: ("1.0", "0.0")}
        lines: list[str] = []
        for op in linear_path(self.plan) or ():
            terms = [self._parts(arg, op, parts, known) for arg in op.args]
            a, b = _joined(op, terms)
            names = []
            for text, name in ((a, f"{op.name}_a"), (b, f"{op.name}_b")):
                plain = text in ("0.0", "1.0") or text.isidentifier()
                names.append(text if plain else name)
                lines += [] if plain else [f"{name} = {text}"]
            parts[op.name] = (names[0], names[1])
        return lines, *parts[self.plan.states[0].value]

    def _parts(
        self, arg: Arg, op: PlanOp, parts: dict[str, tuple[str, str]], known: frozenset[str]
    ) -> tuple[str, str]:
        if isinstance(arg, str) and arg in known:
            return parts[arg]
        wanted = "bool" if op.op == "where" and arg is op.args[0] else op.dtype
        return "0.0", self.operand(arg, wanted)


def _joined(op: PlanOp, terms: list[tuple[str, str]]) -> tuple[str, str]:
    """The a and b of an op from those of its operands; an operand without state has a = 0."""
    (a, b), *others = terms
    if op.op == "cast":
        return a, b
    if op.op == "neg":
        return _times("-1.0", a), _times("-1.0", b)
    if op.op == "where":
        (left_a, left_b), (right_a, right_b) = others
        return f"tl.where({b}, {left_a}, {right_a})", f"tl.where({b}, {left_b}, {right_b})"
    next_a, next_b = others[0]
    if op.op == "add":
        return _plus(a, next_a), _plus(b, next_b)
    if op.op == "sub":
        return _plus(a, _times("-1.0", next_a)), _plus(b, _times("-1.0", next_b))
    if op.op == "div":
        return f"{a} / {next_b}", "0.0" if b == "0.0" else f"{b} / {next_b}"
    found = _times(next_b, a) if next_a == "0.0" else _times(b, next_a)
    constant = _times(b, next_b)
    if op.op == "fma":
        return _plus(found, others[1][0]), _plus(constant, others[1][1])
    return found, constant


def _times(first: str, second: str) -> str:
    if "0.0" in (first, second):
        return "0.0"
    if "1.0" in (first, second):
        return second if first == "1.0" else first
    return f"-{_grouped(second)}" if first == "-1.0" else f"{_grouped(first)} * {_grouped(second)}"


def _plus(first: str, second: str) -> str:
    if "0.0" in (first, second):
        return second if first == "0.0" else first
    return f"{_grouped(first)} + {_grouped(second)}"


def _grouped(text: str) -> str:
    return f"({text})" if " " in text else text


class _Steps(_Scan):
    """One step after the other."""

    def here(self, name: str, *, reverse: bool) -> str:
        return f"{name}_step"

    def body(self) -> list[str]:
        """All steps."""
        return [
            *self._until_steps(),
            *(self.first(state) for state in self.plan.states),
            *self._steps("0", "n_steps"),
            *self._last(),
        ]

    def finish(self) -> list[str]:
        """The steps of a share, from the state that the shares before it leave."""
        return [
            *self._until_steps(),
            *self._share_places(),
            *(self.first(state) for state in self.plan.states),
            "for before in range(0, share):",
            f"{INDENT}past_a = tl.load(partial_a + begin_at + before * size, mask=ok, other=0.0)",
            f"{INDENT}past_b = tl.load(partial_b + begin_at + before * size, mask=ok, other=0.0)",
            f"{INDENT}s0 = past_a * s0 + past_b",
            *self._share_range(),
            *self._steps("begin", "end"),
            *self._last("(share == n_splits - 1)"),
        ]

    def share(self) -> list[str]:
        """What a share of the steps does to a state: s' = total_a s + total_b."""
        (state,) = self.plan.states
        lines, a, b = self.linear()
        known = stateful(self.plan)
        needed = self._needed_for(" ".join([*lines, a, b]), known)
        return [
            *self.begin(),
            *self.before(),
            *self.places([item.name for item in self.plan.inputs if item.name in needed]),
            *self._share_places(),
            f"total_a = tl.full({self.shape(state)}, 1.0, tl.float32)",
            f"total_b = tl.full({self.shape(state)}, 0.0, tl.float32)",
            *self._share_range(),
            *self._walk(
                "begin",
                "end",
                [item for item in self._streamed() if item.name in needed],
                [],
                [
                    *(
                        self.assign(op)
                        for op in self.plan.ops
                        if op.name in needed and op.name not in self.fixed
                    ),
                    *lines,
                    _kept("total_b", _plus(_times(a, "total_b"), b)),
                    _kept("total_a", _times(a, "total_a")),
                ],
            ),
            "tl.store(partial_a + begin_at + share * size, total_a, mask=ok)",
            "tl.store(partial_b + begin_at + share * size, total_b, mask=ok)",
        ]

    def _needed_for(self, text: str, known: frozenset[str]) -> set[str]:
        """The values without state that some statements read, with all that these are made of."""
        words = set(_words(text))
        found = {op.name for op in self.plan.ops if op.name in words and op.name not in known}
        found |= {item.name for item in self.plan.inputs if f"{item.name}_value" in words}
        for op in reversed(self.plan.ops):
            if op.name in found:
                found |= {arg for arg in op.args if isinstance(arg, str)}
        return found

    def _share_places(self) -> list[str]:
        wide = self.plan.states[0].space == "tile"
        column = " * n_columns + columns" if wide else ""
        return [
            "share = tl.program_id(1)",
            f"size = (zero + n_lanes){' * n_columns' if wide else ''}",
            f"begin_at = (zero + lanes){column}",
            f"ok = {'lane_ok & column_ok' if wide else 'lane_ok'}",
        ]

    def _share_range(self) -> list[str]:
        return [
            "begin = share * split_steps",
            "end = tl.minimum(begin + split_steps, n_steps)",
        ]

    def _until_steps(self) -> list[str]:
        names = [item.name for item in self.plan.inputs]
        return [*self.begin(), *self.before(), *self.places([*names, *abi.output_names(self.plan)])]

    def _streamed(self) -> list[PlanInput]:
        return [item for item in self.plan.inputs if item.spans[self.axis]]

    def _steps(self, first: str, last: str) -> list[str]:
        """The steps of a range, one after the other."""
        places = [n for n, output in enumerate(self.plan.outputs) if not output.last]
        body = [self.assign(op) for op in self.plan.ops if op.name not in self.fixed]
        for n in places:
            output = self.plan.outputs[n]
            body.append(self.write(n, output.value, "step_ok"))
            body += self._next(f"out{n}", reverse=output.reverse)
        body += [_kept(state.name, state.value) for state in self.plan.states]
        return self._walk(first, last, self._streamed(), places, body)

    def _walk(
        self,
        first: str,
        last: str,
        reads: Sequence[PlanInput],
        places: Sequence[int],
        body: Sequence[str],
    ) -> list[str]:
        """A loop over the steps of a range, UNROLL a turn.

        Its body has the values of `reads`, and where the outputs at `places` have this step.
        """
        ok = f"step_ok = (start + turn < {last}) | EVEN_STEPS"
        walked = [(item.name, item.reverse) for item in reads]
        walked += [(f"out{n}", self.plan.outputs[n].reverse) for n in places]
        lines = ["ahead = zero + start"]
        lines += ["back = n_steps - 1 - ahead"] if any(back for _, back in walked) else []
        for name, back in walked:
            lines.append(f"{name}_step = {name}_at{self.along_steps(name, reverse=back)}")
        if reads:
            lines += [READ_TOGETHER, *(f"{item.name}_turns = ()" for item in reads)]
            loads = [ok]
            for item in reads:
                loads.append(f"{item.name}_turns += ({self.stored(item, 'step_ok')},)")
                loads += self._next(item.name, reverse=item.reverse)
            lines += [TURNS, *_deeper(loads)]
        values = [f"{i.name}_value = {widened(i, f'{i.name}_turns[turn]')}" for i in reads]
        lines += [TURNS, *_deeper([ok, *values, *body])]
        return [WALK.format(first=first, last=last), *_deeper(lines)]

    def _next(self, name: str, *, reverse: bool) -> list[str]:
        """Where a tensor has the next step: a sum, not a product for every access."""
        stride = dict(self.strided[name].strides).get(self.axis)
        return [] if stride is None else [f"{name}_step {'-' if reverse else '+'}= {stride}"]

    def _last(self, *more: str) -> list[str]:
        held = {state.value: state.name for state in self.plan.states}
        return [
            self.write(n, held[output.value], *more)
            for n, output in enumerate(self.plan.outputs)
            if output.last
        ]


class _Blocks(_Scan):
    """Blocks of steps at once: tiles of lanes, steps and columns."""

    lane_tile, column_tile, ones = "[:, None, None]", "[None, None, :]", "(1, 1, 1)"

    def shape(self, state: PlanState, steps: str = "1") -> str:
        return f"(BLOCK_ROWS, {steps}, {'BLOCK_COLUMNS' if state.space == 'tile' else '1'})"

    def _expression(self, op: PlanOp) -> str:
        """Reductions run over the columns, here the third axis."""
        text = super()._expression(op)
        if spec_of(op.op).kind != "reduction":
            return text
        for flat, deep in (
            (", axis=1)[:, None]", ", axis=2)[:, :, None]"),
            (", 1, max_nan)[:, None]", ", 2, max_nan)[:, :, None]"),
            (", 1, min_nan)[:, None]", ", 2, min_nan)[:, :, None]"),
        ):
            text = text.replace(flat, deep)
        return text

    def body(self) -> list[str]:
        """All blocks of steps."""
        (state,) = self.plan.states
        names = [item.name for item in self.plan.inputs]
        last = [n for n, output in enumerate(self.plan.outputs) if output.last]
        return [
            *self.begin(),
            *self.before(),
            *self.places([*names, *abi.output_names(self.plan)]),
            "steps = tl.arange(0, BLOCK_STEPS)[None, :, None]",
            self.first(state),
            "for start in tl.range(0, n_steps, BLOCK_STEPS, num_stages=STAGES):",
            *_deeper(self._block(state)),
            *(self.write(n, state.name) for n in last),
        ]

    def _block(self, state: PlanState) -> list[str]:
        """One block of steps: what needs no state, then all its states at once, then the rest."""
        known = stateful(self.plan)
        lines, a, b = self.linear()
        path = {op.name for op in linear_path(self.plan) or ()}
        tile = self.shape(state, "BLOCK_STEPS")
        moving = [op for op in self.plan.ops if op.name not in self.fixed and op.name not in known]
        rest = [op for op in self.plan.ops if op.name in known and op.name not in path]
        streamed = [item for item in self.plan.inputs if item.spans[self.axis]]
        written = [(n, output) for n, output in enumerate(self.plan.outputs) if not output.last]
        return [
            "ahead = zero + start + steps",
            *(["back = n_steps - 1 - ahead"] if self.reversed else []),
            "step_ok = ahead < n_steps",
            *(self.read(item, "step_ok") for item in streamed),
            *(self.assign(op) for op in moving),
            *lines,
            # Steps past the last one leave the state as it is.
            f"step_a = tl.broadcast_to(tl.where(step_ok, {a}, 1.0), {tile})",
            f"step_b = tl.broadcast_to(tl.where(step_ok, {b}, 0.0), {tile})",
            "all_a, all_b = tl.associative_scan((step_a, step_b), 1, then)",
            f"{state.value} = all_a * {state.name} + all_b",
            *(self.assign(op) for op in rest),
            *(self.write(n, output.value, "step_ok") for n, output in written),
            f"at_end = tl.where(steps == BLOCK_STEPS - 1, {state.value}, 0.0)",
            f"{state.name} = tl.sum(at_end, axis=1)[:, None, :]",
        ]


def _kept(name: str, value: str) -> str:
    """What a step makes of a state; a turn beyond the last step leaves it."""
    return f"{name} = {value} if EVEN_STEPS else tl.where(step_ok, {value}, {name})"


def _deeper(lines: Sequence[str]) -> list[str]:
    return [f"{INDENT}{line}" for line in lines]


def _words(text: str) -> list[str]:
    cleaned = "".join(c if c.isalnum() or c == "_" else " " for c in text)
    return cleaned.split()
