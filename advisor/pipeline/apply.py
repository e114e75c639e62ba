"""`apply`: prove the plans of a run, put them in, measure, keep what pays. Top to bottom, one stage a paragraph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import torch

from advisor.apply.judge import Judgement, judge_region, judge_set, outputs_agree
from advisor.apply.rewrite import rewrite
from advisor.errors import UsageError
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.model.applied import Applied, Comparison, PlanVerdict, SetVerdict, Timing, Verdict
from advisor.model.report import Metric, Report
from advisor.pipeline import candidates as stages
from advisor.pipeline.backend import SwapLog, choose_swaps
from advisor.pipeline.candidates import SHOWN_GPUS, Candidate
from advisor.pipeline.measure import Bench, Variant, gpu_recorder
from advisor.pipeline.profile import versions
from advisor.store import RunDirectory, verify
from advisor.verify.statistics import compare
from collectors.live.capture import Capture, capture
from collectors.live.workload import Workload, load_workload

Emit = Callable[..., object]
NEEDS_GPU = "timing needs a GPU: the kernel was generated, sized and verified, not timed"


@dataclass
class Trial:
    """One variant of a finding: plans to put in together, and what came of it."""

    finding: str
    plan_ids: tuple[str, ...]
    comparison: Comparison | None = None
    judgement: Judgement | None = None
    swapped: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, tuple[str, ...]] = field(default_factory=dict)


def apply_run(run: RunDirectory, only: Sequence[str], emit: Emit) -> Applied:
    """Apply the recommended plans of a run made on this machine (or `only` these plans or findings).

    Raises `RefusedError` for a run that was copied or edited, `WorkloadError` if the workload
    fails.
    """
    emit("load", "running", message="checking the run's signature")
    refusal = verify(run)
    if refusal is not None:
        raise refusal
    info, report = run.info(), run.report()
    trials = _trials(report, only)
    found = stages.load_candidates(run, list(dict.fromkeys(i for t in trials for i in t.plan_ids)))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    emit("load", "running", message=f"building {info.target} on {device.type}")
    workload = load_workload(info.target, device, seed=info.seed)

    stages.generate(found, run.path / "kernels", emit)
    gpus = [gpu_by_key(key) for key in SHOWN_GPUS]
    stages.size(found, gpus, _present(device), emit)
    emit("verify", "running", message="capturing the graph again")
    captured, _ = capture(workload, generate_code=False)
    stages.check_regions(found, captured, device, emit)
    stages.verify(found, run, device, emit)
    if device.type == "cuda":
        stages.time(found, gpu_recorder, device, emit)
        applied = _measured(run, report, workload, found, trials, emit)
    else:
        applied = _unmeasured(run, captured, found, trials, emit)
    run.write_applied(applied)
    emit("done", "done", message=f"{applied.set.verdict}: {applied.set.reason}")
    return applied


def revert_run(run: RunDirectory, emit: Emit) -> bool:
    """Forget what was applied; the next compilation is the compiler's own. False if nothing was applied."""
    had = run.applied() is not None
    run.remove_applied()
    emit("done", "done", message="reverted" if had else "nothing was applied")
    return had


def _present(device: torch.device) -> Gpu | None:
    return find_gpu(torch.cuda.get_device_name()) if device.type == "cuda" else None


def _trials(report: Report, only: Sequence[str]) -> list[Trial]:
    """Variants to try, best finding first, best variant first; `only` names findings or plans."""
    by_id = {finding.id: finding for finding in report.findings}
    known = {plan.id for plan in report.plans}
    unknown = [name for name in only if name not in by_id and name not in known]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is no finding or plan of this run",
            remedy="`fusion-advisor show RUN` lists them",
        )
    chosen = [by_id[name] for name in only if name in by_id] or (
        [] if only else [by_id[i] for i in report.recommended.order]
    )
    trials = [
        Trial(finding.id, alternative.plan_ids)
        for finding in chosen
        for alternative in finding.alternatives
        if alternative.plan_ids
    ]
    return trials + [Trial(name, (name,)) for name in only if name in known]


# --- with a GPU --------------------------------------------------------------------------------------


