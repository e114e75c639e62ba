"""What an application tries, from a report and the names on the command line."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from advisor.errors import UsageError
from advisor.model.actions import ON_COMPILER
from advisor.model.report import Recommended
from advisor.pipeline.trials import KINDS, Trial, by_finding, trials_of
from advisor.report.words import ranked
from tests.builders.run_plan import norm_plan
from tests.builders.run_report import findings, report_of

PLAN = norm_plan()
REPORT = report_of(PLAN, "norm", "sample:x")
WITH_KERNEL, WITHOUT = "row-program-1", "launch-bound-1"


def test_the_recommended_findings_are_tried_in_order_those_without_a_kernel_left_out() -> None:
    advised = replace(REPORT, recommended=Recommended(order=(WITHOUT, WITH_KERNEL)))
    trials = trials_of(advised, ())
    assert [trial.finding for trial in trials if trial.plan_ids] == [WITH_KERNEL]
    assert [t.action for t in trials if t.finding == WITHOUT] == ["cuda_graph", "step_graph"]
    nothing = trials_of(replace(REPORT, recommended=Recommended()), ())
    assert [trial.action for trial in nothing] == [k for k in KINDS if k not in ON_COMPILER]


def test_kernels_of_the_compiler_are_changed_where_a_finding_asks_for_it() -> None:
    lost = replace(findings(PLAN, "norm")[0], id="over-fusion-1", rule="over-fusion", plan_id=None,
                   alternatives=())  # fmt: skip
    report = replace(REPORT, findings=(lost,), plans=(), recommended=Recommended(order=(lost.id,)))
    trials = [trial for trial in trials_of(report, ()) if trial.action in ON_COMPILER]
    assert trials == [Trial(lost.id, action="unfuse"), Trial(lost.id, action="retune")]


def test_an_action_can_be_named_alone() -> None:
    assert trials_of(REPORT, ("autotune",)) == [Trial("autotune", action="autotune")]


def test_a_plan_can_be_named_alone() -> None:
    assert trials_of(REPORT, (PLAN.id,)) == [Trial(PLAN.id, (PLAN.id,))]
    assert by_finding(trials_of(REPORT, (WITH_KERNEL, PLAN.id)))[1:] == [
        [Trial(PLAN.id, (PLAN.id,))]
    ]


def test_a_finding_can_be_named_by_its_number_in_show_and_is_tried_once() -> None:
    number = [finding.id for finding in ranked(REPORT)].index(WITH_KERNEL) + 1
    assert trials_of(REPORT, (str(number), WITH_KERNEL)) == trials_of(REPORT, (WITH_KERNEL,))
    for name in ("0", "99", "-1", "٣", "1 "):
        with pytest.raises(UsageError, match="is no finding or plan"):
            trials_of(REPORT, (name,))


def test_a_name_that_gives_nothing_to_apply_says_why() -> None:
    with pytest.raises(UsageError, match="'nope' is no finding or plan"):
        trials_of(REPORT, ("nope",))
    bare = [
        replace(f, rule="rotary-written-out") for f in findings(PLAN, "norm") if f.id == WITHOUT
    ]
    report = replace(REPORT, findings=tuple(bare), plans=())
    with pytest.raises(UsageError, match="launch-bound-1 has no generated kernel") as caught:
        trials_of(report, (WITHOUT,))
    assert bare[0].action in caught.value.remedy
