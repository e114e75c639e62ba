"""What a later application of a few findings leaves of an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.apply.judge import Judgement
from advisor.errors import RefusedError
from advisor.model.actions import ActionKind
from advisor.model.applied import NO_TIME, ActionVerdict, Applied, PlanVerdict, SetVerdict, Verdict
from advisor.model.attempt import Attempt, JudgedTrial
from advisor.model.cures import Split
from advisor.pipeline.apply import _finish
from advisor.pipeline.budget import Budget
from advisor.pipeline.earlier import (
    goes_on_from,
    kept_before,
    refuse_to_forget,
    unproven,
    with_earlier,
)
from advisor.pipeline.kept import kept_recipe
from advisor.pipeline.patch import kept_only
from advisor.pipeline.peers import Alone
from advisor.pipeline.revert import revert_run
from advisor.pipeline.trials import KEPT_BEFORE, Trial
from advisor.pipeline.verdicts import action_verdicts
from advisor.pipeline.votes import same_trials
from advisor.report.applied import render_applied
from advisor.report.text import render
from advisor.report.verdict_words import out_of_time
from advisor.store import RunDirectory, RunStore
from tests.builders.run import sample_run

HERE = {"torch": "2.11.0"}


def verdict(plan: str, what: Verdict, reason: str = "measured") -> PlanVerdict:
    return PlanVerdict(plan_id=plan, title=plan, verdict=what, reason=reason, sites_expected=1)


def late(plan: str) -> PlanVerdict:
    return verdict(plan, "not_measured", NO_TIME)


def action(kind: ActionKind, what: Verdict, reason: str = "measured") -> ActionVerdict:
    return ActionVerdict(kind=kind, title=kind, verdict=what, reason=reason)


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


def test_what_a_budget_left_no_time_for_keeps_its_proof() -> None:
    earlier = applied(verdict("a", "reverted"), verdict("b", "refused"), verdict("c", "kept"),
                      kept=("c",))  # fmt: skip
    earlier = replace(earlier, actions=(action("autotune", "reverted"),))
    now = applied(verdict("c", "kept"), late("a"), late("b"), late("d"), kept=("c",))
    now = replace(now, actions=(action("autotune", "not_measured", NO_TIME),))
    merged = with_earlier(now, earlier)
    assert {v.plan_id: v.verdict for v in merged.plans} == {
        "c": "kept", "a": "reverted", "b": "refused", "d": "not_measured",
    }  # fmt: skip
    assert [v.verdict for v in merged.actions] == ["reverted"]
    other = replace(now, device="another")
    assert with_earlier(other, earlier) == other


def test_what_could_not_be_compared_any_more_leaves_the_set_as_it_was_measured() -> None:
    earlier = applied(verdict("a", "reverted"))
    late_set = SetVerdict(verdict="not_measured", reason="the time was used up", plans=())
    now = replace(applied(late("a"), late("b")), set=late_set)
    assert with_earlier(now, earlier).set == earlier.set
    assert with_earlier(now, None).set == late_set


def test_a_budget_goes_to_what_is_not_proven_on_this_device() -> None:
    earlier = applied(verdict("a", "reverted"), verdict("b", "kept"), late("c"), kept=("b",))
    earlier = replace(earlier, actions=(action("autotune", "refused"),
                                        action("cuda_graph", "not_measured", NO_TIME)))  # fmt: skip
    plans = [Trial("f", ("a", "c")), Trial("f", ("a",)), Trial("g", ("b",)), Trial("h", ("d",))]
    kinds: tuple[ActionKind, ...] = ("autotune", "cuda_graph", "channels_last")
    trials = [*plans, *(Trial(kind, action=kind) for kind in kinds)]
    left = unproven(trials, earlier, "a GPU", HERE)
    assert [t.plan_ids or t.action for t in left] == [
        ("a", "c"), ("d",), "cuda_graph", "channels_last",
    ]  # fmt: skip
    for device, versions in (("another", HERE), ("a GPU", {"torch": "2.12"})):
        assert unproven(trials, earlier, device, versions) == trials
    assert unproven(trials, None, "a GPU", HERE) == trials


def test_one_kernel_of_the_compiler_is_no_proof_of_the_others() -> None:
    """`--only unfuse:KERNEL`, and then a budget for what a finding calls for."""
    asked = Trial("unfuse:k", action="unfuse", kernel="k", judgement=Judgement(False, "no gain"))
    lost = SetVerdict(verdict="reverted", reason="measured", plans=())
    earlier = replace(applied(), actions=action_verdicts([asked], lost))
    assert [verdict.kind for verdict in earlier.actions] == ["unfuse"]
    trials = [Trial("over-fusion-1", action="unfuse"), Trial("over-fusion-1", action="retune")]
    assert unproven(trials, earlier, "a GPU", HERE) == trials
    whole = replace(earlier.actions[0], finding="over-fusion-1")
    assert unproven(trials, replace(earlier, actions=(whole,)), "a GPU", HERE) == trials[1:]


def test_one_kernel_that_was_kept_is_no_proof_of_the_others_ever_after(tmp_path: Path) -> None:
    """Each later application tries it as what was kept before."""
    kept = SetVerdict(verdict="kept", reason="measured", plans=(), actions=("unfuse",))
    trial = Trial("unfuse:k", action="unfuse", kernel="k", judgement=Judgement(True, "it saves"),
                  splits=(Split(kernel="k", words="cut", groups=(("a",), ("b",))),))  # fmt: skip
    called_for = [Trial("over-fusion-1", action="unfuse")]
    for _ in range(3):
        earlier = replace(applied(), actions=action_verdicts([trial], kept), set=kept)
        assert earlier.actions[0].finding == "unfuse:k"
        assert unproven(called_for, earlier, "a GPU", HERE) == called_for
        (trial,) = kept_before(earlier)
        trial.judgement = Judgement(True, "it saves")


@pytest.mark.parametrize("kind", ["unfuse", "retune"])
def test_a_record_of_the_compilers_kernels_counts_for_those_that_it_names(kind: ActionKind) -> None:
    """One without a name, as earlier versions wrote of one kernel that was kept, stood for all."""
    every = [Trial(f"{kind}:{k}", action=kind, kernel=k) for k in ("a", "b")]
    every.append(Trial("over-fusion-1", action=kind))
    bare = action(kind, "kept")

    def left(finding: str | None) -> list[str]:
        earlier = replace(applied(), actions=(replace(bare, finding=finding),))
        return [trial.finding for trial in unproven(every, earlier, "a GPU", HERE)]

    assert left(None) == [trial.finding for trial in every]
    assert left(f"{kind}:a") == [f"{kind}:b", "over-fusion-1"]
    assert left("over-fusion-1") == left(kind) == []


@pytest.mark.parametrize("asked", ["unfuse", "over-fusion-1"])
def test_that_all_kernels_were_looked_at_stays_on_record(asked: str) -> None:
    """`--only unfuse`, or a finding: what was kept of it is tried first ever after."""
    kept = SetVerdict(verdict="kept", reason="measured", plans=(), actions=("unfuse",))
    trial = Trial(asked, action="unfuse", judgement=Judgement(True, "it saves"))
    for _ in range(3):
        earlier = replace(applied(), actions=action_verdicts([trial], kept), set=kept)
        assert unproven([Trial("over-fusion-1", action="unfuse")], earlier, "a GPU", HERE) == []
        (trial,) = kept_before(earlier)
        trial.judgement = Judgement(True, "it saves")


def test_what_no_record_names_is_named_by_nobody_later() -> None:
    kept = SetVerdict(verdict="kept", reason="measured", plans=(), actions=("unfuse",))
    earlier = replace(applied(), actions=(action("unfuse", "kept"),), set=kept)
    for _ in range(3):
        (trial,) = kept_before(earlier)
        trial.judgement = Judgement(True, "it saves")
        earlier = replace(applied(), actions=action_verdicts([trial], kept), set=kept)
        assert earlier.actions[0].finding is None


def test_what_earlier_versions_said_of_several_is_no_proof() -> None:
    several = verdict("a", "not_measured", f"{NO_TIME} (together with 2 more)")
    earlier = applied(several)
    trials = [Trial("f", ("a",))]
    assert unproven(trials, earlier, "a GPU", HERE) == trials
    assert out_of_time(earlier) == (several,)


def test_what_was_kept_is_tried_again_with_what_was_chosen_then(tmp_path: Path) -> None:
    """Cuts of the compiler's kernels would be searched for anew, for minutes."""
    kept = Trial(
        KEPT_BEFORE,
        action="unfuse",
        splits=(Split(kernel="k", words="cut", groups=(("a",), ("b",))),),
    )
    asked = Trial("retune:sum", action="retune", kernel="sum")
    assert same_trials(Alone(), RunDirectory(tmp_path), [kept, asked]) == [kept, asked]


