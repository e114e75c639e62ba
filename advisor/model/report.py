"""`Report`: the JSON document that a run ends in, the dashboard shows and CI gates on."""

from __future__ import annotations

from advisor.errors import InvalidRecordError
from advisor.model.base import Provenance, Range, Record, Warning_
from advisor.model.findings import Finding

REPORT_SCHEMA_VERSION = 1
# The code of the warning that marks the report of a run that did not come to its end.
INCOMPLETE = "incomplete"
# The name of a device that no recording names.
UNKNOWN_GPU = "unknown GPU"


class Tool(Record, frozen=True, kw_only=True):
    """The program that wrote the report."""

    name: str
    version: str


class Source(Record, frozen=True, kw_only=True):
    """Where the figures come from: a capture, a trace file, counters."""

    kind: str
    path: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None


class Commit(Record, frozen=True, kw_only=True):
    """The state of version control that the workload's source was in.

    `id` is the hash, shortened; `committed` its time, UTC, ISO 8601. `dirty` says whether files
    had changes that are in no commit.
    """

    id: str
    committed: str | None = None
    dirty: bool | None = None


class Workload(Record, frozen=True, kw_only=True):
    """What was measured; two reports compare only where these agree, but for the commit."""

    target: str
    mode: str
    graph_hash: str | None = None
    shapes: tuple[str, ...] = ()
    gpu: str | None = None
    world_size: int = 1
    rank: int = 0
    versions: dict[str, str] = {}
    commit: Commit | None = None


class DeviceState(Record, frozen=True, kw_only=True):
    """A GPU at one moment, from NVML; None is what the driver does not tell.

    `throttle_reasons` says what held the clocks back, and is empty if nothing did.
    """

    sm_clock_hz: int | None = None
    max_sm_clock_hz: int | None = None
    memory_clock_hz: int | None = None
    power_milliwatts: int | None = None
    power_limit_milliwatts: int | None = None
    temperature_celsius: int | None = None
    throttle_reasons: tuple[str, ...] | None = None


class Hardware(Record, frozen=True, kw_only=True):
    """The device figures that prices rest on, measured here or taken from the table.

    `peak_flops` are dense peaks by arithmetic (`float32`, `bfloat16`, ...), FLOP/s, from the table;
    `state_before` is that before the first timed step, `state_after` that while the last ones ran.
    """

    name: str
    key: str | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    dram_bandwidth_bytes_per_s: int | None = None
    dram_bandwidth_provenance: Provenance = "unknown"
    l2_bytes: int | None = None
    peak_flops: dict[str, int] = {}
    driver: str | None = None
    present: bool = False
    state_before: DeviceState | None = None
    state_after: DeviceState | None = None


class Metric(Record, frozen=True, kw_only=True):
    """A figure with unit, provenance and definition; `per_step` has one value a step or None."""

    value: float | int | None
    unit: str
    provenance: Provenance
    definition: str
    per_step: tuple[float | int | None, ...] = ()


class KernelWork(Record, frozen=True, kw_only=True):
    """What a kernel computes in a step, and the least it can move: operands and results once.

    Operations are those of the op (a multiply-add is two), in `arithmetic` of the matrix units or,
    without `matrix`, of the float32 pipe. Work of no arithmetic has 0; what is unknown has no work.
    """

    flops: int
    bytes: int
    arithmetic: str
    matrix: bool


class KernelRow(Record, frozen=True, kw_only=True):
    """All executions of one kernel in the profiled steps; `count` and `time_ns` are per step.

    `calls` holds the operators behind it with their input shapes, `aten::mm [[8, 16], [16, 4]]`,
    and their executions per step; `first_execution` its place among the kernels by start. Counters
    (`dram_bytes`, `spill_bytes`: per step, read and written) are known where they were recorded.
    """

    name: str
    role: str
    library: str
    count: float
    time_ns: int
    registers_per_thread: int | None = None
    local_bytes_per_thread: int | None = None
    occupancy_estimated: float | None = None
    occupancy_theoretical: float | None = None
    occupancy_measured: float | None = None
    occupancy_limiter: str | None = None
    dram_bytes: int | None = None
    spill_bytes: int | None = None
    ops: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    calls: dict[str, float] = {}
    first_execution: int | None = None
    time_per_step_ns: tuple[int, ...] = ()
    work: KernelWork | None = None


class PlanSummary(Record, frozen=True, kw_only=True):
    """A plan of the run; the whole of it is `plans/ID.json`."""

    id: str
    title: str
    rule: str
    family: str
    phase: str
    sites: int
    saving_ns: Range | None = None


class Recommended(Record, frozen=True, kw_only=True):
    """The findings worth acting on, in order, and what the whole set saves: they do not add up."""

    order: tuple[str, ...] = ()
    set_saving_ns: Range | None = None


class Report(Record, frozen=True, kw_only=True):
    """The whole report; `check()` proves that ids are unique and every reference resolves."""

    schema_version: int = REPORT_SCHEMA_VERSION
    tool: Tool
    created: str
    sources: tuple[Source, ...]
    workload: Workload
    hardware: Hardware
    metrics: dict[str, Metric]
    kernels: tuple[KernelRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    recommended: Recommended = Recommended()
    plans: tuple[PlanSummary, ...] = ()
    warnings: tuple[Warning_, ...] = ()

    def check(self) -> None:
        if self.schema_version != REPORT_SCHEMA_VERSION:
            raise InvalidRecordError(
                f"report schema {self.schema_version}, this version reads {REPORT_SCHEMA_VERSION}",
                remedy="write it again with this version, or read it with the one that wrote it",
            )
        finding_ids, plan_ids = [f.id for f in self.findings], [p.id for p in self.plans]
        for ids, what in ((finding_ids, "finding"), (plan_ids, "plan")):
            if len(ids) != len(set(ids)):
                raise InvalidRecordError(f"a {what} id occurs twice")
        for finding in self.findings:
            finding.check()
            named = {i for a in finding.alternatives for i in a.plan_ids} | (
                {finding.plan_id} - {None}
            )
            if not named <= set(plan_ids):
                raise InvalidRecordError(
                    f"finding {finding.id} names a plan that is not in the report"
                )
        if not set(self.recommended.order) <= set(finding_ids):
            raise InvalidRecordError("a recommended finding is not in the report")
