"""`apply`: prove the plans of a run, put them in, measure, keep what pays. Read top to bottom."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import fx

from advisor.apply.graph.records import Rewritten
from advisor.errors import AdvisorError
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.model.actions import ActionKind
from advisor.model.applied import Applied, SetVerdict
from advisor.model.report import Metric, Report
from advisor.model.run import Emit, RunInfo
from advisor.pipeline import candidates as stages
from advisor.pipeline.backend import GRAPH_REWRITES
from advisor.pipeline.budget import Budget
from advisor.pipeline.candidates import MOST_VERIFIERS, SHOWN_GPUS, Candidate
from advisor.pipeline.earlier import (
    NO_DEVICE,
    NOTHING_LEFT,
    goes_on_from,
    is_left_open,
    is_nothing_left,
    kept_before,
    proven_elsewhere,
    refuse_to_forget,
    unproven,
    with_earlier,
)
from advisor.pipeline.facts import now, versions
from advisor.pipeline.graph_sites import places_in
from advisor.pipeline.journal import Watch, Written, begun, left_of, restore, unwatched
from advisor.pipeline.measure import Bench
from advisor.pipeline.peers import Peers, all_say, any_says, peers_of, together
from advisor.pipeline.ranks import rank_here
from advisor.pipeline.search import NOT_TRIED, Search
from advisor.pipeline.trials import KEPT_BEFORE, Trial, requested
from advisor.pipeline.verdicts import action_verdicts, seen_actions, verdict_of
from advisor.pipeline.votes import same_candidates, same_trials
from advisor.pipeline.with_loss import is_apart, seen_with_loss
from advisor.pipeline.without_gpu import (
    ACTION_NEEDS_GPU,
    can_be_looked_at,
    nothing_to_apply,
    plan_verdicts,
    refuse_what_needs_a_gpu,
    set_verdict,
    swap_in_captured,
)
from advisor.report.text import counted
from advisor.report.verdict_words import elsewhere_text
from advisor.store import RunDirectory
from advisor.units import NS_PER_S
from advisor.verify.numerics import NumericsPool
from advisor.verify.timing_process import TimingProcess
from collectors.live.capture import Capture, capture
from collectors.live.failures import first_line
from collectors.live.workload import Workload, load_workload

# What is left to do after a capture, in captures: the plain step is compiled, and a set.
COMPILES_AFTER = 3.0


@dataclass(frozen=True)
class _Session:
    """One application: the run, its plans on their way, and the trials they take part in."""

    run: RunDirectory
    report: Report
    found: dict[str, Candidate]
    trials: list[Trial]
    emit: Emit
    budget: Budget
    peers: Peers
    journal: Written
    timer: TimingProcess
    verifiers: NumericsPool

    @property
    def folder(self) -> Path:
        return self.run.path / "kernels"


def apply_run(
    run: RunDirectory,
    only: Sequence[str],
    emit: Emit,
    budget_s: float | None = None,
    *,
    watch: Watch = unwatched,
    peers: Peers | None = None,
) -> Applied:
    """Apply what is worth trying of a run of this machine (or `only` these findings, plans or
    actions) and keep what pays.

    With `only`, what an earlier application kept stays: it is tried again first, and what this one
    asks for beside it; so it is within a budget, which is spent on what was not judged here before.
    All ends in about `budget_s` seconds: what there is no time for is left, and the next
    application goes on with it, as after one whose process was ended. What was proven elsewhere
    stays on record until something is proven here. `watch` is told what may
    never end. Ranks of one job, `peers` or as the launcher says, judge together. Raises what
    `requested` raises, `RefusedError` where what was kept would be lost for want of a GPU,
    `WorkloadError` if the workload fails, `AbortedError` if this process cannot go on.
    """
    started = time.monotonic()
    rank = rank_here() if peers is None else None
    ranks = peers if peers is not None else peers_of(rank)
    device = device_here(rank.local if rank is not None else None)
    try:
        applied = _applied(run, only, emit, Budget(budget_s, started), watch, ranks, device)
    except BaseException as error:
        ranks.leave(error.line() if isinstance(error, AdvisorError) else type(error).__name__)
        raise
    ranks.leave()
    return applied


def _applied(
    run: RunDirectory,
    only: Sequence[str],
    emit: Emit,
    budget: Budget,
    watch: Watch,
    peers: Peers,
    device: torch.device,
) -> Applied:
    emit("load", "running", message="checking the run's signature")
    here = device_name(device), versions()
    trials, earlier = _to_try(run, only, budget, peers, here)
    if not only and all_say(peers, "nothing is left", is_nothing_left(trials, earlier, *here)):
        assert earlier is not None
        emit("done", "done", message=NOTHING_LEFT)
        return earlier
    info, report = run.info(), run.report()
    names = [i for t in trials for i in t.plan_ids if t.judgement is None]
    found = stages.load_candidates(run, list(dict.fromkeys(names)))
    if device.type == "cpu":
        if only:
            refuse_what_needs_a_gpu(run, trials)
        refuse_to_forget(run)
        if not only and not can_be_looked_at(trials):
            return _finish(run, nothing_to_apply(trials), earlier, budget, emit)
    attempt = begun(run, only, *here, peers)
    restore(trials, attempt)
    for known in attempt.plans:
        if known.plan_id in found:
            found[known.plan_id].restore(known)
    journal = Written(run, attempt, watch, partial(why_lost, device))
    most = min(MOST_VERIFIERS, os.cpu_count() or 1)
    with TimingProcess(str(device)) as timer, NumericsPool(str(device), most) as pool:
        session = _Session(run, report, found, trials, emit, budget, peers, journal, timer, pool)
        applied = _judged(session, info, device)
    if not is_left(session):
        run.remove_attempt()
    return _finish(run, applied, earlier, budget, emit)


def _to_try(
    run: RunDirectory,
    only: Sequence[str],
    budget: Budget,
    peers: Peers,
    here: tuple[str, Mapping[str, str]],
) -> tuple[list[Trial], Applied | None]:
    """What to try, with what was kept before in front, and the application that kept it.

    `here` are the device and the versions.
    """
    # Findings are numbered by rank; the lead's are what was asked for.
    asked = requested(run, only if peers.rank == 0 else ())
    left, limited = left_of(run, only, *here), budget.seconds is not None
    earlier = goes_on_from(run, only, limited=limited, attempt=left)
    if not only:
        asked = unproven(asked, earlier, *here)
    return same_trials(peers, run, [*kept_before(earlier), *asked]), earlier


def _judged(session: _Session, info: RunInfo, device: torch.device) -> Applied:
    """Load the workload, check the plans against its graphs, and try what there is to try."""
    if device.type == "cuda" and any(not item.known for item in session.found.values()):
        session.timer.begin()
    session.emit("load", "running", message=f"building {info.target} on {device.type}")
    directory = Path(info.working_directory)
    load = partial(load_workload, info.target, device, seed=info.seed, directory=directory)
    workload = together(session.peers, "load", load)
    captured, seen = _captured(session, workload, device)
    if device.type == "cuda":
        return _measured(session, workload, load, seen)
    _make_ready(session, device, list(session.found))
    return _unmeasured(session, captured, seen)


def _captured(
    session: _Session, workload: Workload, device: torch.device
) -> tuple[Capture, dict[ActionKind, list[Rewritten]]]:
    """The graphs of the step, every plan checked against them, and what actions would do to them.

    Compiling without code resets the compiler: it comes before anything that is to stay compiled.
    """
    session.emit("verify", "running", message="capturing the graph again")
    eager = session.report.workload.mode == "eager"
    seen: dict[ActionKind, list[Rewritten]] = {kind: [] for kind in GRAPH_REWRITES}

    def look(gm: fx.GraphModule) -> None:
        for kind, rewrite_graph in GRAPH_REWRITES.items():
            seen[kind] += rewrite_graph(fx.GraphModule(gm, copy.deepcopy(gm.graph)))

    def taken() -> tuple[Capture, Any]:
        return capture(workload, generate_code=False, eager=eager, look=look)

    captured, _ = together(session.peers, "capture", taken)
    losses = seen["chunked_loss"]
    asked = any(t.action == "chunked_loss" and t.judgement is None for t in session.trials)
    if asked and not places_in(losses) and is_apart(workload):
        with_loss = partial(seen_with_loss, workload, GRAPH_REWRITES["chunked_loss"], losses)
        seen["chunked_loss"] = together(session.peers, "look at the loss", with_loss)
    session.budget.reserved_s = COMPILES_AFTER * captured.compile_ns / NS_PER_S
    stages.check_regions(session.found, captured, device, session.emit)
    return captured, seen


def _make_ready(session: _Session, device: torch.device, plan_ids: Sequence[str]) -> None:
    """The stages before trials of kernels; each may refuse a plan. Of ranks, all refuse what one
    does.
    """
    run, emit, late = session.run, session.emit, session.budget.late
    found = {i: session.found[i] for i in plan_ids if not session.found[i].ready_now}
    stages.generate(found, session.folder, emit)
    session.verifiers.begin(sum(item.refused is None for item in found.values()))
    here = _present(device)
    shown = [gpu_by_key(key) for key in SHOWN_GPUS]
    stages.size(found, [here] if here is not None else shown, here, emit, late)
    if device.type == "cuda":
        # The children that run kernels need some of the card.
        torch.cuda.empty_cache()
        # First, for what is verified is the configuration that wins.
        stages.time(found, run, session.timer, emit, late)
        same_candidates(session.peers, found, session.folder)
    stages.verify(found, run, session.verifiers, emit, late)
    same_candidates(session.peers, found, session.folder)
    for item in found.values():
        item.ready_now = not item.postponed
    session.journal.ready([item.record() for item in session.found.values() if item.is_known])


def is_left(session: _Session) -> bool:
    """Whether something was not looked at for want of time."""
    trials = any(t.judgement is not None and not t.judgement.tried for t in session.trials)
    return trials or any(item.postponed for item in session.found.values())


def device_here(local: int | None) -> torch.device:
    """Where this process runs the workload: ranks of one host have a GPU each."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local is not None and local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    return torch.device("cuda", torch.cuda.current_device())