@pytest.mark.parametrize(
    ("trials", "only", "limited", "stays"),
    [
        ((), (), True, True),  # the earlier one was at its end
        ((), (), False, False),
        (("a",), (), True, False),  # it goes on with an attempt that knows all of it
        (("b",), (), True, True),  # with one that began later
        (("a",), ("f",), False, True),
    ],
)
def test_which_earlier_application_stays(
    trials: tuple[str, ...], only: tuple[str, ...], limited: bool, stays: bool, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path)
    earlier = applied(verdict("a", "reverted"), late("b"))
    run.write_applied(earlier)
    judged = tuple(JudgedTrial(finding="f", plan_ids=(t,), keep=False, reason="x") for t in trials)
    attempt = Attempt(signature=None, only=only, device="a GPU", versions=HERE, trials=judged)
    found = goes_on_from(run, only, limited=limited, attempt=attempt if trials else None)
    assert found == (earlier if stays else None)


def test_verdicts_of_another_device_or_version_are_not_carried_over() -> None:
    earlier = applied(verdict("a", "kept"), kept=("a",))
    now = applied(verdict("c", "kept"), kept=("c",))
    assert with_earlier(replace(now, device="another"), earlier).plans == now.plans
    assert with_earlier(replace(now, versions={"torch": "2.12"}), earlier).plans == now.plans


