"""`apply`: prove the plans of a run, put them in, measure, keep what pays. Read top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch

from advisor.apply.rewrite import rewrite
from advisor.errors import RefusedError
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.model.applied import Applied, PlanVerdict, SetVerdict
from advisor.model.report import Metric, Report
from advisor.model.run import Emit
from advisor.pipeline import candidates as stages
from advisor.pipeline.backend import SwapLog, choose_swaps, programs_of
from advisor.pipeline.candidates import SHOWN_GPUS, Candidate
from advisor.pipeline.facts import now, versions
from advisor.pipeline.measure import Bench, gpu_recorder
from advisor.pipeline.search import Search
from advisor.pipeline.trials import KEPT_BEFORE, Trial, requested
from advisor.pipeline.verdicts import action_verdicts, verdict_of
from advisor.report.text import counted
from advisor.store import RunDirectory
from advisor.units import NS_PER_S
from collectors.live.capture import Capture, capture
from collectors.live.workload import Workload, load_workload

NOTHING = (
    "nothing to apply without a GPU: no generated kernel is asked for, and actions are measured on "
    "a GPU only"
)
NO_DEVICE = "no GPU"
NEEDS_GPU = "timing needs a GPU: the kernel was generated, sized and verified, not timed"


@dataclass(frozen=True)
class _Session:
    """One application: the run, its plans on their way, and the trials they take part in."""

    run: RunDirectory
    report: Report
    found: dict[str, Candidate]
    trials: list[Trial]
    emit: Emit
    deadline: float | None

    @property
    def folder(self) -> Path:
        return self.run.path / "kernels"


def apply_run(
    run: RunDirectory, only: Sequence[str], emit: Emit, budget_s: float | None = None
) -> Applied:
    """Apply what is worth trying of a run of this machine (or `only` these findings, plans or
    actions) and keep what pays.

    With `only`, what an earlier application kept stays: it is tried again first, and what this one
    asks for beside it. After `budget_s` seconds nothing new is tried. Raises what `requested`
    raises, `RefusedError` where what was kept would be lost for want of a GPU, `WorkloadError` if
    the workload fails.
    """
    started = time.monotonic()
    emit("load", "running", message="checking the run's signature")
    trials = requested(run, only)
    earlier = run.applied() if only else None
    trials = [*kept_before(earlier), *trials]
    info, report = run.info(), run.report()
    found = stages.load_candidates(run, list(dict.fromkeys(i for t in trials for i in t.plan_ids)))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        refuse_to_forget(run)
    if not found and device.type == "cpu":
        return _finish(run, with_earlier(_nothing_to_apply(), earlier), started, emit)
    deadline = None if budget_s is None else started + budget_s
    session = _Session(run, report, found, trials, emit, deadline)
    emit("load", "running", message=f"building {info.target} on {device.type}")
    directory = Path(info.working_directory)
    load = partial(load_workload, info.target, device, seed=info.seed, directory=directory)
    workload = load()

    stages.generate(found, session.folder, emit)
    gpus = [gpu_by_key(key) for key in SHOWN_GPUS]
    stages.size(found, gpus, _present(device), emit)
    emit("verify", "running", message="capturing the graph again")
    eager = report.workload.mode == "eager"
    captured, _ = capture(workload, generate_code=False, eager=eager)
    stages.check_regions(found, captured, device, emit)
    stages.verify(found, run, device, emit)
    if device.type == "cuda":
        stages.time(found, gpu_recorder, device, emit)
        stages.verify(found, run, device, emit)
        applied = _measured(session, workload, load)
    else:
        applied = _unmeasured(session, captured)
    return _finish(run, with_earlier(applied, earlier), started, emit)


def refuse_to_forget(run: RunDirectory) -> None:
    """Without a GPU nothing can be judged: the record of what was kept with one would be lost."""
    applied = run.applied()
    if applied is not None and applied.set.verdict == "kept":
        raise RefusedError(
            "what was kept cannot be judged again without a GPU",
            where=run.id,
            why=f"it was measured on {applied.device}",
            remedy="apply where that GPU is, or `fusion-advisor revert` it first",
        )


def kept_before(earlier: Applied | None) -> list[Trial]:
    """What an earlier application kept: its plans as one trial, and its actions."""
    if earlier is None or earlier.set.verdict != "kept":
        return []
    trials = [Trial(KEPT_BEFORE, action=kind) for kind in earlier.set.actions]
    return [*trials, Trial(KEPT_BEFORE, earlier.set.plans)] if earlier.set.plans else trials


def with_earlier(applied: Applied, earlier: Applied | None) -> Applied:
    """The record with the verdicts on plans that only the earlier application tried.

    They hold for the device and the versions they were measured with.
    """
    if earlier is None or (earlier.device, earlier.versions) != (applied.device, applied.versions):
        return applied
    tried = {verdict.plan_id for verdict in applied.plans}
    done = {verdict.kind for verdict in applied.actions}
    plans = [verdict for verdict in earlier.plans if verdict.plan_id not in tried]
    actions = [verdict for verdict in earlier.actions if verdict.kind not in done]
    return msgspec.structs.replace(
        applied, plans=(*applied.plans, *plans), actions=(*applied.actions, *actions)
    )


def _finish(run: RunDirectory, applied: Applied, started: float, emit: Emit) -> Applied:
    taken = round((time.monotonic() - started) * NS_PER_S)
    applied = msgspec.structs.replace(applied, duration_ns=taken)
    run.write_applied(applied)
    emit("done", "done", message=f"{applied.set.verdict}: {applied.set.reason}")
    return applied


def _nothing_to_apply() -> Applied:
    verdict = SetVerdict(verdict="refused", reason=NOTHING, plans=())
    return Applied(created=now(), device=NO_DEVICE, versions=versions(), plans=(), set=verdict)


def _present(device: torch.device) -> Gpu | None:
    return find_gpu(torch.cuda.get_device_name()) if device.type == "cuda" else None


# --- with a GPU -----------------------------------------------------------------------------------


def _measured(session: _Session, workload: Workload, reload: Callable[[], Workload]) -> Applied:
    session.emit("rewrite", "running", message="compiling the step without plans")
    bench = Bench(workload, reload)
    search = Search(
        bench, session.found, session.trials, session.folder, session.emit, session.deadline
    )
    best, result = search.run()
    before: dict[str, Metric] = {}
    after: dict[str, Metric] = {}
    if best is not None:
        before = bench.metrics(bench.compiled, session.run.path / "trace_before.json.gz")
        after = bench.metrics(best, session.run.path / "trace_after.json.gz")
    mode = session.report.workload.mode
    verdicts = [verdict_of(item, session.trials, result, mode) for item in session.found.values()]
    return Applied(
        created=now(),
        device=torch.cuda.get_device_name(),
        versions=versions(),
        plans=tuple(verdicts),
        actions=action_verdicts(session.trials, result),
        set=result,
        metrics_before=before,
        metrics_after=after,
    )


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
    return Applied(created=now(), device=NO_DEVICE, versions=versions(), plans=verdicts, set=result)


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
