"""`applied.json`: what was proved about each plan and about the set, and what was kept."""

from __future__ import annotations

from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.actions import ActionKind
from advisor.model.base import Range, Record, Warning_
from advisor.model.cures import Retuned, Split
from advisor.model.launch import LaunchConfig
from advisor.model.report import Metric

APPLIED_SCHEMA_VERSION = 1
Verdict = Literal["kept", "reverted", "refused", "not_measured"]
# The reason on record of what a budget left no time for.
NO_TIME = "not tried: the time for this application was used up"
UNTRIED = "it was not tried"
# The warning of a record that a later application, elsewhere, has left as it is.
ELSEWHERE = "proven-elsewhere"


class Timing(Record, frozen=True, kw_only=True):
    """A sample of durations, ns: the median, its interval, and the number of observations."""

    median_ns: int
    low_ns: int
    high_ns: int
    samples: int

    def check(self) -> None:
        if not (0 <= self.low_ns <= self.median_ns <= self.high_ns and self.samples > 0):
            raise InvalidRecordError("timing is not ordered or has no samples")


class Comparison(Record, frozen=True, kw_only=True):
    """Before against after, interleaved in one process; the gain is the paired difference."""

    before: Timing
    after: Timing
    gain_low_ns: int
    gain_mid_ns: int
    gain_high_ns: int
    clock: Literal["gpu_busy", "step", "kernel"]

    def check(self) -> None:
        if not self.gain_low_ns <= self.gain_mid_ns <= self.gain_high_ns:
            raise InvalidRecordError("the interval of a gain is not ordered")

    @property
    def significant(self) -> bool:
        """The lower bound of the gain is above zero."""
        return self.gain_low_ns > 0


class NumericCase(Record, frozen=True, kw_only=True):
    """One case: what was tried, the largest error of any output, and eager's own.

    Errors are in units of the last place of the coarsest type the output is rounded to on its way.
    """

    name: str
    passed: bool
    max_error_ulps: float | None = None
    eager_error_ulps: float | None = None
    detail: str = ""


class Numerics(Record, frozen=True, kw_only=True):
    """All cases of one kernel and where they ran."""

    executed_on: Literal["gpu", "interpreter"]
    passed: bool
    cases: tuple[NumericCase, ...]


class KernelResources(Record, frozen=True, kw_only=True):
    """What a kernel needs on one GPU, read from the compiled binary; None is unknown.

    `local_bytes_per_thread` is the stack frame; spills are ptxas's own figures (NVIDIA) or VGPR
    spills × 4 and the private segment (AMD), per thread. `occupancy` is theoretical, `limiter` what
    bounds it.
    """

    gpu: str
    config: str
    registers: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    local_bytes_per_thread: int | None = None
    shared_bytes: int | None = None
    threads: int | None = None
    occupancy: float | None = None
    limiter: str | None = None
    assembler: str | None = None
    error: str | None = None


class KernelTiming(Record, frozen=True, kw_only=True):
    """The kernel alone, against the same region run otherwise; external bytes count once.

    `eager` is the plan's ops one by one in PyTorch: what eager runs where it has no fused kernel of
    its own. `copy_bandwidth_fraction` is against a copy of the same bytes, `peak_…` against a large
    one; all but `kernel_warm` start with cold caches.
    """

    shape: str
    config: str
    bytes: int
    kernel: Timing
    kernel_warm: Timing | None = None
    eager: Timing | None = None
    inductor: Timing | None = None
    copy: Timing | None = None
    copy_bandwidth_fraction: float | None = None
    peak_copy_bandwidth_fraction: float | None = None
    eager_bandwidth_fraction: float | None = None
    launch_ns: int | None = None


class RankVote(Record, frozen=True, kw_only=True):
    """What one rank of a job measured, and whether it would keep what was tried."""

    rank: int
    keep: bool
    reason: str
    gpu_time: Comparison | None = None
    step: Comparison | None = None


class PlanVerdict(Record, frozen=True, kw_only=True):
    """The life of one plan in one application.

    `measured` is like for like with `predicted_ns`, both per step; `modelled_ns` is the prediction
    without what was learned of earlier plans, None where nothing was; `replaced_ns` is what the ops
    of the plan take without it, as the prediction has it. `region` is the compiled step with the
    plan against the step without it, which decides. `launch` is how its kernel is launched; records
    of earlier versions have `block_rows` and `num_warps` in its place; `serves` says which sizes it
    is called with, also in graphs compiled for any. `votes` are those of all ranks of a job of
    several, here as in the other verdicts; all other figures are this rank's.
    """

    plan_id: str
    title: str
    verdict: Verdict
    reason: str
    sites_expected: int
    sites_swapped: int | None = None
    predicted_ns: Range | None = None
    modelled_ns: Range | None = None
    replaced_ns: int | None = None
    measured: Comparison | None = None
    region: Comparison | None = None
    launch: LaunchConfig | None = None
    block_rows: int | None = None
    num_warps: int | None = None
    serves: str | None = None
    numerics: Numerics | None = None
    resources: tuple[KernelResources, ...] = ()
    timings: tuple[KernelTiming, ...] = ()
    votes: tuple[RankVote, ...] = ()

    @property
    def configuration(self) -> LaunchConfig:
        """How the kernel is launched, whatever version wrote the record."""
        if self.launch is not None:
            return self.launch
        return LaunchConfig(block_rows=self.block_rows or 1, num_warps=self.num_warps or 4)


