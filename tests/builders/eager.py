"""Eager traces in a few lines: ops that launch kernels, shapes recorded as the profiler does.

trace = Eager()
x = trace.tensor(4, 1024, dtype="bfloat16")
y = trace.op("aten::relu", x)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from advisor.model.dtypes import RECORDED_DTYPES
from advisor.model.range_names import STEP_PREFIX
from advisor.model.trace import Trace
from analyzers.metrics import trace_metrics
from analyzers.rules import find_all
from analyzers.rules.base import Match
from analyzers.subject import Subject
from analyzers.trace_subject import trace_subject
from tests.builders.trace import Timeline

KINETO = {ours: theirs for theirs, ours in reversed(RECORDED_DTYPES.items())}


@dataclass(frozen=True)
class Tensor:
    """What an op is recorded to have read."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    strides: tuple[int, ...] | None = None

    def view(self, *shape: int, strides: tuple[int, ...] | None = None) -> Tensor:
        """The same data read another way."""
        return Tensor(shape, self.dtype, strides)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Eager:
    """A step of ops in order; each launches `kernels` of `us` microseconds, back to back."""

    def __init__(self, *, step: bool = True, late: float = 2.0) -> None:
        self.line = Timeline()
        self.host = self.device = 10.0
        self.late, self.step = late, step
        self.begun = self.host

    def tensor(self, *shape: int, dtype: str = "float32") -> Tensor:
        """A tensor of the program."""
        return Tensor(shape, dtype)

    def op(
        self,
        name: str,
        *arguments: Any,
        us: float = 100.0,
        out: Tensor | None = None,
        kernel: str = "void at::native::vectorized_elementwise_kernel<4>(int)",
        kernels: int = 1,
        host: float = 4.0,
        **more: Any,
    ) -> Tensor:
        """One op; returns `out`, by default a tensor like its first tensor argument."""
        start = self.host
        texts = {k: json.dumps(v) for k, v in _recorded(arguments).items()} if arguments else {}
        self.line.op(name, start, host, **texts, **more)
        for _ in range(kernels):
            call = self.line.launch(self.host + 1)
            begin = max(self.host + self.late, self.device)
            self.line.kernel(begin, us, name=kernel, correlation=call)
            self.device = begin + us
        self.host = start + host + 1
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        return out or (tensors[0] if tensors else Tensor((1,)))

    def cast(self, source: Tensor, dtype: str, **more: Any) -> Tensor:
        """What `x.to(dtype)` records."""
        target = Tensor(source.shape, dtype, source.strides)
        self.op("aten::copy_", target, source, False, out=target, **more)
        return target

    def mean(self, source: Tensor) -> Tensor:
        """A mean over the last axis, kept."""
        small = Tensor((*source.shape[:-1], 1), source.dtype)
        return self.op("aten::mean", source, [-1], True, None, out=small)

    def matmul(self, left: Tensor, right: Tensor) -> Tensor:
        """A product of two matrices."""
        out = Tensor((*left.shape[:-1], right.shape[-1]), left.dtype)
        name = "aten::bmm" if len(left.shape) == 3 else "aten::mm"
        return self.op(name, left, right, out=out, us=50, kernel="nvjet_tst_128x128_TNT")

    def rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """LlamaRMSNorm as it is written: eight kernels."""
        wide = self.cast(x, "float32")
        variance = self.mean(self.op("aten::pow", wide, 2))
        scale = self.op("aten::rsqrt", self.op("aten::add", variance, 1e-6, 1, us=1), us=1)
        narrow = self.cast(self.op("aten::mul", wide, scale), x.dtype)
        return self.op("aten::mul", weight, narrow, out=narrow)

    def trace(self) -> Trace:
        """The checked trace, its step around everything."""
        if self.step:
            length = max(self.host, self.device) - self.begun + 10
            self.line.range(f"{STEP_PREFIX}0", self.begun - 5, length)
        return self.line.build()

    def subject(self) -> Subject:
        """The trace as rules see it."""
        trace = self.trace()
        return trace_subject(trace, trace_metrics(trace), STEP_PREFIX)[0]

    def found(self) -> dict[str, Match]:
        """Findings of all rules by id of the rule; the last of each rule counts."""
        return {match.finding.rule: match for match in find_all(self.subject())}


def _recorded(arguments: tuple[Any, ...]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "input_shapes": [],
        "input_dtypes": [],
        "input_strides": [],
        "input_values": [],
    }
    for item in arguments:
        row: tuple[Any, ...]
        if isinstance(item, Tensor):
            strides = item.strides if item.strides is not None else row_major(item.shape)
            row = (list(item.shape), KINETO[item.dtype], list(strides), "")
        elif isinstance(item, list) and item and isinstance(item[0], Tensor):
            shapes = [list(t.shape) for t in item]
            steps = [list(t.strides or row_major(t.shape)) for t in item]
            row = (shapes, "TensorList", steps, "")
        elif isinstance(item, list):
            row = ([], "ScalarList", [], json.dumps(item))
        else:
            row = ([], "" if item is None else "Scalar", [], "" if item is None else str(item))
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    return columns