def device_name(device: torch.device) -> str:
    """The name of a GPU; `no GPU` where there is none."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else NO_DEVICE


def why_lost(device: torch.device) -> str:
    """Why nothing runs on the device any more, as after an illegal access; "" while it does."""
    if device.type != "cuda":
        return ""
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return first_line(error)
    return ""


def _finish(
    run: RunDirectory, applied: Applied, earlier: Applied | None, budget: Budget, emit: Emit
) -> Applied:
    """Write the record, with what the earlier application proved; say what came of this one.

    One that proved nothing on another device leaves the earlier record as it is.
    """
    taken = round((time.monotonic() - budget.started) * NS_PER_S)
    before = run.applied()
    elsewhere = proven_elsewhere(applied, before)
    if before is not None and is_left_open(applied, before):
        earlier = before
    whole = elsewhere or msgspec.structs.replace(with_earlier(applied, earlier), duration_ns=taken)
    run.write_applied(whole)
    verdict = applied.set.verdict.replace("_", " ")
    told = elsewhere_text(whole) or f"{verdict}: {applied.set.reason}"
    emit("done", "done", message=told)
    return whole


def _present(device: torch.device) -> Gpu | None:
    return find_gpu(torch.cuda.get_device_name()) if device.type == "cuda" else None


# --- with a GPU -----------------------------------------------------------------------------------


def _measured(
    session: _Session,
    workload: Workload,
    reload: Callable[[], Workload],
    seen: Mapping[ActionKind, Sequence[Rewritten]],
) -> Applied:
    peers, budget = session.peers, session.budget
    kept = any(trial.finding == KEPT_BEFORE or trial.pays for trial in session.trials)
    if any_says(peers, "late for any trial", budget.late() and not kept):
        return _out_of_time(session)
    session.emit("rewrite", "running", message="compiling the step without plans")
    bench = together(peers, "compile", lambda: Bench(workload, reload, peers))
    draws = bench.trains and not together(peers, "draws", bench.draws_alike)
    budget.reserve_for(bench.compiled, trains=bench.trains, draws=draws)
    search = Search(
        bench,
        session.found,
        session.trials,
        session.folder,
        session.emit,
        budget,
        peers,
        session.journal,
        partial(_make_ready, session, workload.device),
        seen,
        _present(workload.device),
    )
    best, result = search.run()
    before: dict[str, Metric] = {}
    after: dict[str, Metric] = {}
    if best is not None:
        before = bench.metrics(bench.compiled, session.run.path / "trace_before.json.gz")
        after = bench.metrics(best, session.run.path / "trace_after.json.gz")
    stages.size_elsewhere(session.found, [gpu_by_key(k) for k in SHOWN_GPUS], session.emit)
    return _recorded(session, result, before, after)


def _out_of_time(session: _Session) -> Applied:
    for trial in session.trials:
        if trial.judgement is None:
            trial.judgement = NOT_TRIED
    reason = "the time was used up before anything could be compared"
    return _recorded(session, SetVerdict(verdict="not_measured", reason=reason, plans=()))


def _recorded(
    session: _Session,
    result: SetVerdict,
    before: dict[str, Metric] | None = None,
    after: dict[str, Metric] | None = None,
) -> Applied:
    mode = session.report.workload.mode
    verdicts = [verdict_of(item, session.trials, result, mode) for item in session.found.values()]
    return Applied(
        created=now(),
        device=torch.cuda.get_device_name(),
        versions=versions(),
        plans=tuple(verdicts),
        actions=action_verdicts(session.trials, result),
        set=result,
        metrics_before=before or {},
        metrics_after=after or {},
    )


# --- without a GPU --------------------------------------------------------------------------------


def _unmeasured(
    session: _Session, captured: Capture, seen: Mapping[ActionKind, Sequence[Rewritten]]
) -> Applied:
    """Everything but time: sites are swapped in the captured graphs, which are then thrown away."""
    swapped = swap_in_captured(session.found, session.folder, captured)
    count = sum(swapped.values())
    session.emit(
        "rewrite", "running", value=count, message=f"{counted(count, 'site')} can be swapped"
    )
    plans = plan_verdicts(session.found, swapped)
    named = bool(session.journal.attempt.only)
    actions = seen_actions(session.trials, seen, ACTION_NEEDS_GPU, named=named)
    result = set_verdict(plans, actions)
    session.emit("decide", "running", message=result.reason)
    return Applied(
        created=now(),
        device=NO_DEVICE,
        versions=versions(),
        plans=plans,
        actions=actions,
        set=result,
    )
