"""From a recording to the report and the files of a run, whole or as far as it came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from advisor.codegen import render
from advisor.errors import WorkloadError
from advisor.hardware.calibration import load_calibration
from advisor.hardware.learned import learned_residuals
from advisor.model.base import Warning_
from advisor.model.compiler import CompilerFacts
from advisor.model.configs import default_config
from advisor.model.findings import Finding
from advisor.model.plan import FusionPlan
from advisor.model.range_names import STEP_PREFIX
from advisor.model.report import (
    KernelRow,
    Metric,
    PlanSummary,
    Recommended,
    Report,
    Source,
    Workload,
)
from advisor.model.run import RunInfo
from advisor.model.trace import Trace
from advisor.pipeline.compiler_metrics import compiler_metrics, with_resources
from advisor.pipeline.facts import TOOL, now, versions
from advisor.pipeline.forwards import find_forwards
from advisor.pipeline.ranks import rank_here
from advisor.pipeline.recording import Recording
from advisor.pipeline.unfinished import UNFINISHED, incomplete
from advisor.store import RunDirectory, sign
from analyzers.balance import Balance
from analyzers.exposure import Exposure, Situation, exposure_of, replay_metrics
from analyzers.kernel_work import with_work
from analyzers.metrics import kernel_rows
from analyzers.opportunities import PricedGraph, advise
from analyzers.overfusion.facts import step_facts
from analyzers.pricing import KernelCall, compiled_prices, eager_prices
from analyzers.recommendation import recommend
from analyzers.rules import changes_of, find_all, without_overlaps
from analyzers.subject import GraphFacts, Subject, captured_subject
from analyzers.trace_subject import trace_subject
from collectors.live.capture import Capture, CapturedGraph


@dataclass(frozen=True)
class ProfileAdvice:
    """What the analyzers made of a recording."""

    findings: tuple[Finding, ...] = ()
    plans: tuple[FusionPlan, ...] = ()
    summaries: tuple[PlanSummary, ...] = ()
    recommended: Recommended = field(default_factory=Recommended)
    metrics: dict[str, Metric] = field(default_factory=dict)
    warnings: tuple[Warning_, ...] = ()
    graphs: tuple[GraphFacts, ...] = ()


NO_ADVICE = ProfileAdvice()


def advise_on(recording: Recording) -> ProfileAdvice:
    """Findings and plans of everything that was recorded.

    Of a trace without graphs, what the inferred graph shows: advice only, and marked so.
    """
    if not recording.captured.graphs and recording.trace is not None:
        return _advise_on_trace(recording, recording.trace)
    situation = Situation(
        recording.gpu,
        load_calibration(recording.gpu),
        recording.options.mode == "eager",
        step_ns=recording.value("step_ns"),
        busy_ns=recording.value("gpu_busy_per_step_ns"),
        exposure=_exposure(recording),
        residuals=learned_residuals(recording.gpu),
    )
    trace = recording.trace
    priced, warnings = _priced(recording.captured, trace, situation.eager)
    advice = advise(priced, situation)
    compiler = recording.captured.compiler_facts()
    subject = captured_subject(priced, advice, situation, recording.metrics, trace, compiler)
    found = _found(subject.with_parts(recording.executed))
    advice = advice.naming(found.findings)
    return replace(
        found,
        plans=tuple(advice.plans),
        summaries=advice.summaries(),
        warnings=(*found.warnings, *warnings),
    )


def _exposure(recording: Recording) -> Exposure | None:
    """The traced step, to be replayed as long as the clean one took."""
    trace, clean_ns = recording.trace, recording.value("step_ns")
    if trace is None or clean_ns is None:
        return None
    return exposure_of(trace, trace.steps(), clean_ns)


def _found(subject: Subject) -> ProfileAdvice:
    matches = find_all(subject)
    findings = without_overlaps(matches)
    exposure = subject.exposure
    notes: tuple[Warning_, ...] = ()
    if exposure is not None and exposure.doubt:
        text = f"exposed savings cannot be judged: {exposure.doubt}"
        notes = (Warning_(code="replay-misses", message=text),)
    return ProfileAdvice(
        findings,
        recommended=recommend(findings, exposure, changes_of(matches)),
        metrics=replay_metrics(exposure),
        warnings=notes,
        graphs=subject.graphs,
    )


def _advise_on_trace(recording: Recording, trace: Trace) -> ProfileAdvice:
    gpu = recording.gpu
    calibration = load_calibration(gpu)
    subject, guesses = trace_subject(
        trace, recording.metrics, STEP_PREFIX, gpu=gpu, calibration=calibration
    )
    busy, step = recording.value("gpu_busy_per_step_ns"), recording.value("step_ns")
    if busy is not None and step is not None:
        clean = Balance(device_ns=busy, span_ns=step, clean=True)
        subject = replace(subject, balance=clean, exposure=_exposure(recording))
    found = _found(subject)
    return replace(found, warnings=(*found.warnings, *guesses))


def _priced(
    captured: Capture, trace: Trace | None, eager: bool
) -> tuple[list[PricedGraph], list[Warning_]]:
    """The graphs with the prices of their nodes; warns of compiled ones whose kernels are unknown.

    What the ops would cost one by one says nothing of a compiled graph: it then gets no advice.
    """
    runs = captured.calls()
    often = Counter(run.graph for run in runs if run.like)
    lowered = [
        msgspec.structs.replace(item.lowered.graph, executions=often[at])
        for at, item in enumerate(captured.graphs)
    ]
    if trace is None:
        return [PricedGraph(graph) for graph in lowered], []
    if eager:
        found = eager_prices(lowered, trace, runs)
        return [PricedGraph(*pair) for pair in zip(lowered, found, strict=True)], []
    calls = map(_kernel_calls, captured.graphs)
    prices = compiled_prices(list(zip(lowered, calls, strict=True)), trace, runs)
    unknown = sum(not item.kernels for item in captured.graphs)
    warnings = []
    if unknown:
        note = "the compiler did not say which nodes its kernels compute: no advice on this graph"
        warnings = [Warning_(code="kernels-unknown", message=note, count=unknown)]
    return [PricedGraph(*pair) for pair in zip(lowered, prices, strict=True)], warnings


def _kernel_calls(item: CapturedGraph) -> list[KernelCall]:
    """The kernel calls of a graph, their nodes by the names of the lowered graph."""
    aliases = item.lowered.fx_aliases.items()
    known = {n.name: value[1:].partition("#")[0] for value, nodes in aliases for n in nodes}
    return [
        (name, frozenset(known[n] for n in nodes if n in known)) for name, nodes in item.kernels
    ]


def report_of(
    recording: Recording, advice: ProfileAdvice, notes: Sequence[Warning_] = ()
) -> Report:
    """The report of what is known, with `notes` among its warnings."""
    graphs, trace, hardware = recording.captured.graphs, recording.trace, recording.hardware()
    rank = rank_here()
    compiler = recording.captured.compiler_facts()
    fingerprints = "-".join(item.lowered.graph.fingerprint() for item in graphs)
    report = Report(
        tool=TOOL,
        created=now(),
        sources=_sources(recording),
        workload=Workload(
            target=recording.options.target,
            mode=recording.options.mode,
            graph_hash=fingerprints or None,
            shapes=recording.shapes,
            gpu=hardware.key,
            world_size=rank.world_size if rank is not None else 1,
            rank=rank.rank if rank is not None else 0,
            versions=versions(),
            commit=recording.commit,
        ),
        hardware=hardware,
        metrics=recording.metrics | advice.metrics | compiler_metrics(recording.captured, compiler),
        kernels=_kernels(trace, compiler, advice) if trace is not None else (),
        findings=advice.findings,
        recommended=advice.recommended,
        plans=advice.summaries,
        warnings=(*notes, *recording.warnings, *advice.warnings),
    )
    report.check()
    return report


def _kernels(trace: Trace, compiler: CompilerFacts, advice: ProfileAdvice) -> tuple[KernelRow, ...]:
    """The kernels of the trace, with what the compiler and the graphs add to it."""
    steps = trace.steps()
    rows = with_resources(kernel_rows(trace, steps), compiler.kernels)
    return with_work(rows, trace, steps, advice.graphs)


def _sources(recording: Recording) -> tuple[Source, ...]:
    found = [Source(kind="compiled graphs")] if recording.captured.graphs else []
    if not found and recording.trace is not None:
        found.append(Source(kind="inferred graph"))
    if recording.trace is not None:
        found.append(Source(kind="kineto trace", path="trace.json.gz"))
    if recording.executed:
        found.append(Source(kind="executed ops"))
    if recording.counters_path is not None:
        found.append(Source(kind="ncu counters", path=recording.counters_path))
    if "step_ns" in recording.metrics:
        found.append(Source(kind="clean timing"))
    return tuple(found)


def save_unfinished(recording: Recording, run: RunDirectory) -> None:
    """What is known now, should the process not live to say more."""
    _write(recording, report_of(recording, NO_ADVICE, [incomplete(UNFINISHED)]), run)


def save(
    recording: Recording, advice: ProfileAdvice, run: RunDirectory, failed: WorkloadError | None
) -> Report:
    """Write plans, kernels, report and `run.json`; a failed run says how it failed."""
    for plan in advice.plans:
        run.write_plan(plan)
        scheme = default_config(plan, plan.sites[0]).scheme
        run.write_kernel(plan.id, render(plan, scheme).text)
    graphs = [item.lowered.graph for item in recording.captured.graphs]
    run.write_forwards(find_forwards(advice.plans, graphs, recording.calls, recording.part))
    notes = [] if failed is None else [incomplete(failed.line())]
    report = report_of(recording, advice, notes)
    _write(recording, report, run)
    return report


def _write(recording: Recording, report: Report, run: RunDirectory) -> None:
    options = recording.options
    run.write_report(report)
    if recording.trace is not None:
        codes = recording.captured.compiler_facts().codes()
        run.write_step(step_facts(recording.trace, codes, gpu=recording.gpu))
    run.write_info(
        RunInfo(
            id=run.id,
            created=report.created,
            target=options.target,
            arguments=options.arguments(),
            working_directory=str(Path.cwd()),
            mode=options.mode,
            gpu=report.hardware.key,
            gpu_present=report.hardware.present,
            seed=options.seed,
            versions=versions(),
        )
    )
    sign(run)
