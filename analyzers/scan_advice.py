"""Plans for written-out scans: equal loops share a kernel, priced on the kernels of today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from advisor.model.base import Phase
from advisor.model.plan import FusionPlan
from advisor.model.scan import linear_path
from advisor.units import counted
from analyzers.exposure import Situation
from analyzers.prediction import PricedFlow, claimed_nodes, predicted
from analyzers.row_plans import Program, cluster, plan_of
from analyzers.scan_programs import scan_programs


@dataclass(frozen=True)
class ScanAdvice:
    """The plans of all scans, and why loops have none, by (graph, node of the loop)."""

    plans: tuple[FusionPlan, ...] = ()
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> frozenset[tuple[str, str]]:
        """All nodes that a scan takes the place of, by graph."""
        return frozenset((s.graph, name) for p in self.plans for s in p.sites for name in s.nodes)

    def hold(self, plans: Sequence[FusionPlan]) -> bool:
        """Whether scans replace something at every site of these plans: single steps of a loop."""
        keys = [{(site.graph, n) for n in site.nodes} for plan in plans for site in plan.sites]
        return bool(self.nodes) and all(self.nodes & own for own in keys)


def advise_scans(graphs: Sequence[PricedFlow], situation: Situation) -> ScanAdvice:
    """The scans of graphs that are compiled; in a graph that was inferred no plan has a place."""
    programs: list[tuple[Phase, Program]] = []
    refused: dict[tuple[str, str], str] = {}
    facts = {item.flow.graph.id: item for item in graphs}
    for item in graphs:
        if item.flow.graph.source != "compiled":
            continue
        for found in scan_programs(item.flow):
            if found.program is not None:
                programs.append((item.phase, found.program))
            else:
                keys = ((item.flow.graph.id, name) for name in found.loop.nodes)
                refused |= dict.fromkeys(keys, found.why)
    plans = []
    for group in cluster(programs):
        phase = facts[group[0].site.graph].phase
        plan = plan_of(group, phase, "")
        titled = msgspec.structs.replace(plan, title=title_of(plan))
        today = claimed_nodes((facts[site.graph], site) for site in titled.sites)
        prediction = predicted(today, [(titled, site) for site in titled.sites], situation)
        plans.append(msgspec.structs.replace(titled, prediction=prediction))
    return ScanAdvice(tuple(plans), refused)


def title_of(plan: FusionPlan) -> str:
    """What a scan is called: `linear scan of 24 ops a step`."""
    kind = "linear scan" if linear_path(plan) is not None else "recurrence"
    last = ", last state" if any(output.last for output in plan.outputs) else ""
    return f"{kind} of {counted(len(plan.ops), 'op')} a step{last}"
