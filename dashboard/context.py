"""What every page is given: the store, the jobs, who may do what, and records read at most once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from advisor.model.applied import Applied
from advisor.model.base import Range, Record
from advisor.model.plan import FusionPlan
from advisor.model.report import Report
from advisor.report.words import is_modelled
from advisor.store.directory import RunDirectory
from advisor.store.store import RunStore
from dashboard.access import Access
from dashboard.comparisons import Comparisons
from dashboard.jobs import JobRunner
from dashboard.timelines import Timelines

_CACHED_RECORDS, _CACHED_SUMMARIES = 64, 20_000
T = TypeVar("T", bound=Record)


class Summary(Record, frozen=True, kw_only=True):
    """What the list of runs shows of a report."""

    target: str
    created: str
    mode: str
    gpu: str
    saving: Range | None
    modelled: bool
    findings: int


class RecordCache:
    """The records read last, each valid while its file keeps its size and modification time."""

    def __init__(self, capacity: int = _CACHED_RECORDS) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[tuple[str, int, int], Record] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path, read: Callable[[], T]) -> T:
        """The record of `path`, read with `read` where it is new or changed."""
        try:
            status = path.stat()
        except OSError:
            return read()
        key = (str(path), status.st_mtime_ns, status.st_size)
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return cast(T, self._entries[key])
        record = read()
        with self._lock:
            self._entries[key] = record
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)
        return record


@dataclass(frozen=True)
class Context:
    """One server's state; pages read it, only jobs change anything."""

    store: RunStore
    runner: JobRunner
    access: Access
    cache: RecordCache = field(default_factory=RecordCache)
    timelines: Timelines = field(default_factory=Timelines)
    comparisons: Comparisons = field(default_factory=Comparisons)
    summaries: RecordCache = field(default_factory=lambda: RecordCache(_CACHED_SUMMARIES))

    def report(self, run: RunDirectory) -> Report:
        """`report.json` of a run."""
        return self.cache.get(run.path / "report.json", run.report)

    def summary(self, run: RunDirectory) -> Summary:
        """The row of a run, kept for all runs, so that the list reads only new reports."""
        return self.summaries.get(run.path / "report.json", lambda: _summary(run.report()))

    def plan(self, run: RunDirectory, plan_id: str) -> FusionPlan:
        """One plan of a run."""
        return self.cache.get(run.plans_path / f"{plan_id}.json", lambda: run.plan(plan_id))

    def applied(self, run: RunDirectory) -> Applied | None:
        """`applied.json` of a run; it is small and changes, so it is read each time."""
        return run.applied()


def _summary(report: Report) -> Summary:
    return Summary(
        target=report.workload.target,
        created=report.created,
        mode=report.workload.mode,
        gpu=report.hardware.name,
        saving=report.recommended.set_saving_ns,
        modelled=is_modelled(report),
        findings=len(report.findings),
    )
