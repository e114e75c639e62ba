"""`--ncu`: counters of single kernels, brought to the trace of a recording."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from advisor.model.base import Warning_
from advisor.pipeline.ranks import rank_here
from advisor.pipeline.recording import Recording
from advisor.pipeline.storage import blame_writing
from advisor.store import RunDirectory
from analyzers.counters import counter_metrics, join_counters
from collectors.live.ncu import count_step
from collectors.live.target import parse_target

NCU_FILE = "ncu.csv"


def count_kernels(recording: Recording, run: RunDirectory) -> None:
    """Run one step under Nsight Compute and take up what it counts, or why it could not."""
    options, trace = recording.options, recording.trace
    if parse_target(options.target).factory is None:
        note = "no counters of single kernels: a script is not run twice; name a factory"
        recording.warnings.append(Warning_(code="ncu", message=note))
        return
    if rank_here() is not None:
        note = "no counters of single kernels: one rank alone cannot run a step again"
        recording.warnings.append(Warning_(code="ncu", message=note))
        return
    if trace is None:
        note = "no counters of single kernels: they need a GPU"
        recording.warnings.append(Warning_(code="ncu", message=note))
        return
    arguments = (
        options.target,
        options.mode,
        str(options.seed),
        str(options.warmup),
        str(Path.cwd()),
    )
    blame = partial(blame_writing, run=run.path)
    counters, warnings = count_step(arguments, run.path / NCU_FILE, blame)
    recording.warnings += warnings
    if counters is None:
        return
    joined = join_counters(trace, counters, trace.steps())
    recording.trace = joined.trace
    recording.metrics |= counter_metrics(joined, counters)
    recording.warnings += joined.warnings
    recording.counters_path = NCU_FILE
