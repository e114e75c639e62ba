"""The report of a realistic run: two opportunities, a regression, a plan with nine sites."""

from __future__ import annotations

from advisor.model.base import Location, Warning_
from advisor.model.findings import Alternative, Evidence, Finding, Member
from advisor.model.plan import FusionPlan
from advisor.model.report import (
    Hardware,
    KernelRow,
    Metric,
    PlanSummary,
    Recommended,
    Report,
    Source,
    Tool,
    Workload,
)
from tests.builders.run_plan import CREATED, range_of


def findings(plan: FusionPlan, title: str) -> tuple[Finding, ...]:
    """The norm, a launch-bound region that cannot be judged, and a spilling fusion."""
    norm = Finding(
        id="row-program-1",
        rule="row-program",
        kind="opportunity",
        title=title,
        exposed_saving_ns=range_of(1_358_000),
        evidence=(
            Evidence(
                kind="dataflow",
                text="9 sites share one signature; every intermediate has its only consumer inside",
                values={"sites": 9, "ops_per_site": 7},
            ),
            Evidence(
                kind="traffic",
                text="each site reads and writes the activation seven times instead of once",
                values={"before_bytes": 2_300_000_000, "after_bytes": 302_000_000},
            ),
        ),
        members=(
            Member(name="aten::pow", count=9, time_ns=240_000),
            Member(name="aten::mean", count=9, time_ns=310_000),
            Member(name="aten::add", count=9),
            Member(name="aten::mul", count=18, time_ns=610_000),
        ),
        provenance="exact",
        action="Replace the pieces at 9 sites with one generated kernel.",
        alternatives=(
            Alternative(
                route="library",
                text="torch.nn.functional.rms_norm at all 9 sites",
                saving_ns=range_of(1_240_000),
            ),
            Alternative(
                route="compile_region",
                text="torch.compile the decoder layer",
                saving_ns=range_of(1_190_000),
            ),
            Alternative(
                route="do_not_fuse",
                text="keep the final norm apart: it saves too little to matter alone",
            ),
        ),
        plan_id=plan.id,
        locations=tuple(site.location for site in plan.sites),
    )
    launch = Finding(
        id="launch-bound-1",
        rule="launch-bound",
        kind="opportunity",
        title="The decode loop waits for launches",
        exposed_saving_ns=None,
        evidence=(
            Evidence(
                kind="cannot_judge",
                text="the simulator misses the clean step by 11 %, more than the 5 % allowed",
                values={"miss": 0.11},
            ),
        ),
        provenance="inferred",
        action="Capture the region in a CUDA graph and measure.",
    )
    spill = Finding(
        id="register-spill-1",
        rule="register-spill",
        kind="regression",
        title="A fused softmax spills registers",
        exposed_saving_ns=range_of(180_000, 0.5),
        evidence=(
            Evidence(
                kind="resources",
                text="255 registers and 2,640 bytes spilled per thread",
                values={"registers": 255, "spill_store_bytes": 2640},
            ),
        ),
        members=(Member(name="triton_per_fused__softmax_3", count=4, time_ns=720_000),),
        provenance="exact",
        action="Split before the cast, or use 8 warps.",
        locations=(Location(module="model.layers.*.self_attn", file="attention.py", line=118),),
    )
    return (launch, spill, norm)


def report_of(plan: FusionPlan, title: str, target: str) -> Report:
    """The report of the run."""
    definition = "Median of the step without a profiler attached, in the same process."
    metrics = {
        "step_ns": Metric(
            value=6_420_000,
            unit="ns",
            provenance="measured",
            definition=definition,
            per_step=(6_410_000, 6_420_000, 6_455_000),
        ),
        "gpu_busy_per_step_ns": Metric(
            value=5_960_000,
            unit="ns",
            provenance="measured",
            definition="Union of kernel intervals per device.",
        ),
        "gpu_idle_fraction": Metric(
            value=0.072,
            unit="fraction",
            provenance="measured",
            definition="1 - (union of kernels, copies, memsets) / span.",
        ),
        "kernel_launches_per_step": Metric(
            value=214,
            unit="count",
            provenance="measured",
            definition="Launch API calls and graph launches, each counted once.",
        ),
        "dram_bytes": Metric(
            value=5_100_000_000,
            unit="bytes",
            provenance="modelled",
            definition="Bytes moved to and from device memory, from tensor sizes.",
        ),
        "fusion_coverage_time": Metric(
            value=None,
            unit="fraction",
            provenance="unknown",
            definition="Share of fusible time whose kernel implements two or more ops.",
        ),
    }
    kernels = (
        KernelRow(
            name="sm90_xmma_gemm_bf16bf16_bf16f32",
            role="gemm",
            library="cublas",
            count=28,
            time_ns=3_100_000,
        ),
        KernelRow(
            name="vectorized_elementwise_kernel<4, mul>",
            role="pointwise",
            library="aten",
            count=52,
            time_ns=1_100_000,
            registers_per_thread=32,
        ),
        KernelRow(
            name="reduce_kernel<512, 1, MeanOps>",
            role="reduction",
            library="aten",
            count=9,
            time_ns=310_000,
            registers_per_thread=40,
        ),
    )
    return Report(
        tool=Tool(name="fusion-advisor", version="0.1.0"),
        created=CREATED,
        sources=(Source(kind="capture"), Source(kind="kineto", path="trace.json.gz")),
        workload=Workload(
            target=target,
            mode="eager",
            shapes=("2x2048",),
            gpu="NVIDIA H200",
            versions={"torch": "2.13.0", "triton": "3.7.1"},
        ),
        hardware=Hardware(
            name="NVIDIA H200",
            key="h200",
            compute_capability="9.0",
            multiprocessors=132,
            dram_bandwidth_bytes_per_s=4_200_000_000_000,
            dram_bandwidth_provenance="measured",
            present=True,
        ),
        metrics=metrics,
        kernels=kernels,
        findings=findings(plan, title),
        recommended=Recommended(
            order=("row-program-1", "register-spill-1"), set_saving_ns=range_of(1_500_000)
        ),
        plans=(
            PlanSummary(
                id=plan.id,
                title=plan.title,
                rule=plan.rule,
                family=plan.family,
                phase=plan.phase,
                sites=len(plan.sites),
                saving_ns=range_of(1_358_000),
            ),
        ),
        warnings=(
            Warning_(code="launch-outside-window", message="kernels without a launch", count=3),
        ),
    )
