"""What of a run can be named to Apply: findings that something answers, plans, actions."""

from __future__ import annotations

from advisor.model.actions import ACTIONS, ANSWERS
from advisor.model.report import Report
from advisor.report.words import ranked


def applicable(report: Report) -> tuple[tuple[str, str], ...]:
    """(name, words) of each, in the order in which they are offered."""
    findings = [
        (finding.id, f"{finding.title} ({finding.id})")
        for finding in ranked(report)
        if finding.plan_id
        or any(option.plan_ids for option in finding.alternatives)
        or finding.rule in ANSWERS
    ]
    plans = [(plan.id, f"Plan: {plan.title} ({plan.id})") for plan in report.plans]
    actions = [(action.kind, f"Action: {action.title}") for action in ACTIONS]
    return (*findings, *plans, *actions)
