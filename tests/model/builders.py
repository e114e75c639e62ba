"""Small valid records, one function a type; tests change fields with `structs.replace`."""

from __future__ import annotations

from msgspec.structs import replace

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
from advisor.model.forward import (
    Excerpt,
    ForwardConstant,
    Forwards,
    ForwardTensor,
    PlanForwards,
    WholeForward,
)
from advisor.model.graph import Graph, Node, TensorMeta
from advisor.model.guards import Guard, Prediction
from advisor.model.overfusion import KernelCode
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, PlanOutput, Site
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
from advisor.model.run import Progress, RunInfo
from advisor.model.step_record import Launch, StepRecord, Tensor

PLAN_ID = "0123456789abcdef"
CREATED = "2026-01-02T03:04:05.678+00:00"
TOOL = Tool(name="kernel-fusion-advisor", version="0.1.0")


def price(low: int, mid: int, high: int) -> Range:
    return Range(low=low, mid=mid, high=high)


def plan() -> FusionPlan:
    """RMSNorm over [rows, columns]: out = cast(x * rsqrt(mean(x^2) + e)) * weight, two sites."""
    return FusionPlan(
        id=PLAN_ID,
        rule="row-program",
        title="cast · mul · mean · add · rsqrt · mul · cast · mul",
        family="row_program",
        phase="inference",
        row_axes=1,
        inputs=(
            PlanInput(name="in0", dtype="bfloat16", spans=(True, True), dense=True),
            PlanInput(name="in1", dtype="bfloat16", spans=(False, True), dense=True),
        ),
        ops=(
            PlanOp(
                name="v0", op="cast", args=("in0",), dtype="float32", space="tile",
                attributes={"dtype": "float32"},
            ),
            PlanOp(name="v1", op="mul", args=("v0", "v0"), dtype="float32", space="tile"),
            PlanOp(name="v2", op="mean", args=("v1",), dtype="float32", space="row"),
            PlanOp(name="v3", op="add", args=("v2", 1e-6), dtype="float32", space="row"),
            PlanOp(name="v4", op="rsqrt", args=("v3",), dtype="float32", space="row"),
            PlanOp(name="v5", op="mul", args=("v0", "v4"), dtype="float32", space="tile"),
            PlanOp(
                name="v6", op="cast", args=("v5",), dtype="bfloat16", space="tile",
                attributes={"dtype": "bfloat16"},
            ),
            PlanOp(name="v7", op="mul", args=("v6", "in1"), dtype="bfloat16", space="tile"),
        ),
        outputs=(PlanOutput(value="v7", dtype="bfloat16", space="tile"),),
        guards=(Guard(kind="columns_at_most", subject="columns", value=32768),),
        sites=(site("layers.0.norm"), site("layers.1.norm")),
        prediction=Prediction(
            before_ns=price(300, 310, 330),
            after_ns=price(30, 35, 50),
            saving_ns=price(250, 275, 300),
            bytes_before=1 << 20,
            bytes_after=1 << 18,
            basis="copy bandwidth of the GPU table",
            modelled_saving_ns=price(255, 280, 300),
        ),
    )  # fmt: skip


def site(module: str) -> Site:
    return Site(
        graph="g0",
        nodes=("to", "pow", "mean"),
        inputs=("%x", "%w"),
        outputs=("%mul_1",),
        row_sizes=(1024,),
        columns=2048,
        input_strides=((2048, 1), (0, 1)),
        location=Location(module=module, file="model.py", line=12),
    )


def tensor(*shape: int, dtype: str = "float32") -> TensorMeta:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorMeta(dtype=dtype, shape=shape, strides=tuple(reversed(strides)))


def graph() -> Graph:
    """y = x * x summed over the columns, beside an opaque op."""
    return Graph(
        id="g0",
        source="compiled",
        level="post_grad",
        phase="inference",
        nodes=(
            Node(id="x", op="opaque", outputs=(tensor(8, 16),)),
            Node(id="square", op="mul", args=("%x", "%x"), outputs=(tensor(8, 16),)),
            Node(id="total", op="sum", args=("%square",), outputs=(tensor(8),)),
            Node(id="two", op="opaque", args=("%total", 1, None), outputs=(tensor(8), tensor(8))),
        ),
        inputs=("x",),
        outputs=("%total", "%two#1"),
    )


def finding(
    name: str = "row-program.0", *, saving: Range | None = None, kind: str = "opportunity"
) -> Finding:
    evidence = [Evidence(kind="dataflow", text="one producer, one consumer", values={"sites": 2})]
    if saving is None:
        evidence.append(Evidence(kind="cannot_judge", text="needs a clean step time"))
    return Finding(
        id=name,
        rule="row-program",
        kind=kind,  # type: ignore[arg-type]
        title="RMSNorm in 8 pieces",
        exposed_saving_ns=saving,
        evidence=tuple(evidence),
        members=(Member(name="mul", count=6, time_ns=1500), Member(name="mean", count=2)),
        provenance="exact",
        action="apply plan 0123456789abcdef",
        alternatives=(Alternative(route="library", text="torch.nn.RMSNorm"),),
        plan_id=PLAN_ID,
        locations=(
            Location(module="layers.0.norm", file="model.py", line=12),
            Location(module="layers.1.norm"),
        ),
    )


