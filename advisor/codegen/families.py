"""One way to the source and the launches of a plan, whatever family it is of."""

from __future__ import annotations

from advisor.codegen import abi, row_program
from advisor.codegen.horizontal import horizontal_launches, render_horizontal
from advisor.codegen.row_program import KernelSource
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan, Site


def render(plan: FusionPlan, scheme: Scheme = "registers") -> KernelSource:
    """The source of a checked plan; the same plan and scheme give the same text.

    Raises `IllegalFusionError` for a dtype without a Triton spelling and for a scheme that cannot
    compute the plan.
    """
    if plan.members:
        return render_horizontal(plan)
    return row_program.render(plan, scheme)


def site_launches(plan: FusionPlan, config: LaunchConfig, site: Site) -> tuple[abi.Launch, ...]:
    """Every kernel with its arguments at a site.

    Raises `IllegalFusionError` for a configuration that the plan cannot have.
    """
    if plan.members:
        return horizontal_launches(plan, config, site)
    return abi.site_launches(plan, config, site)
