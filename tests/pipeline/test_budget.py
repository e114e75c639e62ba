"""A budget bounds a whole application, and the next one goes on where it ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

pytest.importorskip("torch", reason="applying needs torch")
pytest.importorskip("triton", reason="interpreting kernels needs triton")

from advisor.cli.main import run as command
from advisor.model.applied import NO_TIME
from advisor.pipeline.apply import apply_run
from advisor.pipeline.budget import Budget
from advisor.pipeline.earlier import NOTHING_LEFT
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.search import Search
from advisor.pipeline.trials import Trial
from advisor.store import RunDirectory
from tests.pipeline.test_search import Scripted, quiet, saving

pytestmark = pytest.mark.usefixtures("started")

Copied = Callable[[str], RunDirectory]
NS = 1_000_000_000


def plain(compile_s: float, step_s: float) -> Variant:
    return Variant(
        "compiled", lambda: None, list, len,
        compile_ns=round(compile_s * NS), step_ns=round(step_s * NS),
    )  # fmt: skip


def test_the_last_measurement_is_reserved() -> None:
    now = [100.0]
    budget = Budget(60.0, 100.0, clock=lambda: now[0])
    assert not budget.late()
    budget.reserve_for(plain(compile_s=10.0, step_s=0.01), trains=False)
    assert 10.0 < budget.reserved_s < 20.0
    assert not budget.late()
    now[0] = 145.0
    assert budget.late(), "fifteen seconds are not enough to compile and measure"
    now[0] = 130.0
    assert not budget.late()
    assert budget.late(budget.action_s("autotune")), "tuning would not leave time for the end"
    training = Budget(60.0, 100.0)
    training.reserve_for(plain(compile_s=10.0, step_s=0.01), trains=True)
    assert training.reserved_s == pytest.approx(1.75 * budget.reserved_s)
    training.reserve_for(plain(compile_s=10.0, step_s=0.01), trains=True, draws=True)
    assert training.reserved_s == pytest.approx(2.5 * budget.reserved_s)


def test_without_a_budget_nothing_is_late() -> None:
    budget = Budget(None, 0.0, clock=lambda: 1e9)
    budget.reserve_for(plain(1e6, 1.0), trains=True)
    assert not budget.late(1e9)


def test_what_would_not_end_in_time_is_not_begun() -> None:
    times = saving(channels_last=100)
    budget = Budget(100.0, time.monotonic())
    budget.reserve_for(plain(compile_s=30.0, step_s=0.01), trains=False)
    trials = [Trial("a", action="channels_last"), Trial("b", action="autotune")]
    bench = Scripted(times, times)
    Search(cast(Bench, bench), {}, trials, Path(), quiet, budget).run()
    assert trials[0].judgement is not None
    assert trials[0].judgement.tried
    assert trials[1].judgement is not None
    assert trials[1].judgement.reason == NO_TIME


def test_a_budget_that_is_used_up_leaves_the_rest_to_the_next_application(copied: Copied) -> None:
    run = copied("hurried")
    assert command(["apply", str(run.path), "--budget", "1s"]) == 0
    applied = run.applied()
    assert applied is not None
    assert {v.verdict for v in applied.plans} == {"not_measured"}
    assert {v.reason for v in applied.plans} == {NO_TIME}
    assert all(v.numerics is None for v in applied.plans)
    assert applied.set.reason == NO_TIME, "no kernel was generated"
    assert run.attempt() is not None, "the next application goes on"


def test_what_an_application_found_out_is_not_found_out_again(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied("halved")
    asked = iter(range(1_000))

    def after_three(self: Budget, expected_s: float = 0.0) -> bool:
        """Late once two plans were sized, and one was verified."""
        return next(asked) >= 3

    with monkeypatch.context() as patch:
        patch.setattr(Budget, "late", after_three)
        first = apply_run(run, (), quiet, 1.0)
    done = {v.plan_id for v in first.plans if v.numerics is not None}
    assert 0 < len(done) < len(first.plans)
    assert run.attempt() is not None
    verified: list[str] = []

    def listen(stage: str, state: str, *, plan: str | None = None, **rest: object) -> None:
        if stage == "verify" and plan is not None and rest.get("value") is not None:
            verified.append(plan)

    second = apply_run(run, (), listen)
    assert set(verified) == {v.plan_id for v in second.plans} - done
    assert all(v.numerics is not None and v.numerics.passed for v in second.plans)
    assert run.attempt() is None, "nothing is left"


def test_a_budget_after_a_whole_application_takes_nothing_from_it(copied: Copied) -> None:
    run = copied("whole")
    whole = apply_run(run, (), quiet)
    assert all(v.numerics is not None for v in whole.plans)
    told: list[str] = []

    def listen(*_: object, message: str = "", **__: object) -> None:
        told.append(message)

    assert apply_run(run, (), listen, 1.0) == whole
    assert run.applied() == whole
    assert NOTHING_LEFT in told[-1]
    first, *others = whole.plans
    late = replace(first, reason=NO_TIME, numerics=None, resources=())
    run.write_applied(replace(whole, plans=(late, *others)))
    verified: list[str] = []

    def verifying(stage: str, state: str, *, plan: str | None = None, **rest: object) -> None:
        if stage == "verify" and plan is not None and rest.get("value") is not None:
            verified.append(plan)

    again = apply_run(run, (), verifying, 500.0)
    assert verified == [first.plan_id]
    by_id = {verdict.plan_id: verdict for verdict in again.plans}
    assert [by_id[verdict.plan_id] for verdict in others] == others
    assert by_id[first.plan_id].numerics == first.numerics


def test_budgets_one_after_the_other_lose_nothing_of_a_whole_application(
    copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied("chain")
    whole = apply_run(run, (), quiet)
    late = [replace(v, reason=NO_TIME, numerics=None, resources=()) for v in whole.plans[:2]]
    run.write_applied(replace(whole, plans=(*late, *whole.plans[2:])))

    def after(count: int) -> Callable[..., bool]:
        asked = iter(range(1_000))
        return lambda *_: next(asked) >= count

    proven = []
    for count in (0, 3, 1_000):
        with monkeypatch.context() as patch:
            patch.setattr(Budget, "late", after(count))
            found = apply_run(run, (), quiet, 500.0)
        proven.append({v.plan_id for v in found.plans if v.numerics is not None})
    assert proven[0] == {v.plan_id for v in whole.plans[2:]}
    assert proven[0] < proven[1] < proven[2] == {v.plan_id for v in whole.plans}
    assert run.attempt() is None
