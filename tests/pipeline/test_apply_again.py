"""What a later application of a few findings leaves of an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.errors import RefusedError
from advisor.model.applied import Applied, PlanVerdict, SetVerdict, Verdict
from advisor.pipeline.apply import kept_before, refuse_to_forget, with_earlier
from advisor.store import RunDirectory

HERE = {"torch": "2.11.0"}


def verdict(plan: str, what: Verdict) -> PlanVerdict:
    return PlanVerdict(plan_id=plan, title=plan, verdict=what, reason="measured", sites_expected=1)


def applied(*plans: PlanVerdict, kept: tuple[str, ...] = ()) -> Applied:
    state: Verdict = "kept" if kept else "reverted"
    result = SetVerdict(verdict=state, reason="measured", plans=kept)
    return Applied(created="now", device="a GPU", versions=HERE, plans=plans, set=result)


def test_what_was_kept_is_tried_again_as_one_set() -> None:
    earlier = applied(verdict("a", "kept"), verdict("b", "kept"), kept=("a", "b"))
    assert [trial.plan_ids for trial in kept_before(earlier)] == [("a", "b")]
    assert kept_before(applied(verdict("a", "reverted"))) == []
    assert kept_before(None) == []


def test_verdicts_on_other_plans_stay_and_those_tried_now_are_replaced() -> None:
    earlier = applied(verdict("a", "reverted"), verdict("b", "kept"), kept=("b",))
    now = applied(verdict("b", "reverted"), verdict("c", "kept"), kept=("c",))
    merged = with_earlier(now, earlier)
    assert [(v.plan_id, v.verdict) for v in merged.plans] == [
        ("b", "reverted"), ("c", "kept"), ("a", "reverted"),
    ]  # fmt: skip
    assert merged.set == now.set


def test_verdicts_of_another_device_or_version_are_not_carried_over() -> None:
    earlier = applied(verdict("a", "kept"), kept=("a",))
    now = applied(verdict("c", "kept"), kept=("c",))
    assert with_earlier(replace(now, device="another"), earlier).plans == now.plans
    assert with_earlier(replace(now, versions={"torch": "2.12"}), earlier).plans == now.plans


def test_without_a_gpu_what_was_kept_with_one_is_not_written_over(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    refuse_to_forget(run)
    run.write_applied(applied(verdict("a", "reverted")))
    refuse_to_forget(run)
    run.write_applied(applied(verdict("a", "kept"), kept=("a",)))
    with pytest.raises(RefusedError, match="cannot be judged again without a GPU"):
        refuse_to_forget(run)