class ActionVerdict(Record, frozen=True, kw_only=True):
    """The life of one graph-level action in one application.

    `step` and `gpu_time` are the step with it against the best step before it. `sites` counts the
    places it changed, `details` say what became of each; `pool_bytes` is what a CUDA graph holds.
    Peaks of memory are those of one step without and with it. `applies` is False where there is
    nothing in the step that it could change, for the reason given. `splits` and `retuned` are what
    the compiler is told of its own kernels; `with_loss`: the model is compiled together with its
    loss, as one function.
    """

    kind: ActionKind
    title: str
    verdict: Verdict
    reason: str
    applies: bool = True
    finding: str | None = None
    step: Comparison | None = None
    gpu_time: Comparison | None = None
    sites: int | None = None
    details: tuple[str, ...] = ()
    pool_bytes: int | None = None
    peak_memory_before_bytes: int | None = None
    peak_memory_after_bytes: int | None = None
    by_hand: str = ""
    votes: tuple[RankVote, ...] = ()
    splits: tuple[Split, ...] = ()
    retuned: tuple[Retuned, ...] = ()
    with_loss: bool = False


class SetVerdict(Record, frozen=True, kw_only=True):
    """What was kept, together: step time against eager and against the compiler's defaults.

    `actions` are in the order in which they are done, `plans` in that in which they claim sites.
    `output_error` is how far results are from eager's, `baseline_error` the compiler's; where these
    do not settle it, from those of a copy in a wider type, and eager's or the compiler's; where
    there is none, `outputs_agree` is None and the reason says why. Of a training step,
    `loss_divergence` is the largest distance of its losses over some steps from those of a run in
    the type `loss_reference`, relative to the largest loss, `eager_divergence` eager's own,
    `compiled_divergence` the compiler's without what was kept, where eager's did not settle it;
    `dropout_off` says that nothing was dropped in these runs, `loss_note` why the
    losses say nothing. The compile times are of the first compilation in the process, and of the
    set's behind all trials: with their kernels in the caches.
    """

    verdict: Verdict
    reason: str
    plans: tuple[str, ...]
    actions: tuple[ActionKind, ...] = ()
    against_eager: Comparison | None = None
    against_compiled: Comparison | None = None
    gpu_time: Comparison | None = None
    outputs_agree: bool | None = None
    output_error: float | None = None
    baseline_error: float | None = None
    loss_divergence: float | None = None
    eager_divergence: float | None = None
    compiled_divergence: float | None = None
    loss_reference: str | None = None
    dropout_off: bool = False
    loss_note: str = ""
    peak_memory_before_bytes: int | None = None
    peak_memory_after_bytes: int | None = None
    compile_before_ns: int | None = None
    compile_after_ns: int | None = None
    votes: tuple[RankVote, ...] = ()


class Applied(Record, frozen=True, kw_only=True):
    """The record of one `apply`; written anew by every application, removed by `revert`.

    `metrics_before` and `metrics_after` describe the compiled step without and with what was kept.
    `duration_ns` is what the application itself took.
    """

    schema_version: int = APPLIED_SCHEMA_VERSION
    created: str
    device: str
    versions: dict[str, str]
    plans: tuple[PlanVerdict, ...]
    actions: tuple[ActionVerdict, ...] = ()
    set: SetVerdict
    metrics_before: dict[str, Metric] = {}
    metrics_after: dict[str, Metric] = {}
    duration_ns: int | None = None
    warnings: tuple[Warning_, ...] = ()

    def check(self) -> None:
        if self.schema_version != APPLIED_SCHEMA_VERSION:
            raise InvalidRecordError(
                f"applied.json schema {self.schema_version} is not {APPLIED_SCHEMA_VERSION}"
            )
        kept = {p.plan_id for p in self.plans if p.verdict == "kept"}
        done = {a.kind for a in self.actions if a.verdict == "kept"}
        if self.set.verdict != "kept":
            return
        if not set(self.set.plans) <= kept or not set(self.set.actions) <= done:
            raise InvalidRecordError("the set keeps a plan or an action that was not kept")


def is_out_of_time(verdict: PlanVerdict | ActionVerdict) -> bool:
    """Whether a budget left no time for it, by itself or together with others."""
    return verdict.reason.startswith(NO_TIME)


def is_proof(verdict: PlanVerdict | ActionVerdict) -> bool:
    """Whether all was found out that can be on that device: time did not end it."""
    return not verdict.reason.startswith((NO_TIME, UNTRIED))
