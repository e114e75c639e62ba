"""How a row program streams: one pass over the columns for every level of its reductions.

A reduction is known only when the whole row was read, so what follows it needs another pass; what
lies between two reductions is computed again from the inputs, not stored. Two associative forms
need one pass instead of two, because a partial result can be corrected when more of the row is
seen: the maximum with the sum of exponentials relative to it (Milakov and Gimelshein, Online
normalizer calculation for softmax, 2018), and the mean with the sum of squared deviations from it
(sums beside a value of the data, then merged: Chan, Golub and LeVeque, Algorithms for computing the
sample variance, 1983). Both are found in the dataflow alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from advisor.model.graph import Arg
from advisor.model.optable import FLOAT_DTYPES, spec_of
from advisor.model.plan import FusionPlan, PlanOp
from advisor.model.spaces import space_of

FoldKind = Literal["sum", "amax", "amin", "deviations", "moments", "exponentials"]
WIDE = ("tile", "column")


@dataclass(frozen=True)
class Fold:
    """One reduction carried along a pass: each block's elements are folded into a state per lane.

    `op` is the reduction of the plan that it serves; `result` the value it gives, which for the
    first half of a variance may be no value of the plan but its mean. `partner` is the mean whose
    deviations are summed, that of the plan that moments give too (empty if it has none), or the
    maximum that exponentials are relative to; their exponent is
    `factor` (operand - maximum), in base 2 if `binary`; `guarded` takes 0 for an infinite maximum.
    """

    kind: FoldKind
    operand: str
    result: str
    op: PlanOp
    partner: str = ""
    factor: float = 1.0
    binary: bool = False
    guarded: bool = False

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the numbers that every lane keeps."""
        first = {"exponentials": f"{self.result}_peak", "moments": f"{self.result}_mean"}
        return (*filter(None, [first.get(self.kind)]), self.result)


@dataclass(frozen=True)
class Pass:
    """One walk over the columns.

    `ops` run on each block, `writes` are positions of outputs stored there, `reads` the inputs
    loaded there; `after` are the ops on row values that can run once its folds are known.
    """

    ops: tuple[PlanOp, ...]
    folds: tuple[Fold, ...]
    reads: tuple[str, ...]
    writes: tuple[int, ...]
    after: tuple[PlanOp, ...]


@dataclass(frozen=True)
class Schedule:
    """Row values known `before` anything is streamed, then the passes in order."""

    before: tuple[PlanOp, ...]
    passes: tuple[Pass, ...]

    def last_read(self, name: str) -> int:
        """The last pass that loads an input; -1 for one that is not streamed."""
        return max((i for i, one in enumerate(self.passes) if name in one.reads), default=-1)


def schedule(plan: FusionPlan, *, online: bool, writes_last: bool = False) -> Schedule:
    """The passes of a plan; `online` uses the associative forms.

    A tile output is written in the first pass that knows it, with `writes_last` in the last pass.
    """
    return _Scheduler(plan, online).schedule(writes_last)


def can_split(plan: FusionPlan) -> bool:
    """Whether parts of a row can be reduced apart: all reductions are known after one pass."""
    scheduler = _Scheduler(plan, online=True)
    return bool(scheduler.folds) and all(level == 0 for level, _ in scheduler.folds)


def has_online_form(plan: FusionPlan) -> bool:
    """Whether an associative form saves a pass."""
    online, plain = (len(schedule(plan, online=flag).passes) for flag in (True, False))
    return online < plain


