"""`analyze`: traces somebody recorded become a report. Nothing is run; no GPU is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.errors import UsageError
from advisor.hardware.calibration import load_calibration
from advisor.hardware.gpu import Gpu
from advisor.hardware.gpus import find_gpu, gpu_by_key
from advisor.model.base import Warning_
from advisor.model.range_names import STEP_PREFIX
from advisor.model.report import UNKNOWN_GPU, Commit, Hardware, Metric, Report, Source, Workload
from advisor.model.step_record import StepRecord
from advisor.model.trace import Trace
from advisor.pipeline.facts import TOOL, hardware_of, now
from advisor.pipeline.trace_notes import counters_only, trace_notes
from analyzers.counters import counter_metrics, join_counters
from analyzers.kernel_work import with_work
from analyzers.metrics import kernel_rows, trace_metrics
from analyzers.overfusion.facts import step_facts
from analyzers.recommendation import recommend
from analyzers.rules import changes_of, find_all, without_overlaps
from analyzers.step_sizes import LAST_STEP, sizes_vary
from analyzers.subject import RankFacts, Subject
from analyzers.trace_subject import rank_facts, trace_subject
from collectors.ncu import read_ncu
from collectors.ranks import read_ranks

if TYPE_CHECKING:
    import pandas as pd

_HASHED_BYTES = 64 << 20
_PIECE_BYTES = 1 << 18
# Loading a kernel for the first time takes the host milliseconds, which no fusion saves.
_NO_STEP = "no range marks a step: set-up and warm-up are in it"
_ONE_BY_ONE = "a counter profiler ran the kernels one by one"
# Parts of the names of metrics that say something of gaps between kernels.
_OF_GAPS = ("idle", "span", "starved", "exposed", "launches", "attributed")


def analyze(
    files: Sequence[Path],
    *,
    step_prefix: str = STEP_PREFIX,
    gpu: str | None = None,
    ncu: Path | None = None,
    commit: str | None = None,
) -> Report:
    """The report alone, as `analyzed` finds it."""
    return analyzed(files, step_prefix=step_prefix, gpu=gpu, ncu=ncu, commit=commit)[0]


def analyzed(
    files: Sequence[Path],
    *,
    step_prefix: str = STEP_PREFIX,
    gpu: str | None = None,
    ncu: Path | None = None,
    commit: str | None = None,
) -> tuple[Report, StepRecord]:
    """Report and step of one trace, or of several that are the ranks of one job.

    Of several ranks, the one that comes last to the collectives is looked at: the others wait for
    it. `ncu` holds counters of the same step, which are brought to that rank's kernels. `commit` is
    the one that was traced, which no trace tells. Raises `UnreadableError` for a file that cannot
    be read, `UsageError` for an unknown GPU or a step range that does not occur.
    """
    chosen = gpu_by_key(gpu) if gpu is not None else None
    traces = read_ranks(files)
    # Hashing a gigabyte takes most of a second; it needs no interpreter, so it costs no waiting.
    sources = ThreadPoolExecutor(max_workers=1).map(_source, files)
    ranks = rank_facts(traces, step_prefix) if len(traces) > 1 else ()
    trace, ranks = _lead(traces, ranks)
    steps = _steps(trace, step_prefix, files)
    counted = _counted(trace, ncu, steps)
    trace = counted.trace
    metrics = _known(trace, trace_metrics(trace, step_prefix)) | counted.metrics
    device = chosen or _recorded_gpu(trace)
    known = load_calibration(device) if device is not None else None
    subject, guesses = trace_subject(
        trace, metrics, step_prefix, gpu=device, calibration=known, ranks=ranks
    )
    doubt = subject.doubt
    if counters_only(trace):
        subject = replace(subject, doubt=_ONE_BY_ONE)
    elif not doubt and not len(steps):
        subject = replace(subject, doubt=_NO_STEP)
    step = step_facts(trace, step_prefix=step_prefix, gpu=device)
    matches = find_all(replace(subject, step=step))
    findings = without_overlaps(matches)
    report = Report(
        tool=TOOL,
        created=now(),
        sources=(*sources, *counted.sources),
        workload=_workload(files, trace, subject, commit),
        hardware=_hardware(trace, device),
        metrics=metrics,
        kernels=with_work(kernel_rows(trace, steps), trace, steps, subject.graphs),
        findings=findings,
        recommended=recommend(findings, subject.exposure, changes_of(matches)),
        warnings=(*trace.warnings, *counted.warnings, *guesses,
                  *sizes_vary(trace, steps, LAST_STEP),
                  *trace_notes(trace, steps, len(traces), device, doubt)),
    )  # fmt: skip
    report.check()
    return report, step


def _workload(
    files: Sequence[Path], trace: Trace, subject: Subject, commit: str | None
) -> Workload:
    """What was traced, as far as the trace tells."""
    graph = subject.graphs[0].graph
    return Workload(
        target=_name(files),
        mode="trace",
        # Graphs of nothing are not the same work.
        graph_hash=graph.fingerprint() if graph.nodes else None,
        gpu=subject.gpu.key if subject.gpu is not None else None,
        world_size=trace.info.world_size,
        rank=trace.info.rank,
        versions=trace.info.versions,
        commit=None if commit is None else Commit(id=commit),
    )


def _known(trace: Trace, metrics: dict[str, Metric]) -> dict[str, Metric]:
    """The metrics without those of gaps and hosts where only counters were recorded."""
    if not counters_only(trace):
        return metrics
    return {name: m for name, m in metrics.items() if not any(w in name for w in _OF_GAPS)}


def _steps(trace: Trace, prefix: str, files: Sequence[Path]) -> pd.DataFrame:
    """The ranges of steps; raises `UsageError` if a name was given and none has it."""
    steps = trace.steps(prefix)
    if not len(steps) and prefix != STEP_PREFIX:
        raise UsageError(
            f"no range of this trace begins with {prefix[:60]!r}",
            where=_name(files),
            remedy="name the range that surrounds a step, or leave --step-range out",
        )
    return steps


@dataclass(frozen=True)
class _Counted:
    """A trace and what a counter file adds to the report."""

    trace: Trace
    metrics: dict[str, Metric] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    warnings: tuple[Warning_, ...] = ()


def _counted(trace: Trace, ncu: Path | None, steps: pd.DataFrame) -> _Counted:
    if ncu is None:
        return _Counted(trace)
    counters = read_ncu(ncu)
    joined = join_counters(trace, counters, steps)
    source = _source(ncu, "ncu counters")
    return _Counted(joined.trace, counter_metrics(joined, counters), (source,), joined.warnings)


def _lead(
    traces: Sequence[Trace], ranks: tuple[RankFacts, ...]
) -> tuple[Trace, tuple[RankFacts, ...]]:
    """The rank with the least time in collectives, and the figures with its own first."""
    if not ranks:
        return traces[0], ()
    lead = min(range(len(ranks)), key=lambda index: ranks[index].comm_ns)
    return traces[lead], (ranks[lead], *ranks[:lead], *ranks[lead + 1 :])


def _recorded_gpu(trace: Trace) -> Gpu | None:
    """The GPU that the kernels ran on, if the file names it and the table knows it."""
    names = trace.devices["name"].dropna().astype(str)
    return find_gpu(names.iloc[0]) if len(names) else None


def _name(files: Sequence[Path]) -> str:
    first = files[0].name
    return first if len(files) == 1 else f"{first} and {len(files) - 1} more"


def _source(path: Path, kind: str = "kineto trace") -> Source:
    """The file by name, size and, unless it is so large that it would take seconds, content."""
    try:
        size = path.stat().st_size
        digest = _digest(path) if size <= _HASHED_BYTES else None
    except OSError:  # it was read a moment ago and is gone now: what was read stands
        return Source(kind=kind, path=str(path))
    return Source(kind=kind, path=str(path), sha256=digest, size_bytes=size)


def _digest(path: Path) -> str:
    """SHA-256 of a file, a piece at a time: whole, it would be a sixth of what reading holds."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            found.update(piece)
    return found.hexdigest()


def _hardware(trace: Trace, gpu: Gpu | None) -> Hardware:
    names = trace.devices["name"].dropna().astype(str)
    name = names.iloc[0] if len(names) else (gpu.name if gpu else UNKNOWN_GPU)
    return Hardware(name=name) if gpu is None else hardware_of(gpu, name)
