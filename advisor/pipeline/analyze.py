"""`analyze`: traces somebody recorded become a report. Nothing is run; no GPU is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from advisor import __version__
from advisor.errors import UsageError
from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.hardware.roofline import bandwidth_of
from advisor.model.base import Range, Warning_
from advisor.model.findings import Finding
from advisor.model.report import Hardware, Metric, Recommended, Report, Source, Tool, Workload
from advisor.model.trace import Trace
from analyzers.activities import activities, step_of
from analyzers.balance import Balance
from analyzers.dataflow import dataflow
from analyzers.inferred import infer_graph
from analyzers.metrics import STEP_PREFIX, doubts, kernel_rows, trace_metrics
from analyzers.rules import find_all
from analyzers.subject import GraphFacts, RankFacts, Subject
from collectors import read_trace

_CHUNK_BYTES = 1 << 20


def analyze(
    files: Sequence[Path], *, step_prefix: str = STEP_PREFIX, gpu: str | None = None
) -> Report:
    """The report of one trace, or of the ranks of one job.

    With several files the step of the rank that comes last to the collectives is looked at, the
    others serve to compare. Raises `UnreadableError` for a file that is no trace, `UsageError` for
    an unknown GPU, a step range that occurs in no file, or two files of one rank.
    """
    chosen = gpu_by_key(gpu) if gpu is not None else None
    traces = [read_trace(path) for path in files]
    ranks = _ranks(files, traces, step_prefix)
    lead = _lead(ranks)
    trace, facts = traces[lead], ranks
    steps = trace.steps(step_prefix)
    if not len(steps) and step_prefix != STEP_PREFIX:
        raise UsageError(
            f"no range of this trace begins with {step_prefix[:60]!r}",
            where=str(files[lead]),
            remedy="name the range that surrounds a step, or leave --step-range out",
        )
    metrics = trace_metrics(trace, step_prefix)
    device = chosen or _recorded_gpu(trace)
    subject, guesses = _subject(trace, step_prefix, metrics, device, facts, lead)
    findings = tuple(match.finding for match in find_all(subject))
    report = Report(
        tool=Tool(name="fusion-advisor", version=__version__),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        sources=tuple(_source(path) for path in files),
        workload=_workload(files[lead], trace, device, subject),
        hardware=_hardware(trace, device),
        metrics=metrics,
        kernels=kernel_rows(trace, steps),
        findings=findings,
        recommended=_recommended(findings, subject.balance),
        warnings=(*trace.warnings, *guesses, *_gpu_warnings(device), *_job_warnings(ranks, trace)),
    )
    report.check()
    return report


# --- ranks ----------------------------------------------------------------------------------------


def _ranks(files: Sequence[Path], traces: Sequence[Trace], prefix: str) -> tuple[RankFacts, ...]:
    found: list[RankFacts] = []
    for path, trace in zip(files, traces, strict=True):
        if len(traces) > 1 and any(rank.rank == trace.info.rank for rank in found):
            raise UsageError(
                f"two files are of rank {trace.info.rank}",
                where=str(path),
                remedy="give one file of each rank of one job",
            )
        figures = trace_metrics(trace, prefix) if len(traces) > 1 else {}
        found.append(
            RankFacts(
                rank=trace.info.rank,
                comm_ns=_figure(figures, "comm_union"),
                exposed_comm_ns=_figure(figures, "exposed_comm"),
                busy_ns=_figure(figures, "gpu_busy"),
            )
        )
    return tuple(found)


def _lead(ranks: Sequence[RankFacts]) -> int:
    """The rank to look at: the one with least time in collectives, which the others wait for."""
    return min(range(len(ranks)), key=lambda index: ranks[index].comm_ns)


def _figure(metrics: dict[str, Metric], name: str) -> int:
    """A figure per step, else of the whole trace, else 0 (a rank without kernels)."""
    for key in (f"{name}_per_step_ns", f"{name}_ns"):
        metric = metrics.get(key)
        if metric is not None and metric.value is not None:
            return round(metric.value)
    return 0


def _job_warnings(ranks: Sequence[RankFacts], trace: Trace) -> tuple[Warning_, ...]:
    missing = trace.info.world_size - len(ranks)
    if missing <= 0:
        return ()
    text = f"the job has {trace.info.world_size} ranks, {len(ranks)} of them were given"
    return (Warning_(code="ranks-missing", message=text, count=missing),)


# --- the subject ----------------------------------------------------------------------------------


def _subject(
    trace: Trace,
    prefix: str,
    metrics: dict[str, Metric],
    gpu: Gpu | None,
    ranks: tuple[RankFacts, ...],
    lead: int,
) -> tuple[Subject, tuple[Warning_, ...]]:
    steps = trace.steps(prefix)
    inferred = infer_graph(trace, steps)
    facts = GraphFacts(
        inferred.graph,
        dataflow(inferred.graph),
        inferred.prices,
        inferred.host_ns,
        inferred.kernels,
    )
    found = activities(trace)
    busy, span = _figure(metrics, "gpu_busy"), _figure(metrics, "gpu_span")
    if not len(steps):
        # Without steps the span may hold anything: only gaps that a late launch ended count.
        span = min(span, busy + _figure(metrics, "starved"))
    subject = Subject(
        graphs=(facts,),
        provenance="inferred",
        metrics=metrics,
        eager=True,
        gpu=gpu,
        calibration=load_calibration(gpu) if gpu is not None else None,
        balance=Balance(device_ns=busy, span_ns=span, clean=False) if span else None,
        trace=trace,
        step=inferred.step,
        steps=len(steps),
        ranks=(ranks[lead], *(r for i, r in enumerate(ranks) if i != lead)),
        doubt=doubts(trace, found, step_of(found, steps), len(steps)),
    )
    return subject, inferred.warnings


def _recorded_gpu(trace: Trace) -> Gpu | None:
    """The GPU that the kernels ran on, if the file names it and the table knows it."""
    names = trace.devices["name"].dropna().astype(str)
    return find_gpu(names.iloc[0]) if len(names) else None


def _gpu_warnings(gpu: Gpu | None) -> tuple[Warning_, ...]:
    if gpu is not None:
        return ()
    text = (
        "the GPU is unknown: savings rest on the kernels' own bandwidth alone; --gpu NAME adds its "
        "limits"
    )
    return (Warning_(code="gpu-unknown", message=text),)


# --- the report -----------------------------------------------------------------------------------


def _source(path: Path) -> Source:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return Source(
        kind="kineto trace",
        path=str(path),
        sha256=digest.hexdigest(),
        size_bytes=path.stat().st_size,
    )


def _workload(path: Path, trace: Trace, gpu: Gpu | None, subject: Subject) -> Workload:
    return Workload(
        target=path.name,
        mode="trace",
        graph_hash=subject.graphs[0].graph.fingerprint(),
        gpu=gpu.key if gpu else None,
        world_size=trace.info.world_size,
        rank=trace.info.rank,
        versions=trace.info.versions,
    )


def _hardware(trace: Trace, gpu: Gpu | None) -> Hardware:
    names = trace.devices["name"].dropna().astype(str)
    name = names.iloc[0] if len(names) else (gpu.name if gpu else "unknown GPU")
    if gpu is None:
        return Hardware(name=name)
    return Hardware(
        name=name,
        key=gpu.key,
        compute_capability=gpu.compute_capability,
        multiprocessors=gpu.sm_count,
        dram_bandwidth_bytes_per_s=bandwidth_of(gpu),
        dram_bandwidth_provenance="estimated",
        l2_bytes=gpu.l2_bytes,
    )


def _recommended(findings: Sequence[Finding], balance: Balance | None) -> Recommended:
    """Priced opportunities by saving; together they save no more than the step's whole time.

    Findings are not additive: what fusing saves on the host, a CUDA graph saves as well.
    """
    priced = [f for f in findings if f.kind == "opportunity" and f.exposed_saving_ns is not None]
    worth = [f for f in priced if f.exposed_saving_ns is not None and f.exposed_saving_ns.mid > 0]
    worth.sort(key=lambda f: -(f.exposed_saving_ns.mid if f.exposed_saving_ns else 0))
    ranges = [f.exposed_saving_ns for f in worth if f.exposed_saving_ns is not None]
    if not ranges or balance is None:
        return Recommended(order=tuple(f.id for f in worth))
    most = max(balance.span_ns, balance.device_ns)
    best = max(r.mid for r in ranges)
    return Recommended(
        order=tuple(f.id for f in worth),
        set_saving_ns=Range(
            low=max(r.low for r in ranges),
            mid=best,
            high=max(min(sum(r.high for r in ranges), most), best),
        ),
    )