class _Scheduler:
    def __init__(self, plan: FusionPlan, online: bool) -> None:
        self.plan, self.online = plan, online
        self.ops = {op.name: op for op in plan.ops}
        self.spaces = {item.name: space_of(item.spans) for item in plan.inputs}
        self.spaces |= {op.name: op.space for op in plan.ops}
        self.dtypes = {item.name: item.dtype for item in plan.inputs}
        self.dtypes |= {op.name: op.dtype for op in plan.ops}
        self.levels = dict.fromkeys((item.name for item in plan.inputs), 0)
        self.folds: list[tuple[int, Fold]] = []
        self._place_all()

    # --- levels -----------------------------------------------------------------------------------

    def _place_all(self) -> None:
        """The level of every value: the passes that must be over before it can be computed."""
        joined: set[str] = set()
        for op in self.plan.ops:
            level = max((self.levels[a] for a in self._values(op)), default=0)
            if spec_of(op.op).kind == "reduction":
                level = self._place_reduction(op, level, joined)
            self.levels[op.name] = level
        self.folds = [self._with_mean(*item) for item in self.folds]
        joined |= {fold.partner for _, fold in self.folds if fold.kind == "moments"}
        # The maximum, or the mean, comes out of the joint fold.
        self.folds = [
            (level, fold)
            for level, fold in self.folds
            if fold.kind not in ("amax", "sum") or fold.result not in joined
        ]

    def _with_mean(self, level: int, fold: Fold) -> tuple[int, Fold]:
        """Moments that give the plan's mean of the same elements too, if it is one of this pass."""
        mean = self._mean_of(fold.operand) if fold.kind == "moments" else ""
        if mean and any(own == level and other.result == mean for own, other in self.folds):
            return level, replace(fold, partner=mean)
        return level, fold

    def _place_reduction(self, op: PlanOp, level: int, joined: set[str]) -> int:
        operand = str(op.args[0])
        joint = self._joint(op) if self.online else None
        if joint is not None:
            level = self.levels[joint.operand]
            if joint.kind == "exponentials":
                joined.add(joint.partner)
            self.folds.append((level, joint))
        elif op.op == "var" and not self.online:
            mean = self._mean_of(operand)
            if not mean:
                mean = f"{op.name}_mean"
                self.folds.append((level, Fold("sum", operand, mean, op)))
            level += 1
            self.folds.append((level, Fold("deviations", operand, op.name, op, mean)))
        else:
            self.folds.append((level, Fold(_plain_kind(op), operand, op.name, op)))
        return level + 1

    def _mean_of(self, operand: str) -> str:
        """The mean of the same elements, if the plan has one in float32; else nothing."""
        same = (
            op.name
            for op in self.plan.ops
            if op.op == "mean" and op.dtype == "float32" and self._same(op.args[0], operand)
        )
        return next(same, "")

    def _values(self, op: PlanOp) -> list[str]:
        return [arg for arg in op.args if isinstance(arg, str) and arg in self.levels]

    # --- associative forms ------------------------------------------------------------------------

    def _joint(self, op: PlanOp) -> Fold | None:
        """The one-pass form of a reduction that depends on another one, if it is such a form."""
        if op.op not in ("sum", "mean"):
            return None
        return self._exponentials(op) or self._squared_deviations(op)

    def _exponentials(self, op: PlanOp) -> Fold | None:
        """Σ exp(c (t - max t)), c > 0; also with 0 in place of an infinite maximum."""
        power = self._producer(op.args[0])
        if power is None or power.op not in ("exp", "exp2"):
            return None
        exponent, factor = self._producer(power.args[0]), 1.0
        if exponent is not None and exponent.op == "mul":
            numbers = [float(a) for a in exponent.args if isinstance(a, (int, float))]
            values = [a for a in exponent.args if isinstance(a, str)]
            if len(numbers) != 1 or not numbers[0] > 0:
                return None
            exponent, factor = self._producer(values[0]), numbers[0]
        if exponent is None or exponent.op != "sub" or not math.isfinite(factor):
            return None
        origin = self._widened(exponent.args[1])
        guarded = self._where_finite(origin)
        peak = self._producer(origin if guarded is None else guarded)
        if peak is None or peak.op != "amax" or not self._same(exponent.args[0], peak.args[0]):
            return None
        binary, operand = power.op == "exp2", str(peak.args[0])
        return Fold(
            "exponentials", operand, op.name, op, peak.name, factor, binary, guarded is not None
        )

    def _where_finite(self, arg: Arg) -> Arg:
        """The m of `0 if m is infinite else m`, None for anything else."""
        choice = self._producer(arg)
        if choice is None or choice.op != "where" or not _is_number(choice.args[1]):
            return None
        test, zero, value = choice.args
        asked = self._producer(test)
        if asked is None or zero != 0:
            return None
        if asked.op == "eq" and asked.args[1] == "inf":
            asked = self._producer(asked.args[0])
            infinite = asked is not None and asked.op == "abs"
        else:
            infinite = asked.op == "isinf"
        return value if infinite and asked is not None and asked.args[0] == value else None

    def _squared_deviations(self, op: PlanOp) -> Fold | None:
        """Σ (x - mean x)², as a product or as a power."""
        square = self._producer(op.args[0])
        if square is None or square.op not in ("mul", "pow"):
            return None
        base, other = square.args
        if not (base == other if square.op == "mul" else _is_number(other) and other == 2):
            return None
        difference = self._producer(base)
        if difference is None or difference.op != "sub":
            return None
        mean = self._producer(self._widened(difference.args[1]))
        if mean is None or mean.op != "mean" or not self._same(difference.args[0], mean.args[0]):
            return None
        return Fold("moments", str(mean.args[0]), op.name, op)

    def _producer(self, arg: Arg) -> PlanOp | None:
        return self.ops.get(arg) if isinstance(arg, str) else None

    def _same(self, first: Arg, second: Arg) -> bool:
        return not _is_number(first) and self._widened(first) == self._widened(second)

    def _widened(self, arg: Arg) -> Arg:
        """The value before conversions that change none of its elements."""
        op = self._producer(arg)
        while op is not None and op.op == "cast" and op.dtype == "float32":
            if self.dtypes.get(str(op.args[0])) not in FLOAT_DTYPES:
                break
            arg = op.args[0]
            op = self._producer(arg)
        return arg

    # --- passes -----------------------------------------------------------------------------------

    def schedule(self, writes_last: bool) -> Schedule:
        """Everything in the pass of its level."""
        outputs = [(i, o) for i, o in enumerate(self.plan.outputs) if o.space == "tile"]
        levels = [self.levels[output.value] for _, output in outputs]
        folded = [level for level, _ in self.folds]
        count = max((level + 1 for level in (*levels, *folded)), default=0)
        if writes_last and outputs:
            count = max(folded, default=-1) + 2
            levels = [count - 1] * len(outputs)
        wide: list[tuple[PlanOp, ...]] = []
        writes = [
            tuple(i for (i, _), own in zip(outputs, levels, strict=True) if own == level)
            for level in range(count)
        ]
        folds = [tuple(fold for own, fold in self.folds if own == level) for level in range(count)]
        for level in range(count):
            roots = [fold.operand for fold in folds[level]]
            roots += [self.plan.outputs[i].value for i in writes[level]]
            wide.append(self._needed(roots))
        narrow = self._narrow([op for ops in wide for op in ops])
        passes = tuple(
            Pass(
                ops=wide[level],
                folds=folds[level],
                reads=self._reads(wide[level], folds[level]),
                writes=writes[level],
                after=tuple(op for op in narrow if self.levels[op.name] == level + 1),
            )
            for level in range(count)
        )
        return Schedule(tuple(op for op in narrow if self.levels[op.name] == 0), passes)

    def _needed(self, roots: list[str]) -> tuple[PlanOp, ...]:
        """The ops on blocks that give some values, in order."""
        found: set[str] = set()
        pending = list(roots)
        while pending:
            name = pending.pop()
            if name in self.ops and self.spaces[name] in WIDE and name not in found:
                found.add(name)
                pending += self._values(self.ops[name])
        return tuple(op for op in self.plan.ops if op.name in found)

    def _narrow(self, wide: list[PlanOp]) -> list[PlanOp]:
        """The pointwise ops on row values that something streamed or written needs, in order."""
        needed = {arg for op in wide for arg in self._values(op)}
        needed |= {output.value for output in self.plan.outputs}
        found = []
        for op in reversed(self.plan.ops):
            if op.space in WIDE or op.name not in needed:
                continue
            if spec_of(op.op).kind == "pointwise":
                found.append(op)
                needed.update(self._values(op))
        return found[::-1]

    def _reads(self, ops: tuple[PlanOp, ...], folds: tuple[Fold, ...]) -> tuple[str, ...]:
        used = {arg for op in ops for arg in self._values(op)} | {fold.operand for fold in folds}
        names = (item.name for item in self.plan.inputs)
        return tuple(name for name in names if name in used and self.spaces[name] in WIDE)


def _plain_kind(op: PlanOp) -> FoldKind:
    kinds: dict[str, FoldKind] = {"amax": "amax", "amin": "amin", "var": "moments"}
    return kinds.get(op.op, "sum")


def _is_number(arg: Arg) -> bool:
    return not isinstance(arg, str)
