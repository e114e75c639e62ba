"""The gate: limits hold or not, and partial captures never pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.errors import UsageError
from advisor.model.base import Warning_
from advisor.model.findings import Evidence
from advisor.model.gate import (
    CaptureLimit,
    ComparisonLimit,
    FindingLimit,
    GateConfig,
    GateResult,
    MetricLimit,
)
from advisor.model.report import Metric, Report
from advisor.model.rule_names import RULE_IDS
from advisor.report.gate import judge
from advisor.report.gate_config import default_config, read_config
from analyzers.rules import RULES
from tests.model.builders import captured, finding, price, report


def steps(*values: int, provenance: str = "measured") -> Metric:
    middle = sorted(values)[len(values) // 2]
    return Metric(
        value=middle, unit="ns", provenance=provenance, definition="d", per_step=values  # type: ignore[arg-type]
    )  # fmt: skip


def with_step(*values: int, **fields: str) -> Report:
    return replace(captured(), metrics={"step_ns": steps(*values, **fields)})


def metric_gate(**bounds: Any) -> GateConfig:
    return GateConfig(metric=(MetricLimit(name="step_ns", **bounds),))


def findings_gate(**limit: Any) -> GateConfig:
    return GateConfig(finding=(FindingLimit(**limit),))


def why(result: GateResult) -> str:
    return "; ".join(f"{check.name}: {check.text}" for check in result.failed)


# --- limits ---


@pytest.mark.parametrize(
    ("bounds", "value", "passes"),
    [
        ({"max": 100}, 100, True),
        ({"max": 100}, 101, False),
        ({"min": 100}, 100, True),
        ({"min": 100}, 99, False),
        ({"max": 0.5}, 1, False),
        ({"max": 0}, 0, True),
    ],
)
def test_absolute_bounds(bounds: dict[str, float], value: int, passes: bool) -> None:
    assert (judge(metric_gate(**bounds), with_step(value)).status == "passed") == passes


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ({"max": 10_000_000}, "10 ms: above 10 ms, by 23.1 µs"),
        ({"min": 10_030_000}, "10 ms: below 10 ms, by 6.9 µs"),
        ({"max": 9_000_000}, "10 ms: above 9 ms"),
    ],
)
def test_a_bound_that_reads_as_the_value_says_by_how_much(
    bounds: dict[str, float], text: str
) -> None:
    (failed,) = judge(metric_gate(**bounds), with_step(10_023_100)).failed
    assert failed.text == text


@pytest.mark.parametrize(
    ("bounds", "before", "after", "passes"),
    [
        ({"max_increase": 0.05}, 100, 105, True),
        ({"max_increase": 0.05}, 100, 106, False),
        ({"max_increase": 0}, 100, 100, True),
        ({"max_increase": 0}, 100, 101, False),
        ({"max_increase": 0.05}, 100, 1, True),
        ({"max_decrease": 0.05}, 100, 94, False),
        ({"max_decrease": 0.05}, 100, 200, True),
        ({"max_increase": 0.05}, 0, 1, False),
        ({"max_increase": 0.05}, 0, 0, True),
    ],
)
def test_relative_bounds(bounds: dict[str, float], before: int, after: int, passes: bool) -> None:
    result = judge(metric_gate(**bounds), with_step(after), with_step(before))
    assert (result.status == "passed") == passes, why(result)


def test_beyond_noise_asks_the_whole_interval() -> None:
    noisy = with_step(100, 140, 60, 120, 80), with_step(110, 150, 70, 130, 90)
    clear = with_step(100, 101, 99, 100, 100), with_step(120, 121, 119, 120, 120)
    plain, strict = (
        metric_gate(max_increase=0.05),
        metric_gate(max_increase=0.05, beyond_noise=True),
    )
    assert judge(plain, noisy[1], noisy[0]).status == "failed"
    assert judge(strict, noisy[1], noisy[0]).status == "passed"
    assert judge(strict, clear[1], clear[0]).status == "failed"
    few = with_step(100), with_step(120)
    assert judge(strict, few[1], few[0]).status == "failed", "without an interval the value decides"


def test_an_unknown_value_breaks_any_bound() -> None:
    absent = replace(report(), metrics={})
    unknown = replace(report(), metrics={"step_ns": replace(steps(1), value=None)})
    for subject, words in ((absent, "is not in the report"), (unknown, "is unknown")):
        assert words in why(judge(metric_gate(max=1e9), subject))
    relative = metric_gate(max_increase=9)
    assert "cannot be compared: not in the report before" in why(
        judge(relative, with_step(1), absent)
    )
    modelled = with_step(1, provenance="modelled")
    assert "modelled before, measured after" in why(judge(relative, with_step(1), modelled))


def test_a_relative_limit_needs_a_baseline() -> None:
    for config in (metric_gate(max_increase=1), findings_gate(max=0, new=True)):
        with pytest.raises(UsageError, match="--baseline"):
            judge(config, report())


def test_findings_are_counted_by_kind_rule_saving_and_novelty() -> None:
    cheap = finding("cheap", saving=price(0, 1_000, 2_000))
    dear = replace(finding("dear", saving=price(0, 90_000, 99_000)), rule="gated-mlp", title="D")
    loss = replace(finding("loss", saving=price(1, 2, 3), kind="regression"), title="L")
    unpriced = replace(finding("unpriced"), title="U")
    subject = replace(report(), findings=(cheap, dear, loss, unpriced))
    hits = {
        "any": findings_gate(max=0),
        "opportunities": findings_gate(max=0, kind="opportunity"),
        "rule": findings_gate(max=0, rule="gated-mlp"),
        "dear": findings_gate(max=0, kind="opportunity", saving_above_ns=50_000),
        "regressions": findings_gate(max=0, kind="regression"),
    }
    counted = {name: judge(config, subject).checks[-1].findings for name, config in hits.items()}
    assert counted == {
        "any": ("cheap", "dear", "loss", "unpriced"),
        "opportunities": ("cheap", "dear", "unpriced"),
        "rule": ("dear",),
        "dear": ("dear",),
        "regressions": ("loss",),
    }
    text = judge(hits["dear"], subject).checks[-1].text
    assert text == (
        "1 found, at most 0 allowed: D (dear); "
        "1 more may save as much, nobody can tell: U (unpriced)"
    )
    assert judge(findings_gate(max=4), subject).status == "passed"
    old = replace(subject, findings=(cheap, loss))
    assert judge(findings_gate(max=0, new=True), subject, old).checks[-1].findings == (
        "dear",
        "unpriced",
    )


def test_evidence_is_not_needed_to_be_counted() -> None:
    bare = replace(finding("x", saving=price(1, 2, 3)), evidence=(Evidence(kind="time", text=""),))
    assert judge(findings_gate(max=1), replace(report(), findings=(bare,))).status == "passed"


# --- captures ---


@pytest.mark.parametrize("code", ["truncated", "salvaged", "ranks-missing", "event_dropped"])
def test_a_partial_capture_never_passes(code: str) -> None:
    partial = replace(report(), warnings=(Warning_(code=code, message="lost", count=3),))
    assert f"{code} (3 times): lost" in why(judge(findings_gate(max=99), partial))
    assert judge(findings_gate(max=99), report(), partial).status == "failed", "nor as a baseline"


def test_harmless_warnings_pass_and_lost_events_may_be_allowed() -> None:
    harmless = replace(report(), warnings=(Warning_(code="utf8_repaired", message="m"),))
    assert judge(findings_gate(max=99), harmless).status == "passed"
    lossy = replace(report(), warnings=(Warning_(code="event_dropped", message="m"),))
    allowed = replace(
        findings_gate(max=99), capture=CaptureLimit(allow_warnings=("event-dropped",))
    )
    assert judge(allowed, lossy).status == "passed"
    for code in ("truncated", "anything"):
        config = replace(allowed, capture=CaptureLimit(allow_warnings=(code,)))
        with pytest.raises(UsageError, match="cannot be allowed"):
            judge(config, lossy)


def test_an_empty_capture_never_passes() -> None:
    empty = replace(report(), kernels=())
    assert "it holds no kernels" in why(judge(findings_gate(max=99), empty))
    graphs = replace(findings_gate(max=99), capture=CaptureLimit(graphs_only=True))
    assert judge(graphs, empty).status == "failed", "its trace was to hold kernels"
    without = replace(empty, sources=empty.sources[:1])
    assert judge(graphs, without).status == "passed"
    nothing = replace(without, metrics={}, findings=(), plans=())
    assert "neither metrics nor findings" in why(judge(graphs, nothing))


# --- the same work ---


def test_other_work_is_refused_with_reasons() -> None:
    own = captured()
    other = replace(own, workload=replace(own.workload, rank=1))
    result = judge(findings_gate(max=99), own, other)
    assert result.status == "not_comparable"
    assert "rank: 1 before, 0 after" in why(result)
    accepted = replace(findings_gate(max=99), comparison=ComparisonLimit(accept=("rank",)))
    assert judge(accepted, own, other).status == "passed"
    picky = replace(accepted, comparison=ComparisonLimit(accept=("rank",), min_score=0.99))
    assert "is below 0.99" in why(judge(picky, own, other))


# --- configuration ---

GOOD = b"""
[[metric]]
name = "step_ns"
max = 10_000_000
max_increase = 0.05
beyond_noise = true

