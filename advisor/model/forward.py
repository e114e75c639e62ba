"""That a plan is the whole `forward` of a module, and what a source diff of it needs.

Read from a file that others may have written, like the plan that holds it: names are identifiers,
the path stays inside the folder that it is applied in, lines of source are single lines.
"""

from __future__ import annotations

import keyword
from pathlib import PurePosixPath
from typing import Literal
from unicodedata import category

from advisor.errors import InvalidRecordError
from advisor.model.base import Record
from advisor.model.optable import DTYPES
from advisor.model.plan import FusionPlan

FORWARDS_SCHEMA_VERSION = 1
MOST_LINES, MOST_WIDTH, MOST_TENSORS, MOST_SIZE = 80, 2_000, 16, 2**40

Holder = Literal["argument", "attribute"]
Scalar = bool | int | float | str | None


class ForwardTensor(Record, frozen=True, kw_only=True):
    """A tensor that a forward reads: an argument, or a parameter or buffer of its module."""

    holder: Holder
    name: str
    shape: tuple[int, ...]
    dtype: str

    def check(self) -> None:
        _check_name(self.name)
        if self.dtype not in DTYPES or any(not 0 <= size <= MOST_SIZE for size in self.shape):
            raise InvalidRecordError(f"{self.name}: bad dtype or shape")


class ForwardConstant(Record, frozen=True, kw_only=True):
    """What is no tensor but decides what a forward computes, with the value that it had."""

    holder: Holder
    name: str
    value: Scalar

    def check(self) -> None:
        _check_name(self.name)
        if isinstance(self.value, str):
            _check_line(self.value)


class Excerpt(Record, frozen=True, kw_only=True):
    """Some lines of a source file from line `first` on; something is inserted before line `at`."""

    first: int
    lines: tuple[str, ...]
    at: int

    def check(self) -> None:
        if not 1 <= len(self.lines) <= MOST_LINES or self.first < 1:
            raise InvalidRecordError("an excerpt without lines, or with too many")
        if not self.first <= self.at <= self.first + len(self.lines):
            raise InvalidRecordError("an excerpt does not hold the line it is changed at")
        for line in self.lines:
            _check_line(line)


class WholeForward(Record, frozen=True, kw_only=True):
    """A plan is all that `type_name.forward` computes: shown at `module` by structure and value.

    `inputs` are the plan's, in order, as the forward holds them; its result is output `output` of
    the plan. With `exact`, shapes have to be these; else any number of rows will do, and `shape`,
    the result's, is that of each argument. `file` is the source, with `body` where its forward
    begins (`indent` columns in) and `imports` behind the imports; `variable` is a name that the
    forward does not use.
    """

    module: str
    type_name: str
    file: str
    inputs: tuple[ForwardTensor, ...]
    constants: tuple[ForwardConstant, ...]
    output: int
    shape: tuple[int, ...]
    exact: bool
    arguments: tuple[str, ...]
    owner: str
    variable: str
    indent: int
    body: Excerpt
    imports: Excerpt

    def check(self) -> None:
        for name in (*self.type_name.split("."), self.owner, self.variable, *self.arguments):
            _check_name(name)
        _check_line(self.module)
        _check_file(self.file)
        if not self.inputs or len(self.inputs) > MOST_TENSORS or self.output < 0:
            raise InvalidRecordError("a forward without tensors, or with too many")
        held = {item.name for item in self.inputs if item.holder == "argument"}
        if not held or held != set(self.arguments):
            raise InvalidRecordError("the arguments of a forward are not its inputs")
        if not 0 < self.indent <= MOST_LINES:
            raise InvalidRecordError("a forward stands inside a class")


class PlanForwards(Record, frozen=True, kw_only=True):
    """The forwards that a plan is the whole of; where there is none, the `reason`."""

    plan_id: str
    forwards: tuple[WholeForward, ...] = ()
    reason: str = ""

    def check(self) -> None:
        if bool(self.forwards) == bool(self.reason):
            raise InvalidRecordError("a plan has forwards, or a reason why it has none")
        _check_line(self.reason)


class Forwards(Record, frozen=True, kw_only=True):
    """What a profile found out about its plans: which are the whole `forward` of a module."""

    schema_version: int = FORWARDS_SCHEMA_VERSION
    plans: tuple[PlanForwards, ...] = ()

    def check(self) -> None:
        if self.schema_version != FORWARDS_SCHEMA_VERSION:
            raise InvalidRecordError(
                f"forwards.json schema {self.schema_version} is not {FORWARDS_SCHEMA_VERSION}"
            )

    def of(self, plan: FusionPlan) -> PlanForwards | None:
        """What is known of a plan; raises `InvalidRecordError` where that cannot be of it."""
        for item in self.plans:
            if item.plan_id == plan.id:
                for forward in item.forwards:
                    _check_fit(plan, forward)
                return item
        return None


def _check_fit(plan: FusionPlan, forward: WholeForward) -> None:
    """A forward holds the plan's inputs and returns one of its outputs."""
    dtypes = [item.dtype for item in plan.inputs]
    if [item.dtype for item in forward.inputs] != dtypes or forward.output >= len(plan.outputs):
        raise InvalidRecordError(f"plan {plan.id} is no {forward.type_name[:40]}.forward")


def _check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or len(name) > MOST_WIDTH:
        raise InvalidRecordError(f"{name[:40]!r} is no name of Python")


def _check_line(line: str) -> None:
    if len(line) > MOST_WIDTH or any(not _is_text(c) for c in line):
        raise InvalidRecordError(f"{line[:40]!r} is no line of text")


def _is_text(character: str) -> bool:
    """Whether it is no control character: no-break and other spaces stand in people's comments."""
    return character.isprintable() or character == "\t" or category(character) == "Zs"


def _check_file(file: str) -> None:
    _check_line(file)
    path = PurePosixPath(file)
    if path.suffix != ".py" or path.is_absolute() or ".." in path.parts or "\t" in file:
        raise InvalidRecordError(f"{file[:80]!r} is no source file inside a folder")