def finished(run: RunDirectory, now: Applied, earlier: Applied | None) -> str:
    """Have an application put on record; its last words."""
    told: list[str] = []

    def listen(*_: object, message: str = "", **__: object) -> None:
        told.append(message)

    _finish(run, now, earlier, Budget(1.0, 0.0), listen)
    return told[-1]


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize(
    ("device", "versions"), [("another GPU", HERE), ("a GPU", {"torch": "2.12.0"})]
)
@pytest.mark.parametrize("state", ["not_measured", "reverted"])
def test_what_was_kept_elsewhere_is_not_lost_to_an_application_that_proves_nothing(
    state: Verdict, device: str, versions: dict[str, str], goes_on: bool, tmp_path: Path
) -> None:
    """Nor where an attempt knows all that it proved, so that nothing is gone on from."""
    run = sample_run(RunStore(tmp_path))
    before = run.applied()
    assert before is not None
    before = replace(before, device="a GPU", versions=HERE)
    run.write_applied(before)
    reason = "the time was used up before anything could be compared"
    nothing = SetVerdict(verdict=state, reason=reason, plans=())
    now = Applied(created="later", device=device, versions=versions, set=nothing,
                  plans=tuple(late(name) for name in before.set.plans))  # fmt: skip
    told = finished(run, now, before if goes_on else None)
    assert told.startswith(f"nothing was found out on {device}")
    assert reason in told
    assert "measured on a GPU" in told
    assert f"is no proof for {device}" in told
    after = run.applied()
    assert after is not None
    assert replace(after, warnings=()) == before
    assert [w.message for w in after.warnings] == [told]
    assert told in render(render_applied(after), width=10_000)
    assert kept_recipe(run).kernels
    assert kept_only(run, ()).set == before.set
    assert finished(run, now, after) == told
    assert run.applied() == after, "it is told once"
    trials = [Trial("f", before.set.plans)]
    assert unproven(trials, after, device, versions) == trials
    assert revert_run(run, lambda *_, **__: None)
    assert run.applied() is None


def test_what_is_judged_here_takes_the_place_of_what_was_kept_elsewhere(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_applied(applied(verdict("a", "kept"), kept=("a",)))
    now = replace(applied(verdict("a", "reverted")), device="another GPU")
    assert finished(run, now, run.applied()) == "reverted: measured"
    after = run.applied()
    assert after is not None
    assert (after.device, after.set, after.warnings) == (now.device, now.set, ())


def test_what_was_measured_elsewhere_stays_too(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    before = applied(verdict("a", "reverted"))
    run.write_applied(before)
    nothing = SetVerdict(verdict="not_measured", reason="late", plans=())
    finished(run, replace(applied(late("a")), set=nothing, device="another"), None)
    assert replace(run.applied() or applied(), warnings=()) == before


def test_what_there_was_no_time_to_compare_again_here_stays_kept(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    before = applied(verdict("a", "kept"), kept=("a",))
    run.write_applied(before)
    nothing = SetVerdict(verdict="reverted", reason="nothing could be compared", plans=())
    for earlier in (before, None):
        finished(run, replace(applied(late("a")), set=nothing), earlier)
        after = run.applied()
        assert after is not None
        assert (after.set, after.plans, after.warnings) == (before.set, before.plans, ())


def test_without_a_gpu_what_was_kept_with_one_is_not_written_over(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    refuse_to_forget(run)
    run.write_applied(applied(verdict("a", "reverted")))
    refuse_to_forget(run)
    run.write_applied(applied(verdict("a", "kept"), kept=("a",)))
    with pytest.raises(RefusedError, match="cannot be judged again without a GPU"):
        refuse_to_forget(run)
