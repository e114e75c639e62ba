"""Two runs on the compare page: judged by a child, told in words, and still compared without it."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.cli.main import run as command
from advisor.errors import UnreadableError
from advisor.model.comparison import ReportComparison
from advisor.model.findings import Evidence, Finding, Member
from advisor.model.overfusion import Bisection, Share
from advisor.report.compare import compare_reports
from advisor.store import RunDirectory, RunStore
from dashboard.comparisons import Comparisons, cli_compare
from dashboard.context import Context
from dashboard.figures_run import shares
from dashboard.pages.compare import compare_path
from tests.dashboard.conftest import ROOT
from tests.dashboard.test_pages import page

TRACES = ROOT / "sample_traces"


def regression(kernel: str) -> Finding:
    """A fused kernel that took 30 µs where its two members took 10."""
    values: dict[str, Any] = {"fused_ns": 30_000, "members_ns": 10_000}
    return Finding(
        id="over-fusion-1", rule="over-fusion", kind="regression", title=f"{kernel} lost",
        exposed_saving_ns=None, evidence=(Evidence(kind="time", text="slower", values=values),),
        members=tuple(Member(name=name, count=1) for name in (kernel, "one", "two")),
        provenance="inferred", action="cut it in two",
    )  # fmt: skip


@pytest.fixture
def pair(store: RunStore) -> tuple[RunDirectory, RunDirectory]:
    """One model's trace, eager and compiled, as `analyze` leaves them."""
    for name in ("eager", "inductor"):
        trace = TRACES / f"llama_prefill.{name}.json.gz"
        assert command(["analyze", str(trace), "--out", str(store.root / name)]) == 0
    return store.open("eager"), store.open("inductor")


def test_the_page_says_what_the_change_is_made_of(
    context: Context, pair: tuple[RunDirectory, RunDirectory]
) -> None:
    text = page(context, compare_path("eager", "inductor"))
    assert "What the change is made of" in text
    assert "launch gaps" in text
    assert text.index("Kernels per step") < text.index("What the change is made of")
    assert "231 \u2192 74" in text
    assert str(context.store.root) not in text
    found = context.comparisons.of(*pair)
    assert (found.before.label, found.after.label) == ("eager", "inductor")
    assert found.bisection is not None
    drawn = shares(found.bisection)
    assert sum(drawn.data[0].x) != 0
    assert len(set(drawn.data[0].y)) == len(found.bisection.shares)


def test_a_comparison_is_made_once_until_a_run_changes(
    pair: tuple[RunDirectory, RunDirectory],
) -> None:
    started: list[Sequence[str]] = []

    def counted(before: Path, after: Path, accepted: Sequence[str]) -> Sequence[str]:
        started.append(accepted)
        return cli_compare(before, after, accepted)

    comparisons = Comparisons(counted)
    assert comparisons.of(*pair) == comparisons.of(*pair)
    assert len(started) == 1
    pair[1].write_report(replace(pair[1].report(), created="later"))
    assert comparisons.of(*pair).after.created == "later"


def test_a_slow_comparison_holds_up_no_other(pair: tuple[RunDirectory, RunDirectory]) -> None:
    """Many ask for one pair: one child runs, its failure reaches all, others go on meanwhile."""
    gate, asked = threading.Event(), threading.Barrier(21)
    made = compare_reports(pair[0].report(), pair[1].report(), ("eager", "inductor"))
    started: list[str] = []

    class Held(Comparisons):
        def _make(self, before: RunDirectory, *_: object) -> ReportComparison:
            started.append(before.id)
            if before.id == "inductor":
                assert gate.wait(30)
                raise UnreadableError("it took too long")
            return made

    comparisons = Held()
    assert comparisons.of(*pair) is made

    def ask() -> UnreadableError | None:
        asked.wait()
        try:
            comparisons.of(pair[1], pair[0])
        except UnreadableError as error:
            return error
        return None

    with ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(ask) for _ in range(20)]
        asked.wait()
        assert comparisons.of(*pair) is made
        assert comparisons.of(pair[0], pair[0]) is made
        time.sleep(0.05)  # all twenty are at the gate
        gate.set()
        assert all(item.result() is not None for item in waiting)
    assert started.count("inductor") == 1


def test_without_the_judgement_figures_are_compared_and_the_reason_is_told(
    context: Context, pair: tuple[RunDirectory, RunDirectory]
) -> None:
    failing = Comparisons(lambda *_: [sys.executable, "-c", "raise SystemExit('full')"])
    context = dataclasses.replace(context, comparisons=failing)
    with pytest.raises(UnreadableError, match="cannot be compared") as refused:
        context.comparisons.of(*pair)
    assert refused.value.why == "full"
    text = page(context, compare_path("eager", "inductor"))
    assert "full" in text
    assert "Metrics" in text
    assert "GPU busy per step" in text, "a metric has the name it has on the overview"
    assert "gpu_busy_per_step_ns" not in text
    assert all(head in text for head in ("Needed", "Status")), "every column says what it holds"


def test_what_lost_stands_beside_what_it_replaced(
    context: Context, pair: tuple[RunDirectory, RunDirectory]
) -> None:
    plain = compare_reports(pair[0].report(), pair[1].report(), ("eager", "inductor"))
    hostile = "<script>alert(1)</script>"
    made = replace(
        plain,
        regressions=(regression(hostile),),
        bisection=Bisection(
            before_ns=10, after_ns=30, shares=(Share(cause=None, change_ns=20, text=hostile),)
        ),
    )
    context.comparisons._make = lambda *_: made  # type: ignore[method-assign]
    text = page(context, compare_path("eager", "inductor"))
    assert "Fusions that hurt" in text
    assert "30 µs" in text
    assert "10 µs" in text
    drawn = shares(made.bisection) if made.bisection else None
    assert drawn is not None
    assert "<script>" not in drawn.to_json()
