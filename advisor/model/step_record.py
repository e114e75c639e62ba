"""`step.json` of a run: the launches of a step in order, as light as comparing two runs needs.

Times are medians over the profiled steps, integer ns.
"""

from __future__ import annotations

from math import prod
from statistics import median

import msgspec

from advisor.errors import InvalidRecordError
from advisor.model.base import Record
from advisor.model.dtypes import RECORDED_DTYPES
from advisor.model.optable import ITEM_BYTES
from advisor.model.overfusion import KernelCode

STEP_SCHEMA_VERSION = 1
Triple = tuple[int, int, int]
# Counts, times and sizes of a step are below this; steps of more launches are not looked at.
MOST, MOST_LAUNCHES = 1 << 60, 10_000
# The library of what no kernel does: copies and memsets of the driver.
DRIVER = "driver"


class Tensor(Record, frozen=True, kw_only=True):
    """An operand of an op as it was recorded; `dtype` is the profiler's name (`c10::Half`)."""

    shape: tuple[int, ...]
    dtype: str

    def check(self) -> None:
        if min(self.shape, default=0) < 0 or self.elements > MOST:
            raise InvalidRecordError(f"a tensor of shape {self.shape}")

    @property
    def elements(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def item_bytes(self) -> int | None:
        """Bytes of an element, None if the type is not known."""
        return ITEM_BYTES.get(RECORDED_DTYPES.get(self.dtype, ""))

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole; 4 an element where the type is not known."""
        return self.elements * (self.item_bytes or 4)


class Launch(Record, frozen=True, kw_only=True):
    """One place of the step: a kernel, or what the driver moves (`library` driver).

    `start_ns` counts from the first activity of the median step; `times_ns` has one value for each
    step. None is unknown. `code` is put in by `StepRecord.coded`.
    """

    name: str
    role: str
    library: str
    op: str | None = None
    operands: tuple[Tensor, ...] = ()
    stream: int | None = None
    start_ns: int = 0
    time_ns: int = 0
    times_ns: tuple[int, ...] = ()
    grid: Triple | None = None
    threads: int | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    dram_read_bytes: int | None = None
    dram_write_bytes: int | None = None
    spill_bytes: int | None = None
    copied_bytes: int | None = None
    code: KernelCode | None = None

    def check(self) -> None:
        counts = (
            self.start_ns, self.time_ns, *self.times_ns, *(self.grid or ()), self.threads,
            self.registers, self.shared_bytes, self.dram_read_bytes, self.dram_write_bytes,
            self.spill_bytes, self.copied_bytes,
        )  # fmt: skip
        if not all(count is None or 0 <= count <= MOST for count in counts):
            raise InvalidRecordError("a launch with a time, size or count out of range")

    @property
    def is_kernel(self) -> bool:
        """Whether it is a kernel, not a copy of the driver."""
        return self.library != DRIVER

    @property
    def programs(self) -> int | None:
        """Blocks of the grid."""
        return None if self.grid is None else prod(self.grid)

    @property
    def end_ns(self) -> int:
        """Where it ends."""
        return self.start_ns + self.time_ns

    @property
    def largest(self) -> int:
        """Elements of the largest operand; 0 if none is known."""
        return max((tensor.elements for tensor in self.operands), default=0)

    @property
    def factors(self) -> Triple | None:
        """(M, N, K) where the operands can be a product [M, K] by [K, N]; None where not."""
        matrices = [tensor.shape for tensor in self.operands if len(tensor.shape) == 2]
        if len(matrices) < 3 or matrices[0][1] != matrices[1][0]:
            return None
        (rows, depth), columns = matrices[0], matrices[1][1]
        return (rows, columns, depth) if matrices[-1] == (rows, columns) else None


class StepRecord(Record, frozen=True, kw_only=True):
    """All launches of a step, and figures of each step, ns.

    `busy_ns` is the union of what ran, `span_ns` from the first start to the last end; `gpu` a key
    of the table. `codes` are the kernels whose source or binary is known.
    """

    schema_version: int = STEP_SCHEMA_VERSION
    launches: tuple[Launch, ...] = ()
    busy_ns: tuple[int, ...] = ()
    span_ns: tuple[int, ...] = ()
    gpu: str | None = None
    codes: tuple[KernelCode, ...] = ()

    def check(self) -> None:
        if self.schema_version != STEP_SCHEMA_VERSION:
            raise InvalidRecordError(f"step schema {self.schema_version}")
        if len(self.launches) > MOST_LAUNCHES:
            raise InvalidRecordError(f"more than {MOST_LAUNCHES} launches")
        if not all(0 <= time <= MOST for time in (*self.busy_ns, *self.span_ns)):
            raise InvalidRecordError("a step that takes no time that can be")
        counts = {len(x.times_ns) for x in self.launches} | {len(self.busy_ns), len(self.span_ns)}
        if self.launches and (len(counts) > 1 or not self.busy_ns):
            raise InvalidRecordError("launches and steps with different numbers of times")

    def coded(self) -> StepRecord:
        """The same with its code in every launch; of several of one name, that of its threads."""
        by_name: dict[str, list[KernelCode]] = {}
        for code in self.codes:
            by_name.setdefault(code.name, []).append(code)
        launches = tuple(
            msgspec.structs.replace(x, code=_fitting(by_name[x.name], x.threads))
            if x.name in by_name
            else x
            for x in self.launches
        )
        return msgspec.structs.replace(self, launches=launches)

    @property
    def busy_mid_ns(self) -> int:
        """The median of `busy_ns`."""
        return round(median(self.busy_ns)) if self.busy_ns else 0

    @property
    def span_mid_ns(self) -> int:
        """The median of `span_ns`."""
        return round(median(self.span_ns)) if self.span_ns else 0


def _fitting(codes: list[KernelCode], threads: int | None) -> KernelCode | None:
    """The one code, or the one whose warps make up the threads; None if that leaves more."""
    if len(codes) == 1:
        return codes[0]
    for lanes in (32, 64):  # of a warp; AMD's waves have 64
        fitting = [code for code in codes if lanes * (code.num_warps or 0) == threads]
        if fitting:
            return fitting[0] if len(fitting) == 1 else None
    return None
