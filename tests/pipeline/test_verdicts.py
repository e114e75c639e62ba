"""The verdict and the reason that a plan gets, from its trials and the set that was kept."""

from __future__ import annotations

import pytest

from advisor.apply.judge import Judgement
from advisor.model.applied import NO_TIME, SetVerdict, is_proof
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.search import NOT_TRIED
from advisor.pipeline.trials import KEPT_BEFORE, Trial
from advisor.pipeline.verdicts import ACTION_NOT_TRIED, action_verdicts, seen_actions, verdict_of
from advisor.pipeline.without_gpu import plan_verdicts, set_verdict
from advisor.verify.statistics import compare
from tests.builders.run_plan import norm_plan

PLAN = norm_plan()
FASTER = compare([1_000] * 9, [900] * 9, "gpu_busy")
LOST = SetVerdict(verdict="reverted", reason="results differ", plans=())


def kept(*plans: str) -> SetVerdict:
    return SetVerdict(verdict="kept", reason="it pays", plans=plans)


def told(trial: Trial, result: SetVerdict, *others: Trial) -> tuple[str, str]:
    found = verdict_of(Candidate(PLAN), (trial, *others), result, "compile")
    return found.verdict, found.reason


def pays() -> Trial:
    return Trial("f", (PLAN.id,), comparison=FASTER, judgement=Judgement(True, "it saves"))


def test_a_plan_of_the_kept_set_is_kept_for_its_own_gain() -> None:
    assert told(pays(), kept(PLAN.id)) == ("kept", "it saves")


def test_what_was_never_tried_is_no_proof_of_several_either() -> None:
    """The next budget goes to it: its reason is that of one alone."""
    trial = Trial("f", (PLAN.id, "another"), judgement=NOT_TRIED)
    found = verdict_of(Candidate(PLAN), (trial,), LOST, "compile")
    assert found.reason == NO_TIME
    assert not is_proof(found)
    untried = verdict_of(Candidate(PLAN), (Trial("f", (PLAN.id, "b")),), LOST, "compile")
    assert not is_proof(untried)


def test_what_was_never_tried_is_not_measured() -> None:
    trial = Trial("f", (PLAN.id,), judgement=NOT_TRIED)
    assert told(trial, kept("other")) == ("not_measured", NO_TIME)
    assert told(Trial("f", (PLAN.id,)), LOST)[0] == "not_measured"


def test_what_was_compared_with_nothing_is_refused_not_reverted() -> None:
    trial = Trial("f", (PLAN.id,), judgement=Judgement(False, "it does not compile"))
    assert told(trial, LOST) == ("refused", "it does not compile")


def test_only_a_kept_variant_of_its_own_finding_outdoes_a_plan_that_pays() -> None:
    variant, elsewhere = Trial("f", ("variant",)), Trial("g", ("elsewhere",))
    outdone = "another variant of the same finding saved more"
    assert told(pays(), kept("variant"), variant, elsewhere) == ("reverted", outdone)
    verdict, reason = told(pays(), kept("elsewhere"), variant, elsewhere)
    assert verdict == "reverted"
    assert reason.startswith("it paid by itself, but the set that holds it did not")
    assert told(pays(), LOST)[1].endswith(": results differ")


def test_without_a_gpu_what_a_finding_calls_for_is_told_though_nothing_looked_at_it() -> None:
    """A report that advises to fold batch norms is not followed by an `apply` silent about it."""
    trials = [Trial("norms", action="fold_batch_norm"), Trial("autotune", action="autotune")]
    (verdict,) = seen_actions(trials, {}, "timing needs a GPU")
    assert (verdict.kind, verdict.finding) == ("fold_batch_norm", "norms")
    assert (verdict.verdict, verdict.reason) == ("not_measured", ACTION_NOT_TRIED)
    assert verdict.applies


@pytest.mark.parametrize("finding", [KEPT_BEFORE, "cuda_graph"])
def test_an_action_that_was_kept_before_or_asked_for_is_of_no_finding(finding: str) -> None:
    trial = Trial(finding, action="cuda_graph", judgement=NOT_TRIED)
    (verdict,) = action_verdicts([trial], LOST)
    assert verdict.finding is None


def test_the_set_without_a_gpu_is_of_what_was_asked_for() -> None:
    """Not "every plan was refused" where none was asked for."""
    trials = [Trial("attention", action="attention"), Trial("autotune", action="autotune")]
    looked = seen_actions(trials, {"attention": []}, "timing needs a GPU", named=True)
    assert [v.verdict for v in looked] == ["refused", "not_measured"]
    assert [v.finding for v in looked] == [None, None], "somebody asked, no finding did"
    assert set_verdict((), looked).reason == ACTION_NOT_TRIED
    found = set_verdict((), looked[:1])
    assert found.verdict == "refused"
    assert found.reason == f"{looked[0].title}: {looked[0].reason}"


def test_the_set_without_a_gpu_is_open_while_an_action_is() -> None:
    """Plans are refused and attention waits for a GPU: it said that every plan was refused."""
    item = Candidate(PLAN, refused="it spills")
    refused = plan_verdicts({PLAN.id: item}, {})
    (looked,) = seen_actions([Trial("f", action="autotune")], {}, "")
    assert set_verdict(refused, (looked,)).reason == ACTION_NOT_TRIED
    assert set_verdict(refused, ()).reason == "every plan was refused"
