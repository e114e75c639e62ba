"""Small programs for horizontal plans: norms, softmaxes and pointwise chains of any sizes."""

from __future__ import annotations

from advisor.model.joining import join
from advisor.model.plan import FusionPlan, plan_id
from tests.builders.plan import PlanBuilder


def rms_norm(rows: int, columns: int, dtype: str = "float32") -> FusionPlan:
    """x * rsqrt(mean(x²) + ε) * w, rounded to its dtype."""
    p = PlanBuilder()
    x, w = p.input(dtype), p.input(dtype, (False, True))
    wide = p.cast(x, "float32") if dtype != "float32" else x
    scale = p.op("rsqrt", p.op("add", p.op("mean", p.op("mul", wide, wide)), 1e-6))
    scaled = p.op("mul", p.op("mul", wide, scale), w, dtype="float32")
    out = p.cast(scaled, dtype) if dtype != "float32" else scaled
    return p.plan(out, sizes=(rows,), columns=columns, title="RMS norm")


def softmax(rows: int, columns: int) -> FusionPlan:
    """exp(x - max) over its sum."""
    p = PlanBuilder()
    x = p.input()
    powers = p.op("exp", p.op("sub", x, p.op("amax", x)))
    return p.plan(
        p.op("div", powers, p.op("sum", powers)), sizes=(rows,), columns=columns, title="softmax"
    )


def bias_act(rows: int, columns: int) -> FusionPlan:
    """relu(x + b) and its square: two outputs."""
    p = PlanBuilder()
    x, b = p.input(), p.input("float32", (False, True))
    y = p.op("relu", p.op("add", x, b))
    return p.plan(y, p.op("mul", y, y), sizes=(rows,), columns=columns, title="bias + ReLU")


def flat(rows: int, columns: int) -> FusionPlan:
    """x + 0.5 y over one run of elements, as many as rows × columns."""
    p = PlanBuilder()
    x, y = p.input(), p.input()
    return p.plan(
        p.op("add", x, p.op("mul", y, 0.5)), sizes=(1,), columns=rows * columns, title="sum"
    )


KINDS = (rms_norm, softmax, bias_act, flat)


def group(*programs: FusionPlan) -> FusionPlan:
    """The checked horizontal plan of some programs, named by what it holds."""
    made = join(programs, "0" * 16, "several programs")
    identity = plan_id("test", "", made.signature())
    found = join(programs, identity, made.title)
    found.check()
    return found