def report(*findings: Finding) -> Report:
    chosen = findings or (finding(saving=price(250_000, 310_000, 380_000)),)
    return Report(
        tool=TOOL,
        created=CREATED,
        sources=(Source(kind="capture"), Source(kind="kineto", path="trace.json.gz", size_bytes=9)),
        workload=Workload(
            target="sample:transformer_block", mode="inference", shapes=("2x512x1024",)
        ),
        hardware=Hardware(name="NVIDIA H200", key="h200", compute_capability="9.0", present=True),
        metrics={
            "step_ns": Metric(
                value=10_400_000, unit="ns", provenance="measured", definition="clean step, median"
            ),
            "gpu_idle_fraction": Metric(
                value=None, unit="fraction", provenance="unknown", definition="1 - busy / span"
            ),
        },
        kernels=(
            KernelRow(name="mul_kernel", role="pointwise", library="aten", count=6.0, time_ns=1500),
        ),
        findings=chosen,
        recommended=Recommended(
            order=tuple(f.id for f in chosen if f.exposed_saving_ns is not None),
            set_saving_ns=price(200_000, 300_000, 400_000),
        ),
        plans=(
            PlanSummary(
                id=PLAN_ID, title="RMSNorm pieces", rule="row-program", family="row_program",
                phase="inference", sites=2,
            ),
        ),
        warnings=(Warning_(code="clipped", message="events outside the steps", count=3),),
    )  # fmt: skip


def captured(*findings: Finding) -> Report:
    """The same with the fingerprint of a captured graph: two of these are surely of one work."""
    made = report(*findings)
    return replace(made, workload=replace(made.workload, graph_hash="e9925f2e008c99f3"))


def timing(median: int) -> Timing:
    return Timing(median_ns=median, low_ns=median - 5, high_ns=median + 5, samples=20)


def comparison(before: int, after: int, *, spread: int = 10) -> Comparison:
    gain = before - after
    return Comparison(
        before=timing(before),
        after=timing(after),
        gain_low_ns=gain - spread,
        gain_mid_ns=gain,
        gain_high_ns=gain + spread,
        clock="step",
    )


def applied() -> Applied:
    return Applied(
        created=CREATED,
        device="NVIDIA H200",
        versions={"torch": "2.13.0"},
        plans=(
            PlanVerdict(
                plan_id=PLAN_ID,
                title="RMSNorm pieces",
                verdict="kept",
                reason="the gain is above noise",
                sites_expected=2,
                sites_swapped=2,
                predicted_ns=price(250_000, 275_000, 300_000),
                modelled_ns=price(255_000, 280_000, 300_000),
                measured=comparison(600_000, 330_000),
                numerics=Numerics(
                    executed_on="gpu",
                    passed=True,
                    cases=(
                        NumericCase(
                            name="plan shape", passed=True, max_error_ulps=1.0, eager_error_ulps=2.0
                        ),
                        NumericCase(name="all zero rows", passed=True),
                    ),
                ),
                resources=(
                    KernelResources(
                        gpu="h200", config="4 warps", registers=48, spill_store_bytes=0,
                        occupancy=0.625, limiter="registers",
                    ),
                    KernelResources(gpu="mi300x", config="4 warps", error="timed out after 60 s"),
                ),
                timings=(
                    KernelTiming(
                        shape="4096x2048", config="4 warps", bytes=1 << 25, kernel=timing(8_000),
                        eager=timing(90_000), copy_bandwidth_fraction=0.93,
                    ),
                ),
            ),
        ),
        set=SetVerdict(
            verdict="kept",
            reason="faster than eager beyond noise, not slower than the compiler",
            plans=(PLAN_ID,),
            against_eager=comparison(10_400_000, 5_000_000),
            against_compiled=comparison(5_000_000, 5_000_004),
            outputs_agree=True,
            output_error=0.001,
        ),
    )  # fmt: skip


def run_info() -> RunInfo:
    return RunInfo(
        id="20260102-030405-transformer_block-ab12",
        created=CREATED,
        target="sample:transformer_block",
        arguments=("--out", "runs/demo"),
        working_directory="/home/someone",
        mode="inference",
        gpu=None,
        gpu_present=False,
        seed=0,
        versions={"torch": "2.13.0"},
    )


def progress() -> Progress:
    return Progress(time=CREATED, job="0" * 16, stage="capture", state="running", value=187)


def forwards() -> Forwards:
    """One plan that is the forward of a norm, and one that is none."""
    excerpt = Excerpt(first=3, lines=("    def forward(self, x):", "        return x"), at=4)
    norm = WholeForward(
        module="layers.0.norm",
        type_name="Norm",
        file="model.py",
        inputs=(ForwardTensor(holder="argument", name="x", shape=(2, 8), dtype="float32"),),
        constants=(ForwardConstant(holder="attribute", name="eps", value=1e-6),),
        output=0,
        shape=(2, 8),
        exact=False,
        arguments=("x",),
        owner="Norm",
        variable="fused",
        indent=8,
        body=excerpt,
        imports=excerpt,
    )
    return Forwards(
        plans=(
            PlanForwards(plan_id="0" * 16, forwards=(norm,)),
            PlanForwards(plan_id="1" * 16, reason="it is a loop"),
        )
    )


def step_record() -> StepRecord:
    """A step of one kernel."""
    kernel = Launch(
        name="norm", role="norm", library="triton", op="my::norm", stream=7, grid=(16, 1, 1),
        operands=(Tensor(shape=(16, 64), dtype="float"),), threads=128, registers=40,
        time_ns=2_000, times_ns=(2_000, 2_100),
    )  # fmt: skip
    code = KernelCode(name="norm", constants={"BLOCK": 64}, signature={"x": "*fp32"}, num_warps=4)
    return StepRecord(
        launches=(kernel,),
        busy_ns=(2_000, 2_100),
        span_ns=(2_000, 2_100),
        gpu="h200",
        codes=(code,),
    )
