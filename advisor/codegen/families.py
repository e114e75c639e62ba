"""The one place that tells families of plans apart: which functions write and launch a plan."""

from __future__ import annotations

from advisor.codegen import abi, host
from advisor.codegen.gemm_host import gemm_launcher, gemm_reference
from advisor.codegen.horizontal import horizontal_launches, render_horizontal
from advisor.codegen.launches import Launch, program_launches
from advisor.codegen.row_program import (
    HELPER_TEXT,
    IMPORTS,
    KernelSource,
    check_renderable,
    device_code,
    header,
    helper_names,
    joined,
)
from advisor.codegen.scan_host import scan_launcher, scan_reference
from advisor.model.comparisons import as_compared
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan, Site


def render(plan: FusionPlan, scheme: Scheme = "registers") -> KernelSource:
    """The source of a checked plan; the same plan and scheme give the same text.

    Raises `IllegalFusionError` for a dtype without a Triton spelling and for a scheme that cannot
    compute the plan.
    """
    if plan.members:
        return render_horizontal(plan)
    check_renderable(plan, scheme)
    parts = [
        header(plan),
        IMPORTS,
        *(HELPER_TEXT[name] for name in helper_names(plan, scheme)),
        *device_code(plan, scheme),
        launcher(plan, scheme),
        reference(plan),
    ]
    return KernelSource(
        text=joined(parts),
        kernels=tuple(kernel.name for kernel in abi.kernels(plan, scheme)),
        scheme=scheme,
    )


def launcher(
    plan: FusionPlan, scheme: Scheme, *, options: str | None = None, wrap: str = ""
) -> str:
    """The function `fused` of a plan that is one program: a row program, a scan or a product.

    `options` are its keyword arguments with their defaults, `wrap` a function that is applied to a
    kernel before it is launched.
    """
    if plan.product is not None:
        return gemm_launcher(plan, options=options, wrap=wrap)
    write = scan_launcher if plan.states else host.launcher
    return write(plan, scheme, options=options, wrap=wrap)


def reference(plan: FusionPlan) -> str:
    """The function `reference` of a plan that is one program, in PyTorch."""
    plan = as_compared(plan)
    if plan.product is not None:
        return gemm_reference(plan)
    return scan_reference(plan) if plan.states else host.reference(plan)


def site_launches(plan: FusionPlan, config: LaunchConfig, site: Site) -> tuple[Launch, ...]:
    """Every kernel with its arguments at a site.

    Raises `IllegalFusionError` for a configuration that the plan cannot have.
    """
    if plan.members:
        return horizontal_launches(plan, config, site)
    return program_launches(plan, config, site)
