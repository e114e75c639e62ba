"""Small valid records of what is judged: comparisons, gates, sized kernels, predictions."""

from __future__ import annotations

from advisor.model.applied import KernelResources
from advisor.model.base import Range
from advisor.model.comparison import (
    Comparability,
    Difference,
    IdentityCheck,
    MetricChange,
    ReportComparison,
    Side,
)
from advisor.model.gate import FindingLimit, GateCheck, GateConfig, GateResult, MetricLimit
from advisor.model.resources import Cliff, CliffPoint, Fit, ResourceTable, SizedKernel
from advisor.model.scores import HeldOut, PlanScore, ResidualQuantiles, Scores
from tests.model.builders import CREATED, PLAN_ID, TOOL, report

FITS: tuple[Fit, ...] = ("use", "avoid")


def report_comparison() -> ReportComparison:
    """A step that got a tenth shorter."""
    side = Side(label="a", created=CREATED, workload=report().workload)
    check = IdentityCheck(
        name="gpu", before="h200", after="h200", outcome="agree", required=True, weight=3
    )
    return ReportComparison(
        before=side,
        after=side,
        comparability=Comparability(comparable=True, score=1.0, checks=(check,)),
        metrics=(
            MetricChange(
                name="step_ns",
                unit="ns",
                definition="clean step, median",
                provenance_before="measured",
                provenance_after="measured",
                difference=Difference(
                    before=100,
                    after=90,
                    change=-10,
                    low=-12.0,
                    high=-8.0,
                    significance="significant",
                    direction="better",
                ),
            ),
        ),
    )


def gate_config() -> GateConfig:
    """A step of at most 10 ms that grows by at most 5 %, and no regression."""
    return GateConfig(
        metric=(MetricLimit(name="step_ns", max=10_000_000, max_increase=0.05),),
        finding=(FindingLimit(max=0, kind="regression"),),
    )


def gate_result() -> GateResult:
    """A gate that one of two checks fails."""
    checks = (
        GateCheck(name="capture of the report", status="passed", text="whole"),
        GateCheck(name="step_ns", status="failed", text="10.4 ms: above 10 ms"),
    )
    return GateResult(status="failed", report="report.json", checks=checks)


def resource_table() -> ResourceTable:
    """One kernel on one GPU, to be launched so."""
    kernel = SizedKernel(
        kernel="row_program_00000000",
        plan_id=PLAN_ID,
        title="RMSNorm pieces",
        resources=KernelResources(gpu="h200", config="4 warps", registers=48, occupancy=0.625),
        verdict="use",
        why="no spills",
        first=True,
    )
    return ResourceTable(tool=TOOL, source="plan.json", kernels=(kernel,))


def cliff() -> Cliff:
    """Two points: the second op spills."""
    points = tuple(
        CliffPoint(
            ops=number,
            op=f"v{number - 1} = exp(in0)",
            inputs=1,
            outputs=1,
            resources=KernelResources(gpu="h200", config="4 warps", registers=48),
            verdict=verdict,
            why="spills" if verdict == "avoid" else "no spills",
        )
        for number, verdict in enumerate(FITS, 1)
    )
    return Cliff(
        tool=TOOL, plan_id=PLAN_ID, title="norm", gpu="h200", config="4 warps", points=points,
        falls_at=2,
    )  # fmt: skip


def scores() -> Scores:
    """One plan, predicted well."""
    plan = PlanScore(
        run="r",
        plan_id="0" * 16,
        title="RMS norm",
        gpu="NVIDIA H200",
        kept=True,
        predicted_ns=Range(low=90, mid=100, high=110),
        modelled_ns=Range(low=92, mid=106, high=112),
        measured_ns=Range(low=100, mid=104, high=108),
        before_ns=1_000,
        error=0.004,
        residual=1 / 7,
        inside=True,
    )
    return Scores(
        plans=(plan,),
        median_error=0.004,
        coverage=1.0,
        residuals=ResidualQuantiles(low=-0.75, mid=0.125, high=2.0),
        held_out=HeldOut(plans=1, coverage=1.0, median_error=0.004),
    )
