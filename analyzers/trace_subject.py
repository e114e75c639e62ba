"""A bare trace as a `Subject`: its inferred graph, prices, balance of host and device, ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advisor.hardware.calibration import Calibration
from advisor.hardware.gpu import Gpu
from advisor.model.base import Warning_
from advisor.model.report import Metric
from advisor.model.trace import Trace
from analyzers.activities import activities, step_of
from analyzers.balance import Balance
from analyzers.dataflow import dataflow
from analyzers.doubts import doubts
from analyzers.exposure import exposure_of
from analyzers.inferred import infer_graph
from analyzers.metrics import trace_metrics
from analyzers.subject import GraphFacts, RankFacts, Subject


def trace_subject(
    trace: Trace,
    metrics: Mapping[str, Metric],
    step_prefix: str,
    *,
    gpu: Gpu | None = None,
    calibration: Calibration | None = None,
    ranks: tuple[RankFacts, ...] = (),
) -> tuple[Subject, tuple[Warning_, ...]]:
    """The subject and the guesses that went into its graph.

    `ranks` holds this trace's rank first. Without steps the span of the kernels may hold anything
    (set-up, pauses): then only gaps that a late launch ended count as waiting for the host.
    """
    steps = trace.steps(step_prefix)
    inferred = infer_graph(trace, steps)
    facts = GraphFacts(
        inferred.graph,
        dataflow(inferred.graph),
        inferred.prices,
        inferred.host_ns,
        inferred.kernels,
    )
    found = activities(trace)
    busy, span = figure(metrics, "gpu_busy"), figure(metrics, "gpu_span")
    if not len(steps):
        span = min(span, busy + figure(metrics, "starved"))
    subject = Subject(
        graphs=(facts,),
        provenance="inferred",
        metrics=metrics,
        eager=True,
        gpu=gpu,
        calibration=calibration,
        balance=Balance(device_ns=busy, span_ns=span, clean=False) if span else None,
        exposure=exposure_of(trace, steps, None),
        trace=trace,
        step_prefix=step_prefix,
        steps=len(steps),
        ranks=ranks,
        doubt=doubts(trace, found, steps, step_of(found, steps)),
    )
    return subject, inferred.warnings


def rank_facts(traces: Sequence[Trace], step_prefix: str) -> tuple[RankFacts, ...]:
    """The figures by which ranks are compared, one each."""
    rows = []
    for trace in traces:
        metrics = trace_metrics(trace, step_prefix)
        rows.append(
            RankFacts(
                rank=trace.info.rank,
                comm_ns=figure(metrics, "comm_union"),
                busy_ns=figure(metrics, "gpu_busy"),
            )
        )
    return tuple(rows)


def figure(metrics: Mapping[str, Metric], name: str) -> int:
    """A time per step, else of the whole trace, else 0 (a trace without kernels)."""
    for key in (f"{name}_per_step_ns", f"{name}_ns"):
        metric = metrics.get(key)
        if metric is not None and metric.value is not None:
            return round(metric.value)
    return 0
