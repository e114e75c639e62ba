"""The plan of a realistic run: the RMSNorm that Llama writes in pieces, at nine sites."""

from __future__ import annotations

from advisor.model.base import Location, Range
from advisor.model.guards import Guard, Prediction
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, PlanOutput, Site, plan_id

CREATED = "2026-11-29T17:30:00+00:00"
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