def _measured(
    run: RunDirectory,
    report: Report,
    workload: Workload,
    found: dict[str, Candidate],
    trials: list[Trial],
    emit: Emit,
) -> Applied:
    emit("rewrite", "running", message="compiling the step without plans")
    bench = Bench(workload)
    folder = run.path / "kernels"
    kept: list[str] = []
    best = bench.compiled
    by_finding: dict[str, list[Trial]] = {}
    for trial in trials:
        by_finding.setdefault(trial.finding, []).append(trial)
    for group in by_finding.values():
        winner: tuple[Trial, Variant] | None = None
        for trial in group:
            variant = _try(bench, best, kept, trial, found, folder, emit)
            better = winner is None or _gain(trial) > _gain(winner[0])
            if (
                variant is not None
                and trial.judgement is not None
                and trial.judgement.keep
                and better
            ):
                winner = (trial, variant)
        if winner is not None:
            best, kept = winner[1], [k.plan.id for k in winner[1].kernels]
    emit("measure", "running", message="step time: eager, compiled, compiled with plans")
    result, before, after = _judge_set(bench, best, kept, run, emit)
    verdicts = tuple(_verdict(item, trials, result, report, bench) for item in found.values())
    return Applied(
        created=_now(),
        device=torch.cuda.get_device_name(),
        versions=versions(),
        plans=verdicts,
        set=result,
        metrics_before=before,
        metrics_after=after,
    )


def _gain(trial: Trial) -> int:
    return trial.comparison.gain_mid_ns if trial.comparison is not None else 0


def _try(
    bench: Bench,
    current: Variant,
    kept: Sequence[str],
    trial: Trial,
    found: dict[str, Candidate],
    folder: Path,
    emit: Emit,
) -> Variant | None:
    """Compile the step with a trial's plans beside those already kept, and compare GPU time."""
    refused = [found[i].refused for i in trial.plan_ids if found[i].refused]
    usable = [i for i in trial.plan_ids if found[i].refused is None]
    if not usable:
        trial.judgement = Judgement(False, refused[0] or "refused")
        return None
    names = [*kept, *(i for i in usable if i not in kept)]
    variant = bench.with_kernels("+".join(names), [found[name].ready(folder) for name in names])
    trial.swapped = {i: variant.log.swapped(i) for i in usable}
    trial.refusals = {i: variant.log.refusals(i) for i in usable}
    emit("rewrite", "running", plan=usable[0], value=sum(trial.swapped.values()),
         message=f"{sum(trial.swapped.values())} sites swapped")  # fmt: skip
    if not sum(trial.swapped.values()):
        trial.judgement = Judgement(False, "no site of it is in the compiled graph")
        return None
    trial.comparison = bench.gpu_time(current, variant)
    trial.judgement = judge_region(trial.comparison)
    emit(
        "measure",
        "running",
        plan=usable[0],
        value=trial.comparison.gain_mid_ns,
        message=trial.judgement.reason,
    )
    return variant


def _judge_set(
    bench: Bench, best: Variant, kept: Sequence[str], run: RunDirectory, emit: Emit
) -> tuple[SetVerdict, dict[str, Metric], dict[str, Metric]]:
    """Step time of the kept set; if it does not pay or its results differ, nothing is kept."""
    times = bench.step_time([bench.eager, bench.compiled, *([best] if kept else [])])
    if not kept:
        against = compare(times["eager"], times["compiled"], "step")
        reason = "no plan beat the compiler's own kernels"
        return (
            SetVerdict(verdict="reverted", reason=reason, plans=(), against_eager=against),
            {},
            {},
        )
    eager = compare(times["eager"], times[best.name], "step")
    compiled = compare(times["compiled"], times[best.name], "step")
    gpu = bench.gpu_time(bench.compiled, best)
    error, baseline, epsilon = bench.errors(best)
    agree = outputs_agree(error, baseline, epsilon)
    judgement = judge_set(gpu, compiled)
    if not agree:
        judgement = Judgement(
            False, f"results differ from eager's by {error:.2e}, the compiler's by {baseline:.2e}"
        )
    emit("decide", "running", value=compiled.gain_mid_ns, message=judgement.reason)
    before = bench.metrics(bench.compiled, run.path / "trace_before.json.gz")
    after = bench.metrics(best, run.path / "trace_after.json.gz")
    verdict = SetVerdict(
        verdict="kept" if judgement.keep else "reverted",
        reason=judgement.reason,
        plans=tuple(kept) if judgement.keep else (),
        against_eager=eager,
        against_compiled=compiled,
        gpu_time=gpu,
        outputs_agree=agree,
        output_error=error,
        baseline_error=baseline,
        peak_memory_before_bytes=bench.peak_memory(bench.compiled),
        peak_memory_after_bytes=bench.peak_memory(best),
        compile_before_ns=bench.compiled.compile_ns,
        compile_after_ns=best.compile_ns,
    )
    return verdict, before, after


