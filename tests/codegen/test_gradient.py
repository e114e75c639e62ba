"""Derived gradients equal autograd's: every op of the table, recorded plans, random programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from advisor.codegen import render
from advisor.codegen.gradient import gradient
from advisor.errors import IllegalFusionError
from advisor.model.base import load
from advisor.model.configs import default_config
from advisor.model.optable import OPS
from advisor.model.plan import FusionPlan
from advisor.verify.interpret import evaluate
from tests.builders.plan import PlanBuilder, rms_norm
from tests.codegen.plans import layer_norm, log_softmax, loss_gradient, rows_only, strided
from tests.codegen.programs import Program, programs

RUNS = Path(__file__).parents[2] / "sample_traces" / "runs"
DIFFERENTIABLE = [
    op.name for op in OPS if op.kind in ("pointwise", "reduction") and op.result == "promote"
]


def fitted(found: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    axes = [n for n, size in enumerate(like.shape) if size == 1 and found.shape[n] != 1]
    return (found.sum(axes, keepdim=True) if axes else found).expand(like.shape)


def compare(plan: FusionPlan, inputs: Sequence[torch.Tensor]) -> None:
    """Both gradients in float64, for random weights of the outputs."""
    torch.manual_seed(1)
    wide = [x.double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    outputs = evaluate(plan, wide, "exact")
    full = torch.broadcast_shapes(*(x.shape for x in inputs))
    weights = []
    for value, output in zip(outputs, plan.outputs, strict=True):
        shape = full if output.space == "tile" else (*full[:-1], 1)
        weights.append(torch.randn(shape, dtype=torch.float64))
        assert value.expand(shape).shape == shape
    differentiable = [
        (v.expand(w.shape), w) for v, w in zip(outputs, weights, strict=True) if v.requires_grad
    ]
    leaves = [x for x in wide if x.requires_grad]
    values, given_weights = zip(*differentiable, strict=True)
    theirs = torch.autograd.grad(values, leaves, given_weights, allow_unused=True)
    expected = dict(zip([n for n, x in enumerate(wide) if x.requires_grad], theirs, strict=True))
    found = gradient(plan)
    arguments = [wide[n].detach() for n in found.given] + [weights[n] for n in found.received]
    results = evaluate(found.plan, arguments, "exact")
    written = set()
    for result, places in zip(results, found.written, strict=True):
        for place in places:
            written.add(place)
            truth = expected[place]
            assert truth is not None
            mine = fitted(result, wide[place])
            torch.testing.assert_close(mine, truth, rtol=1e-9, atol=1e-9, equal_nan=True)
    absent = [n for n, truth in expected.items() if n not in written and truth is not None]
    assert all(not bool(expected[n].any()) for n in absent), absent


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_every_op_of_the_table(name: str) -> None:
    spec = next(op for op in OPS if op.name == name)
    make = PlanBuilder()
    args: list[str | float] = [make.input() for _ in range(spec.arity)]
    if name == "where":
        args[0] = make.op("gt", args[0], 1.0)
    attributes = {"correction": 1.0} if name == "var" else {}
    outputs = [make.op(name, *args, **attributes)]
    if spec.arity == 2:
        outputs += [make.op(name, args[0], 0.5), make.op(name, 0.5, args[1])]
        outputs.append(make.op(name, args[0], 2.0))
    torch.manual_seed(0)
    # Positive, and away from where a function is not smooth.
    values = [torch.rand(4, 6).double() + 0.2 for _ in range(spec.arity)]
    plan = make.plan(*outputs)
    if name in ("floor", "ceil", "round", "sign"):
        with pytest.raises(IllegalFusionError, match="no output of it varies"):
            gradient(plan)
        return
    compare(plan, values)


@pytest.mark.parametrize(
    "plan",
    [rms_norm(), layer_norm(), layer_norm(written_out=True), log_softmax(factor=0.5, power="exp2"),
     rows_only(), strided(), loss_gradient()],
    ids=lambda plan: plan.title,
)  # fmt: skip
def test_norms_softmaxes_and_losses(plan: FusionPlan) -> None:
    torch.manual_seed(0)
    site = plan.sites[0]
    sizes = (*site.row_sizes, site.columns)
    compare(plan, [_value(item.dtype, item.spans, sizes) for item in plan.inputs])


@pytest.mark.parametrize(
    "path", {p.stem: p for p in sorted(RUNS.glob("*/plans/*.json"))}.values(), ids=lambda p: p.stem
)
def test_recorded_plans(path: Path) -> None:
    plan = load(path, FusionPlan)
    sizes = (*(3 for _ in range(plan.row_axes)), 2048 if plan.sites[0].columns == 2048 else 40)
    torch.manual_seed(0)
    compare(plan, [_value(item.dtype, item.spans, sizes) for item in plan.inputs])
    found, again = gradient(plan).plan, gradient(plan).plan
    assert found.sites[0].columns == plan.sites[0].columns
    scheme = default_config(found, found.sites[0]).scheme
    assert render(found, scheme).text == render(again, scheme).text
    weights = [item for item in plan.inputs if item.spans == (False, True)]
    if weights and plan.sites[0].columns == 2048:
        assert found.late_values(), "the gradient of weights is summed in the same pass"


def _value(dtype: str, spans: tuple[bool, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    shape = [n if span else 1 for n, span in zip(sizes, spans, strict=True)]
    if dtype.startswith(("int", "uint", "bool")):
        return torch.randint(0, 2, shape).to(getattr(torch, dtype))
    return torch.randn(shape, dtype=torch.float64)


@given(programs())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs(program: Program) -> None:
    try:
        gradient(program.plan)
    except IllegalFusionError:
        return
    # Off the grid of narrow types: a bound is hit as by `clamp` here, by halves in `maximum`.
    torch.manual_seed(2)
    compare(
        program.plan,
        [
            x.double() + 1e-4 * torch.randn(x.shape) if x.is_floating_point() else x
            for x in program.inputs()
        ],
    )


def test_what_has_no_gradient_says_so() -> None:
    make = PlanBuilder()
    plan = make.plan(make.op("gt", make.input(), 0.0))
    with pytest.raises(IllegalFusionError, match="no output of it varies"):
        gradient(plan)
    make = PlanBuilder()
    value = make.input()
    for _ in range(300):
        value = make.op("sin", value)
    with pytest.raises(IllegalFusionError, match="its gradient is no plan"):
        gradient(make.plan(value))


def test_a_gradient_does_not_depend_on_where_it_was_found() -> None:
    plan = rms_norm()
    moved = msgspec.structs.replace(plan, sites=())
    assert gradient(plan).plan.signature() == gradient(moved).plan.signature()
