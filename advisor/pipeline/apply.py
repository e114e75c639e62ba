"""`apply`: prove the plans of a run, put them in, measure, keep what pays. Read top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from advisor.apply.judge import Judgement, judge_region, judge_set, outputs_agree
from advisor.apply.rewrite import rewrite
from advisor.errors import WorkloadError
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.model.applied import Applied, PlanVerdict, SetVerdict
from advisor.model.report import Metric, Report
from advisor.model.run import Emit
from advisor.pipeline import candidates as stages
from advisor.pipeline.backend import SwapLog, choose_swaps, programs_of
from advisor.pipeline.candidates import SHOWN_GPUS, Candidate
from advisor.pipeline.facts import now, versions
from advisor.pipeline.measure import Bench, Variant, gpu_recorder
from advisor.pipeline.trials import Trial, by_finding, requested
from advisor.pipeline.verdicts import verdict_of
from advisor.report.text import counted
from advisor.store import RunDirectory
from advisor.verify.statistics import compare
from collectors.live.capture import Capture, capture
from collectors.live.workload import Workload, load_workload

NOTHING = "nothing to apply: the report recommends no generated kernel"
NEEDS_GPU = "timing needs a GPU: the kernel was generated, sized and verified, not timed"


@dataclass(frozen=True)
class _Session:
    """One application: the run, its plans on their way, and the trials they take part in."""

    run: RunDirectory
    report: Report
    found: dict[str, Candidate]
    trials: list[Trial]
    emit: Emit

    @property
    def folder(self) -> Path:
        return self.run.path / "kernels"


def apply_run(run: RunDirectory, only: Sequence[str], emit: Emit) -> Applied:
    """Apply the recommended plans of a run of this machine (or `only` these plans or findings).

    With `only`, what an earlier application kept stays: it is tried again first, and what this one
    asks for beside it. Raises what `requested` raises, `WorkloadError` if the workload fails.
    """
    emit("load", "running", message="checking the run's signature")
    trials = requested(run, only)
    earlier = run.applied() if only else None
    trials = [*kept_before(earlier), *trials]
    info, report = run.info(), run.report()
    if not trials:
        return _finish(run, _nothing_to_apply(), emit)
    found = stages.load_candidates(run, list(dict.fromkeys(i for t in trials for i in t.plan_ids)))
    session = _Session(run, report, found, trials, emit)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    emit("load", "running", message=f"building {info.target} on {device.type}")
    workload = load_workload(
        info.target, device, seed=info.seed, directory=Path(info.working_directory)
    )

    stages.generate(found, session.folder, emit)
    gpus = [gpu_by_key(key) for key in SHOWN_GPUS]
    stages.size(found, gpus, _present(device), emit)
    emit("verify", "running", message="capturing the graph again")
    captured, _ = capture(workload, generate_code=False)
    stages.check_regions(found, captured, device, emit)
    stages.verify(found, run, device, emit)
    if device.type == "cuda":
        stages.time(found, gpu_recorder, device, emit)
        stages.verify(found, run, device, emit)
        applied = _measured(session, workload)
    else:
        applied = _unmeasured(session, captured)
    return _finish(run, with_earlier(applied, earlier), emit)


def kept_before(earlier: Applied | None) -> list[Trial]:
    """The set that an earlier application kept, as one trial; none if it kept nothing."""
    if earlier is None or earlier.set.verdict != "kept":
        return []
    return [Trial("kept before", earlier.set.plans)]


def with_earlier(applied: Applied, earlier: Applied | None) -> Applied:
    """The record with the verdicts on plans that only the earlier application tried.

    They hold for the device and the versions they were measured with.
    """
    if earlier is None or (earlier.device, earlier.versions) != (applied.device, applied.versions):
        return applied
    now_tried = {verdict.plan_id for verdict in applied.plans}
    others = [verdict for verdict in earlier.plans if verdict.plan_id not in now_tried]
    return msgspec.structs.replace(applied, plans=(*applied.plans, *others))


def _finish(run: RunDirectory, applied: Applied, emit: Emit) -> Applied:
    run.write_applied(applied)
    emit("done", "done", message=f"{applied.set.verdict}: {applied.set.reason}")
    return applied


def _nothing_to_apply() -> Applied:
    verdict = SetVerdict(verdict="refused", reason=NOTHING, plans=())
    return Applied(created=now(), device="none", versions=versions(), plans=(), set=verdict)


def _present(device: torch.device) -> Gpu | None:
    return find_gpu(torch.cuda.get_device_name()) if device.type == "cuda" else None


# --- with a GPU -----------------------------------------------------------------------------------


def _measured(session: _Session, workload: Workload) -> Applied:
    session.emit("rewrite", "running", message="compiling the step without plans")
    bench = Bench(workload)
    winners = _winners(session, bench)
    session.emit("measure", "running", message="step time: eager, compiled, compiled with plans")
    before: dict[str, Metric] = {}
    after: dict[str, Metric] = {}
    if winners:
        best, result = _judge_sets(session, bench, winners)
        before = bench.metrics(bench.compiled, session.run.path / "trace_before.json.gz")
        after = bench.metrics(best, session.run.path / "trace_after.json.gz")
    else:
        result = _nothing_kept(bench)
    mode = session.report.workload.mode
    verdicts = [verdict_of(item, session.trials, result, mode) for item in session.found.values()]
    return Applied(
        created=now(),
        device=torch.cuda.get_device_name(),
        versions=versions(),
        plans=tuple(verdicts),
        set=result,
        metrics_before=before,
        metrics_after=after,
    )


def _winners(session: _Session, bench: Bench) -> list[Trial]:
    """Of every finding the trial that saves most GPU time, each tried beside the winners before."""
    best, winners = bench.unswapped(), []
    for group in by_finding(session.trials):
        found: tuple[Trial, Variant] | None = None
        for trial in group:
            variant = _try(session, bench, best, trial)
            ahead = found is None or trial.gain_ns > found[0].gain_ns
            if variant is not None and trial.pays and ahead:
                found = trial, variant
        if found is not None:
            winners.append(found[0])
            best = found[1]
    return winners


def _try(session: _Session, bench: Bench, current: Variant, trial: Trial) -> Variant | None:
    """Swap a trial's plans in beside those already kept, and compare GPU time."""
    found = session.found
    usable = [name for name in trial.plan_ids if found[name].refused is None]
    if not usable:
        trial.judgement = Judgement(False, found[trial.plan_ids[0]].refused or "refused")
        return None
    kept = [kernel.plan.id for kernel in current.kernels]
    names = [*kept, *(name for name in usable if name not in kept)]
    try:
        variant = bench.trial("+".join(names), [found[n].ready(session.folder) for n in names])
    except WorkloadError as error:  # this trial is lost, no other
        trial.judgement = Judgement(False, error.line())
        session.emit("rewrite", "running", plan=usable[0], message=trial.judgement.reason)
        return None
    trial.swapped = {name: variant.log.swapped(name) for name in usable}
    count = sum(trial.swapped.values())
    message = f"{counted(count, 'site')} swapped"
    session.emit("rewrite", "running", plan=usable[0], value=count, message=message)
    if not count:
        refusals = [reason for name in usable for reason in variant.log.refusals(name)]
        absent = "no site of it is in the compiled graph"
        trial.judgement = Judgement(False, refusals[0] if refusals else absent)
        return None
    comparison = bench.gpu_time(current, variant)
    judgement = judge_region(comparison)
    trial.comparison, trial.judgement = comparison, judgement
    gain = comparison.gain_mid_ns
    session.emit("measure", "running", plan=usable[0], value=gain, message=judgement.reason)
    return variant