def _verdict(
    item: Candidate, trials: Sequence[Trial], result: SetVerdict, report: Report, bench: Bench
) -> PlanVerdict:
    """A plan's record: refused, kept with the set, or taken out with the reason of its best trial."""
    plan = item.plan
    mine = [trial for trial in trials if plan.id in trial.plan_ids]
    best = max(mine, key=_gain, default=None)
    verdict: Verdict = "reverted"
    reason = (
        best.judgement.reason
        if best is not None and best.judgement is not None
        else "it was not tried"
    )
    if item.refused is not None:
        verdict, reason = "refused", item.refused
    elif plan.id in result.plans:
        verdict = "kept"
    elif best is not None and best.judgement is not None and best.judgement.keep:
        reason = "another variant of the same finding saved more" if result.plans else result.reason
    together = (
        f" (together with {len(best.plan_ids) - 1} more)"
        if best is not None and len(best.plan_ids) > 1
        else ""
    )
    return PlanVerdict(
        plan_id=plan.id,
        title=plan.title,
        verdict=verdict,
        reason=reason + together,
        sites_expected=len(plan.sites),
        sites_swapped=best.swapped.get(plan.id) if best is not None else None,
        predicted_ns=plan.prediction.saving_ns if plan.prediction else None,
        measured=_like_for_like(item, best, report),
        region=best.comparison if best is not None else None,
        block_rows=item.config.block_rows if item.config else None,
        num_warps=item.config.num_warps if item.config else None,
        numerics=item.numerics,
        resources=item.resources,
        timings=tuple(item.timings),
    )


def _like_for_like(item: Candidate, best: Trial | None, report: Report) -> Comparison | None:
    """What the prediction was about: eager's pieces against the kernel, or the compiled step with and without."""
    if report.workload.mode != "eager":
        return best.comparison if best is not None and len(best.plan_ids) == 1 else None
    if not item.timings or item.timings[0].eager is None:
        return None
    timing, count = item.timings[0], sum(site.executions for site in item.plan.sites)
    before, after = timing.eager, timing.kernel
    gains = [
        before.low_ns - after.high_ns,
        before.median_ns - after.median_ns,
        before.high_ns - after.low_ns,
    ]
    low, mid, high = (round(gain * count) for gain in gains)
    return Comparison(
        before=_scaled(before, count),
        after=_scaled(after, count),
        gain_low_ns=low,
        gain_mid_ns=mid,
        gain_high_ns=high,
        clock="kernel",
    )


def _scaled(timing: Timing, count: float) -> Timing:
    return msgspec.structs.replace(
        timing,
        median_ns=round(timing.median_ns * count),
        low_ns=round(timing.low_ns * count),
        high_ns=round(timing.high_ns * count),
    )


# --- without a GPU -----------------------------------------------------------------------------------


def _unmeasured(
    run: RunDirectory,
    captured: Capture,
    found: dict[str, Candidate],
    trials: list[Trial],
    emit: Emit,
) -> Applied:
    """Everything but time: sites are found and swapped in the captured graphs, which are then thrown away."""
    swapped = _swap_in_captured(run, captured, found, trials)
    emit(
        "rewrite",
        "running",
        value=sum(swapped.values()),
        message=f"{sum(swapped.values())} sites can be swapped",
    )
    verdicts = tuple(
        PlanVerdict(
            plan_id=item.plan.id,
            title=item.plan.title,
            verdict="refused" if item.refused else "not_measured",
            reason=item.refused or NEEDS_GPU,
            sites_expected=len(item.plan.sites),
            sites_swapped=swapped.get(item.plan.id),
            predicted_ns=item.plan.prediction.saving_ns if item.plan.prediction else None,
            numerics=item.numerics,
            resources=item.resources,
        )
        for item in found.values()
    )
    emit("decide", "running", message=NEEDS_GPU)
    verdict: Verdict = (
        "not_measured" if any(v.verdict == "not_measured" for v in verdicts) else "refused"
    )
    reason = NEEDS_GPU if verdict == "not_measured" else "every plan was refused"
    return Applied(
        created=_now(),
        device="no GPU",
        versions=versions(),
        plans=verdicts,
        set=SetVerdict(verdict=verdict, reason=reason, plans=()),
    )


def _swap_in_captured(
    run: RunDirectory, captured: Capture, found: dict[str, Candidate], trials: list[Trial]
) -> dict[str, int]:
    """Sites that each plan alone would swap, found by rewriting copies of the captured graphs."""
    swapped: dict[str, int] = {}
    for plan_id in dict.fromkeys(i for trial in trials for i in trial.plan_ids):
        if found[plan_id].refused is not None:
            continue
        kernel, log = found[plan_id].ready(run.path / "kernels"), SwapLog()
        for item in captured.graphs:
            lowered = item.lowered.copy()
            swaps = choose_swaps(lowered.graph, [kernel])
            log.outcomes += rewrite(lowered.fx_graph, lowered.fx_node, lowered.fx_aliases, swaps)
        swapped[plan_id] = log.swapped(plan_id)
    return swapped


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
