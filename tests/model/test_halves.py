"""Plans cut in two compute what they computed in one, at every place where they can be cut."""

from __future__ import annotations

import pytest
import torch

from advisor.model.halves import halves
from advisor.model.plan import FusionPlan
from advisor.verify.interpret import evaluate
from advisor.verify.timing import site_inputs
from tests.builders.plan import PlanBuilder, rms_norm
from tests.builders.quantised import AXES, both_orders

CPU = torch.device("cpu")


def _softmax_gate() -> FusionPlan:
    """Rows with two reductions, a weight per column, and two outputs."""
    build = PlanBuilder()
    x, gate = build.input("float32"), build.input("float32")
    weight = build.input("float32", (False, True))
    scaled = build.op("mul", weight, 2.0)
    y = build.op("mul", x, scaled)
    top = build.op("amax", y)
    e = build.op("exp", build.op("sub", y, top))
    p = build.op("div", e, build.op("sum", e))
    return build.plan(build.op("mul", p, gate), build.op("mul", p, scaled), top, columns=24)


def _sums_over_rows() -> FusionPlan:
    """A gradient with its sums over the rows."""
    build = PlanBuilder()
    dy, x = build.input("float32"), build.input("float32")
    g = build.op("mul", dy, build.op("sigmoid", x))
    total = build.over_rows("sum", g)
    return build.plan(g, build.op("mul", total, 0.5), columns=16)


def _stored_across() -> FusionPlan:
    """An output in another order, which the rest does not write."""
    build = PlanBuilder()
    power = build.op("exp", build.input("float32"))
    share = build.op("div", power, build.op("sum", power))
    return build.plan(power, share, columns=16, strided=(power,), unit_stride=False)


@pytest.mark.parametrize(
    "plan",
    [rms_norm(columns=32), _softmax_gate(), _sums_over_rows(), _stored_across(),
     *(both_orders(form, 64, 96, block=32) for form in AXES)],
    ids=lambda plan: plan.title,
)  # fmt: skip
def test_both_halves_together_are_the_plan(plan: FusionPlan) -> None:
    torch.manual_seed(0)
    site = plan.sites[0]
    inputs = site_inputs(plan, site, CPU)
    wanted = dict(zip(site.outputs, evaluate(plan, inputs, "exact"), strict=True))
    cut = 0
    for count in range(1, len(plan.ops)):
        found = halves(plan, count)
        if found is None:
            continue
        cut += 1
        held = dict(zip(site.inputs, inputs, strict=True))
        for half in found:
            own = half.sites[0]
            results = evaluate(half, [held[name] for name in own.inputs], "exact")
            held |= dict(zip(own.outputs, results, strict=True))
        for name, value in wanted.items():
            torch.testing.assert_close(held[name], value)
        # Nothing is computed twice but what belongs to the columns alone.
        again = len(found[0].ops) + len(found[1].ops) - len(plan.ops)
        assert again <= sum(op.space in ("column", "scalar") for op in plan.ops[:count])
    assert cut


def test_strides_of_what_passes_are_those_of_a_tensor_without_gaps() -> None:
    found = halves(_softmax_gate(), 2)
    assert found is not None
    first, rest = found
    passed = dict(zip(rest.sites[0].inputs, rest.sites[0].input_strides, strict=True))
    assert first.sites[0].outputs == ("%v1",)
    assert passed["%v1"] == (24, 1)
    assert halves(_softmax_gate(), 0) is None
    assert halves(_softmax_gate(), 99) is None
