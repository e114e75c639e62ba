"""One run alone: kernels that take longer than what their members would, by what explains it.

Without the members' times nothing is raised within the interval of the model, nor without a cause:
a time above a model may be the model's fault. Library kernels are as they are by design.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import msgspec

from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu
from advisor.model.base import Range
from advisor.model.findings import Evidence
from advisor.model.overfusion import Candidate, Cause, FusionVerdict, Outcome, Tier
from advisor.model.step_record import DRIVER, Launch, StepRecord
from advisor.units import counted, format_bytes, format_ns
from analyzers.bucket_advice import best_pieces, step_ns
from analyzers.overfusion.causes import EXPLAINS, explain
from analyzers.overfusion.judge import ONE_STEP, WORTH, config_of, members_of, spread_of
from analyzers.overfusion.members_model import group_of, members_ns
from analyzers.overfusion.variants import variants

# Kernels that people or compilers wrote for one program.
WRITTEN = ("inductor", "triton", "xla", "unknown", "nvfuser", "tvm")
BY_DESIGN = ("gemm", "conv", "attention", "communication")
# Told by the launch and the operands, without knowing what the kernel computes.
BY_LAUNCH = (
    "too_few_programs", "lost_vectorisation", "register_spill", "occupancy_shared_memory",
    "gemm_epilogue",
)  # fmt: skip
# A product beside no library may lose by its epilogue, its prologue, its precision: only the source
# tells which.
UNTOLD_BY_LAUNCH = ("gemm_epilogue",)
# By itself no reason: that it costs time only a pair shows.
NO_REASON = ("occupancy_registers",)
LOST = 1.05
FEWEST_SOURCES, MOST_TRIED = 4, 500
# What a piece of its own costs beside its bytes: an op and an event on the host, a start of a copy.
COPY_NS = 20_000
# A kernel and a copy of its own after it, on another stream: how long the host takes for both where
# it is slow (114 to 126 µs in steps of the corpus's development half that wait for the host).
ISSUE_NS = 120_000


def judge_alone(step: StepRecord) -> tuple[FusionVerdict, ...]:
    """The verdicts on all kernels that may be fused ones, losses first."""
    gpu = None if step.gpu is None else find_gpu(step.gpu)
    if gpu is None:
        return ()
    step = step.coded()
    places: dict[Hashable, list[Launch]] = defaultdict(list)
    for launch in step.launches:
        if is_candidate(launch):
            places[launch.name, launch.operands, launch.grid].append(launch)
    found = [_judge(tuple(group), step, gpu) for group in places.values()]
    found += late_copies(step) + variants(step, gpu)
    return tuple(sorted(found, key=lambda v: (v.outcome != "regression", -(v.lost_ns or 0))))


def is_candidate(launch: Launch) -> bool:
    """Whether a kernel was written for this program: not a library's, not a copy."""
    if launch.code is not None:
        return True
    return launch.is_kernel and launch.library in WRITTEN and launch.role not in BY_DESIGN