def _judge_sets(
    session: _Session, bench: Bench, winners: Sequence[Trial]
) -> tuple[Variant, SetVerdict]:
    """The largest set that pays, found by halving one that does not.

    What wins alone may lose with others: by the step's time, or by rounding that adds up.
    """
    best, result = _judge_set(session, bench, winners)
    if result.verdict == "kept" or len(winners) == 1:
        return best, result
    middle = len(winners) // 2
    halves = (winners[:middle], winners[middle:])
    found = [_judge_sets(session, bench, half) for half in halves]
    paying = [pair for pair in found if pair[1].verdict == "kept"]
    return max(paying, key=lambda pair: _gain(pair[1]), default=(best, result))


def _gain(result: SetVerdict) -> int:
    return result.gpu_time.gain_mid_ns if result.gpu_time is not None else 0


def _nothing_kept(bench: Bench) -> SetVerdict:
    times = bench.step_time([bench.eager, bench.compiled])
    return SetVerdict(
        verdict="reverted",
        reason="no plan beat the compiler's own kernels",
        plans=(),
        against_eager=compare(times["eager"], times["compiled"], "step"),
    )


def _judge_set(
    session: _Session, bench: Bench, winners: Sequence[Trial]
) -> tuple[Variant, SetVerdict]:
    """Compile the step with a set as its user will, and judge it by step time and results."""
    names = _plans_of(session, winners)
    kernels = [session.found[name].ready(session.folder) for name in names]
    best = bench.with_kernels("+".join(names), kernels)
    times = bench.step_time([bench.eager, bench.compiled, best])
    compiled = compare(times["compiled"], times[best.name], "step")
    gpu = bench.gpu_time(bench.compiled, best)
    found = bench.agreement(best)
    agree = found and outputs_agree(found.error, found.baseline, found.epsilon)
    judgement = judge_set(gpu, compiled)
    if found is None:
        judgement = Judgement(False, "the step returns no tensor: nothing shows that results agree")
    elif not agree:
        differ = f"results differ from {found.reference}'s by {found.error:.2e}"
        judgement = Judgement(False, f"{differ}, without plans by {found.baseline:.2e}")
    gain = compiled.gain_mid_ns
    session.emit("decide", "running", value=gain, message=judgement.reason)
    return best, SetVerdict(
        verdict="kept" if judgement.keep else "reverted",
        reason=judgement.reason,
        plans=tuple(kernel.plan.id for kernel in best.kernels) if judgement.keep else (),
        against_eager=compare(times["eager"], times[best.name], "step"),
        against_compiled=compiled,
        gpu_time=gpu,
        outputs_agree=agree,
        output_error=found and found.error,
        baseline_error=found and found.baseline,
        peak_memory_before_bytes=bench.peak_memory(bench.compiled),
        peak_memory_after_bytes=bench.peak_memory(best),
        compile_before_ns=bench.compiled.compile_ns,
        compile_after_ns=best.compile_ns,
    )


