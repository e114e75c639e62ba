"""A realistic run on disk: two opportunities, a regression, a plan with nine sites, its proof."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from advisor.model.applied import (
    Applied,
    Comparison,
    KernelResources,
    KernelTiming,
    NumericCase,
    Numerics,
    PlanVerdict,
    SetVerdict,
    Timing,
)
from advisor.model.base import Location, Range, Warning_
from advisor.model.findings import Alternative, Evidence, Finding, Member
from advisor.model.guards import Guard, Prediction
from advisor.model.plan import (
    FusionPlan,
    PlanInput,
    PlanOp,
    PlanOutput,
    Site,
    plan_id,
)
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
from advisor.model.run import RunInfo
from advisor.store import RunDirectory, RunStore, sign

CREATED = "2026-11-29T17:30:00+00:00"
TARGET = "zoo_models.py:llama_prefill"
MODULES = (
    *(
        f"model.layers.{layer}.{name}"
        for layer in range(4)
        for name in ("input_layernorm", "post_attention_layernorm")
    ),
    "model.norm",
)
KERNEL = '''"""y = weight * x / sqrt(mean(x^2) + eps), rows in registers."""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(in0, in1, out0, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(in0 + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x * x, axis=0) / columns
    y = (x * tl.rsqrt(mean + 1e-05)).to(tl.bfloat16)
    weight = tl.load(in1 + column, mask=inside)
    tl.store(out0 + row * columns + column, weight * y, mask=inside)
'''


def range_of(mid: int, spread: float = 0.2) -> Range:
    """An interval around `mid`."""
    return Range(low=round(mid * (1 - spread)), mid=mid, high=round(mid * (1 + spread)))


def timing(median: int, samples: int = 50) -> Timing:
    """A narrow sample around `median`."""
    return Timing(
        median_ns=median,
        low_ns=round(median * 0.99),
        high_ns=round(median * 1.01),
        samples=samples,
    )


def norm_plan() -> FusionPlan:
    """The RMSNorm that Llama writes in pieces, as a row program with nine sites."""
    tile, ops = (
        (True, True, True),
        (
            PlanOp(
                name="v0",
                op="cast",
                args=("in0",),
                dtype="float32",
                space="tile",
                attributes={"dtype": "float32"},
            ),
            PlanOp(name="v1", op="mul", args=("v0", "v0"), dtype="float32", space="tile"),
            PlanOp(name="v2", op="mean", args=("v1",), dtype="float32", space="row"),
            PlanOp(name="v3", op="add", args=("v2", 1e-05), dtype="float32", space="row"),
            PlanOp(name="v4", op="rsqrt", args=("v3",), dtype="float32", space="row"),
            PlanOp(name="v5", op="mul", args=("v0", "v4"), dtype="float32", space="tile"),
            PlanOp(
                name="v6",
                op="cast",
                args=("v5",),
                dtype="bfloat16",
                space="tile",
                attributes={"dtype": "bfloat16"},
            ),
            PlanOp(name="v7", op="mul", args=("in1", "v6"), dtype="bfloat16", space="tile"),
        ),
    )
    sites = tuple(
        Site(
            graph="forward",
            nodes=(f"pow_{i}", f"mean_{i}", f"add_{i}", f"rsqrt_{i}", f"mul_{i}"),
            inputs=(f"%hidden_{i}", f"%weight_{i}"),
            outputs=(f"%norm_{i}",),
            row_sizes=(2, 2048),
            columns=2048,
            input_strides=((2048 * 2048, 2048, 1), (0, 0, 1)),
            location=Location(module=module, file="modeling_llama.py", line=64),
        )
        for i, module in enumerate(MODULES)
    )
    plan = FusionPlan(
        id="0" * 16,
        rule="row-program",
        title="pow, mean, add, rsqrt, mul, cast, mul",
        family="row_program",
        phase="inference",
        row_axes=2,
        inputs=(
            PlanInput(name="in0", dtype="bfloat16", spans=tile, dense=True),
            PlanInput(name="in1", dtype="bfloat16", spans=(False, False, True), dense=True),
        ),
        ops=ops,
        outputs=(PlanOutput(value="v7", dtype="bfloat16", space="tile"),),
        guards=(Guard(kind="columns_at_most", subject="columns", value=32768),),
        sites=sites,
        prediction=Prediction(
            before_ns=range_of(1_480_000),
            after_ns=range_of(122_000),
            saving_ns=range_of(1_358_000),
            bytes_before=2_300_000_000,
            bytes_after=302_000_000,
            basis="calibrated copy curve of this GPU",
        ),
    )
    identity = plan_id(plan.rule, "model.layers.*", plan.signature())
    return FusionPlan(**{f: getattr(plan, f) for f in plan.__struct_fields__} | {"id": identity})


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


def comparison(before: int, after: int) -> Comparison:
    """An interleaved comparison with a clear gain."""
    gain = before - after
    return Comparison(
        before=timing(before),
        after=timing(after),
        gain_low_ns=round(gain * 0.95),
        gain_mid_ns=gain,
        gain_high_ns=round(gain * 1.05),
        clock="step",
    )


def applied_of(plan: FusionPlan) -> Applied:
    """The plan was kept, with numerics, resources on three GPUs and timings."""
    resources = (
        KernelResources(
            gpu="h200",
            config="block 2048, warps 8",
            registers=32,
            spill_store_bytes=0,
            spill_load_bytes=0,
            local_bytes_per_thread=0,
            shared_bytes=64,
            threads=256,
            occupancy=1.0,
            limiter="warps",
        ),
        KernelResources(
            gpu="a100",
            config="block 2048, warps 8",
            registers=34,
            spill_store_bytes=0,
            spill_load_bytes=0,
            local_bytes_per_thread=0,
            shared_bytes=64,
            threads=256,
            occupancy=0.75,
            limiter="registers",
        ),
        KernelResources(
            gpu="mi300x", config="block 2048, warps 4", error="the compiler timed out after 30 s"
        ),
    )
    verdict = PlanVerdict(
        plan_id=plan.id,
        title=plan.title,
        verdict="kept",
        reason="the region is faster by 1.29 ms, its lower bound 1.23 ms is above noise",
        sites_expected=9,
        sites_swapped=9,
        predicted_ns=range_of(1_358_000),
        measured=comparison(1_432_000, 138_000),
        numerics=Numerics(
            executed_on="gpu",
            passed=True,
            cases=(
                NumericCase(
                    name="plan shape", passed=True, max_error_ulps=0.5, eager_error_ulps=1.0
                ),
                NumericCase(
                    name="adversarial: inf and NaN",
                    passed=True,
                    max_error_ulps=1.0,
                    eager_error_ulps=1.0,
                ),
            ),
        ),
        resources=resources,
        timings=(
            KernelTiming(
                shape="4096 x 2048",
                config="block 2048, warps 8",
                bytes=33_558_528,
                kernel=timing(13_600),
                eager=timing(164_000),
                inductor=timing(14_900),
                copy=timing(12_700),
                copy_bandwidth_fraction=0.934,
                launch_ns=6_100,
            ),
        ),
    )
    return Applied(
        created=CREATED,
        device="NVIDIA H200",
        versions={"torch": "2.13.0", "triton": "3.7.1"},
        plans=(verdict,),
        set=SetVerdict(
            verdict="kept",
            reason="the step is faster beyond noise and its outputs agree",
            plans=(plan.id,),
            against_eager=comparison(6_420_000, 5_130_000),
            against_compiled=comparison(5_210_000, 5_130_000),
            outputs_agree=True,
        ),
    )


def info_of(run: RunDirectory, target: str) -> RunInfo:
    """How the run was made, not yet signed."""
    return RunInfo(
        id=run.id,
        created=CREATED,
        target=target,
        arguments=("profile", target),
        working_directory=str(Path.cwd()),
        mode="eager",
        gpu="h200",
        gpu_present=True,
        seed=0,
        versions={"torch": "2.13.0"},
    )


def sample_run(
    store: RunStore,
    *,
    applied: bool = True,
    signed: bool = True,
    title: str = "RMS norm written in pieces",
    target: str = TARGET,
    when: datetime | None = None,
) -> RunDirectory:
    """Write a whole run into the store."""
    plan = norm_plan()
    run = store.create("llama_prefill", when=when)
    run.write_plan(plan)
    run.write_report(report_of(plan, title, target))
    run.write_info(info_of(run, target))
    if signed:
        sign(run)
    if applied:
        run.write_kernel(plan.id, KERNEL)
        run.write_applied(applied_of(plan))
    return run