[[finding]]
kind = "opportunity"
saving_above_ns = 50_000
max = 2

[capture]
allow_warnings = ["event_dropped"]

[comparison]
accept = ["mode"]
min_score = 0.5
allow_unknown = true
"""


def test_a_configuration_is_read() -> None:
    config = read_config(GOOD, "gates.toml")
    assert config.metric == (
        MetricLimit(name="step_ns", max=10_000_000, max_increase=0.05, beyond_noise=True),
    )
    assert config.finding == (FindingLimit(kind="opportunity", saving_above_ns=50_000, max=2),)
    assert config.comparison.min_score == 0.5
    assert config.comparison.allow_unknown


def test_the_configuration_of_the_readme_is_valid() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    config = read_config(block.encode(), "README.md")
    assert config.relative
    judge(config, with_step(100), with_step(100))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "sets no limit"),
        ("[[metric]]\nname = 'step_ns'", "sets no bound"),
        ("[[metric]]\nname = 'step_ns'\nmax = nan", "max is nan"),
        ("[[metric]]\nname = 'step_ns'\nmin = -inf", "min is -inf"),
        ("[[metric]]\nname = 'step_ns'\nmax_increase = inf", "max_increase is inf"),
        ("[[metric]]\nname = 'step_ns'\nmax_increase = -0.1", "below zero"),
        ("[[metric]]\nname = 'step_ns'\nmax_decrease = -1", "below zero"),
        ("[[metric]]\nname = 'step_ns'\nmin = 2\nmax = 1", "min is above max"),
        ("[[metric]]\nname = 'step_ns'\nmax = 1\nbeyond_noise = true", "relative"),
        ("[[metric]]\nname = 'step_ns'\nmax = true", "Expected"),
        ("[[metric]]\nname = 'step_ns'\nmax = '1'", "Expected"),
        ("[[metric]]\nname = 'step_ns'\nmax = 1979-05-27", "Expected"),
        ("[[metric]]\nname = 'step_ns'\nmaximum = 1", "maximum"),
        ("[[finding]]\nmax = -1", "below zero"),
        ("[[finding]]\nkind = 'bug'\nmax = 1", "kind"),
        ("[[finding]]\nunpriced = 'count'\nmax = 1", "needs saving_above_ns"),
        ("[[finding]]\nunpriced = 'fail'\nsaving_above_ns = 1\nmax = 1", "unpriced"),
        ("[comparison]\nmin_score = nan\n[[finding]]\nmax = 1", "no fraction"),
        ("surprise = 1", "surprise"),
        ("schema_version = 2\n[[finding]]\nmax = 1", "not known"),
        ("[[metric", "not a TOML file"),
        ("a = " + "[" * 100_000, "not a TOML file"),
    ],
)
def test_a_bad_configuration_is_a_usage_error(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("[", r"\[")) as caught:
        read_config(text.encode(), "gates.toml")
    assert caught.value.where.startswith("gates.toml")
    assert caught.value.exit_code == 2


def test_bytes_that_are_no_text_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="UTF-8"):
        read_config(b"\xff\xfe", "gates.toml")


def test_unknown_names_list_near_ones() -> None:
    near = GateConfig(metric=(MetricLimit(name="step_nss", max=1),))
    with pytest.raises(UsageError, match="did you mean step_ns"):
        judge(near, report())
    with pytest.raises(UsageError, match="`fusion-advisor show`"):
        judge(GateConfig(metric=(MetricLimit(name="§§§", max=1),)), report())
    with pytest.raises(UsageError, match="did you mean gated-mlp"):
        judge(findings_gate(max=0, rule="gated_mpl"), report())
    # A figure that the tool knows and this report lacks is no error of the configuration.
    known = GateConfig(metric=(MetricLimit(name="graph_breaks", max=1),))
    assert judge(known, report()).status == "failed"


def test_the_ids_of_rules_are_known_without_loading_them() -> None:
    assert {rule.id for rule in RULES} <= set(RULE_IDS), "name new rules in rule_names.py"


def test_without_a_configuration_regressions_and_slower_steps_fail() -> None:
    slow, fast = with_step(200, 201, 199, 200, 200), with_step(100, 101, 99, 100, 100)
    assert judge(default_config(fast, None), fast).status == "passed"
    assert judge(default_config(slow, fast), slow, fast).status == "failed"
    assert judge(default_config(fast, slow), fast, slow).status == "passed"
    loss = replace(finding("loss", saving=price(1, 2, 3), kind="regression"), plan_id=None)
    assert judge(default_config(fast, None), replace(fast, findings=(loss,))).status == "failed"