def _plans_of(session: _Session, winners: Sequence[Trial]) -> list[str]:
    """The plans of some winners in the order in which they claim their sites."""
    names = (name for trial in winners for name in trial.plan_ids)
    return [name for name in dict.fromkeys(names) if session.found[name].refused is None]


# --- without a GPU --------------------------------------------------------------------------------


def _unmeasured(session: _Session, captured: Capture) -> Applied:
    """Everything but time: sites are swapped in the captured graphs, which are then thrown away."""
    swapped = _swap_in_captured(session, captured)
    count = sum(swapped.values())
    session.emit(
        "rewrite", "running", value=count, message=f"{counted(count, 'site')} can be swapped"
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
        for item in session.found.values()
    )
    session.emit("decide", "running", message=NEEDS_GPU)
    result = SetVerdict(verdict="refused", reason="every plan was refused", plans=())
    if any(verdict.verdict == "not_measured" for verdict in verdicts):
        result = SetVerdict(verdict="not_measured", reason=NEEDS_GPU, plans=())
    return Applied(created=now(), device="no GPU", versions=versions(), plans=verdicts, set=result)


def _swap_in_captured(session: _Session, captured: Capture) -> dict[str, int]:
    """Sites that each plan alone would swap, found by rewriting copies of the captured graphs."""
    swapped: dict[str, int] = {}
    for plan_id, candidate in session.found.items():
        if candidate.refused is not None:
            continue
        kernel, log = candidate.ready(session.folder), SwapLog()
        for item in captured.graphs:
            lowered = item.lowered.copy()
            swaps = choose_swaps(programs_of(lowered.graph), [kernel])
            log.outcomes += rewrite(lowered.fx_graph, lowered.fx_node, lowered.fx_aliases, swaps)
        swapped[plan_id] = log.swapped(plan_id)
    return swapped