def _judge(group: tuple[Launch, ...], step: StepRecord, gpu: Gpu) -> FusionVerdict:
    launch = sorted(group, key=lambda one: one.time_ns)[len(group) // 2]
    tier: Tier = "trace" if launch.code is None else "binary"
    model = members_ns(launch, gpu)
    verdict = FusionVerdict(
        tier=tier,
        outcome="cannot_judge",
        kernel=launch.name,
        fused=members_of(group),
        fused_ns=spread_of(launch.times_ns or (launch.time_ns,)).scaled(len(group)),
        members_ns=None if model is None else model.scaled(len(group)),
        reason="what it computes is not known",
        config=config_of(launch),
        code=launch.code,
    )
    if model is None:
        return verdict
    lost = launch.time_ns - model.mid
    outcome: Outcome = "benign"
    reason = (
        f"{format_ns(launch.time_ns)}; its members would take {format_ns(model.low)} to "
        f"{format_ns(model.high)}"
    )
    worth = lost * len(group) > WORTH * step.busy_mid_ns
    noise = ONE_STEP if len(group) * len(launch.times_ns) < 2 else 1.0
    if launch.time_ns > LOST * noise * model.high and worth:
        candidates = tuple(
            candidate
            for candidate in explain(group_of(launch, lost, gpu))
            if candidate.cause not in NO_REASON
            and (tier == "binary" or candidate.cause in BY_LAUNCH)
        )
        if candidates and candidates[0].share >= EXPLAINS:
            cause: Cause | None = candidates[0].cause
            if tier == "trace" and cause in UNTOLD_BY_LAUNCH:
                cause = None
            return msgspec.structs.replace(
                verdict, outcome="regression", reason=reason, candidates=candidates, cause=cause
            )
        outcome, reason = "cannot_judge", f"{reason}; nothing explains it"
    return msgspec.structs.replace(verdict, outcome=outcome, reason=reason)


# --- copies ---------------------------------------------------------------------------------------


def late_copies(step: StepRecord) -> list[FusionVerdict]:
    """Copies of the results of many kernels at once, begun when the last of them is done.

    That a copy holds the results of the kernels right before it is told by its size: it is the sum
    of what they wrote. What it replaced is a copy for every kernel, begun as that ends: raised if
    this hides more even with a slow host, at the speed of these copies.
    """
    ordered = sorted(step.launches, key=lambda launch: launch.start_ns)
    unsent = [x for x in ordered if x.is_kernel and x.operands]
    late: list[tuple[Launch, list[Launch]]] = []
    for copy in ordered:
        if copy.library == DRIVER and copy.copied_bytes:
            sources = _written(unsent, copy)
            late += [(copy, sources)] if sources else []
            unsent = [x for x in unsent if all(x is not own for own in sources)]
    if sum(len(sources) for _, sources in late) < FEWEST_SOURCES:
        return []
    copies, kernels = [copy for copy, _ in late], [x for _, sources in late for x in sources]
    layers, transfer = [x.time_ns for x in kernels], sum(copy.time_ns for copy in copies)
    best = best_pieces(layers, transfer, COPY_NS)
    now = step_ns(layers, transfer, COPY_NS, min(len(copies), len(layers)))
    apart = step_ns([max(one, ISSUE_NS) for one in layers], transfer, 0, len(layers))
    hidden = now - apart
    if best <= len(copies) or hidden <= (LOST - 1) * (step.busy_mid_ns - hidden):
        return []
    size = format_bytes(sum(copy.copied_bytes or 0 for copy in copies))
    text = (
        f"{counted(len(copies), 'copy', 'copies')} of {size} hold what {len(kernels)} kernels "
        f"wrote and begin after the last of their own; with a copy for each kernel "
        f"{format_ns(hidden)} more would hide"
    )
    evidence = Evidence(kind="time", text=text, values={"hidden_ns": hidden})
    busy = step.busy_mid_ns
    verdict = FusionVerdict(
        tier="trace", outcome="regression", kernel=copies[0].name, fused=members_of(copies),
        members=members_of(kernels), fused_ns=Range(low=busy, mid=busy, high=busy),
        members_ns=Range(low=busy - hidden, mid=busy - hidden, high=busy), cause="lost_overlap",
        candidates=(Candidate(cause="lost_overlap", share=1.0, evidence=evidence),),
        reason="copies begin late",
        cure=_pieces_text(copies, kernels),
    )  # fmt: skip
    return [verdict]


def _pieces_text(copies: Sequence[Launch], kernels: Sequence[Launch]) -> str:
    """In how many pieces to send what the kernels write, and what that takes."""
    layers, transfer = [x.time_ns for x in kernels], sum(copy.time_ns for copy in copies)
    best = best_pieces(layers, transfer, COPY_NS)
    now, then = (step_ns(layers, transfer, COPY_NS, n) for n in (len(copies), best))
    return (
        f"send it in {counted(best, 'piece')}, each as soon as its kernels are done: "
        f"{format_ns(then)} at best in place of {format_ns(now)}, by the times of these kernels"
    )


def _written(unsent: Sequence[Launch], copy: Launch) -> list[Launch]:
    """The first kernels in a row, all done, whose results make up a copy; empty if none do."""
    done = [launch for launch in unsent if launch.end_ns <= copy.start_ns]
    for first in range(min(len(done), MOST_TRIED)):
        total = 0
        for last in range(first, len(done)):
            total += done[last].operands[-1].size_bytes
            if total == copy.copied_bytes:
                return done[first : last + 1]
            if total > (copy.copied_bytes or 0):
                break
    return []
