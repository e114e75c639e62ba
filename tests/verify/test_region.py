"""A plan is compared with the region it replaces: what differs in anything but rounding is told."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import torch

from advisor.model.plan import FusionPlan, PlanOp, Site
from advisor.verify.region import region_disagreement
from collectors.live.fx_graph import Lowered
from tests.builders import captured as models


class LogNorm(torch.nn.Module):
    """NaN in every row for inputs around zero; ordinary numbers for positive ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logs = torch.log(x)
        return logs - 1.5 * logs.mean(-1, keepdim=True)


class Masked(torch.nn.Module):
    """Some outputs are minus infinity whatever the inputs are."""

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        shifted = x * 3.0 - x.amax(-1, keepdim=True)
        return torch.where(keep, shifted, float("-inf"))


class NeverFinite(torch.nn.Module):
    """Nothing can be learned from running it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(-torch.abs(x) - 1.0) + x.sum(-1, keepdim=True)


class Mean(torch.nn.Module):
    """The mean that comes with a variance is a result of its own."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        variance, mean = torch.var_mean(x, -1, keepdim=True)
        return x * torch.rsqrt(variance + 1e-5), -mean


class Counted(torch.nn.Module):
    """Finite only where an integer input is not zero."""

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) / count


MODELS: dict[str, Callable[[], tuple[Callable[..., object], tuple[torch.Tensor, ...]]]] = {
    "norm": lambda: (models.RMSNorm(64), (torch.randn(4, 6, 64),)),
    "narrow norm": lambda: (models.RMSNorm(64).bfloat16(), (torch.randn(6, 64).bfloat16(),)),
    "softcap": lambda: (models.SoftCap(), (torch.randn(2, 3, 8, 40), torch.randn(2, 1, 8, 40))),
    "logs": lambda: (LogNorm(), (torch.rand(6, 32),)),
    "masked": lambda: (Masked(), (torch.randn(6, 32), torch.rand(6, 32) > 0.5)),
    "turned": lambda: (models.RMSNorm(64), (torch.randn(64, 6, 5).permute(2, 1, 0),)),
}


@pytest.fixture(scope="module", params=MODELS)
def found(request: pytest.FixtureRequest) -> tuple[str, Lowered, FusionPlan]:
    module, inputs = MODELS[request.param]()
    lowered = models.captured(module, *inputs).graphs[0].lowered
    (plan,) = models.plans_of(lowered)
    return request.param, lowered, plan


def check(lowered: Lowered, plan: FusionPlan, site: Site | None = None) -> str | None:
    plan.check()
    return region_disagreement(plan, site or plan.sites[0], lowered.fx_aliases, models.CPU)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [(Mean(), (torch.randn(6, 32),)), (Counted(), (torch.randn(6, 32), torch.tensor(3)))],
    ids=["mean", "counted"],
)
def test_what_only_infinities_or_zeros_tell_apart_is_no_difference(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
) -> None:
    lowered = models.captured(module, *inputs).graphs[0].lowered
    plans = models.plans_of(lowered)
    assert plans
    assert [check(lowered, plan) for plan in plans] == [None] * len(plans)


def with_op(plan: FusionPlan, index: int, **changes: object) -> FusionPlan:
    changed = msgspec.structs.replace(plan.ops[index], **changes)  # type: ignore[arg-type]
    ops = (*plan.ops[:index], changed, *plan.ops[index + 1 :])
    return msgspec.structs.replace(plan, ops=ops)


def constants(plan: FusionPlan) -> list[tuple[int, int, float]]:
    return [
        (index, position, arg)
        for index, op in enumerate(plan.ops)
        for position, arg in enumerate(op.args)
        if isinstance(arg, float) and arg != 0
    ]


def test_the_right_plan_has_nothing_against_it(found: tuple[str, Lowered, FusionPlan]) -> None:
    _, lowered, plan = found
    assert check(lowered, plan) is None


@pytest.mark.parametrize("factor", [1.01, 1 + 1e-6])
def test_a_wrong_constant(found: tuple[str, Lowered, FusionPlan], factor: float) -> None:
    name, lowered, plan = found
    places = constants(plan)
    assert places, name
    for index, position, value in places:
        args = list(plan.ops[index].args)
        args[position] = value * factor
        reason = check(lowered, with_op(plan, index, args=tuple(args)))
        assert reason is not None, f"{plan.ops[index].op} {value}"
        assert "differs from the region it replaces" in reason


def test_swapped_operands(found: tuple[str, Lowered, FusionPlan]) -> None:
    name, lowered, plan = found
    for index, op in enumerate(plan.ops):
        if op.op in ("sub", "div"):
            wrong = with_op(plan, index, args=op.args[::-1])
            assert check(lowered, wrong) is not None, name


def skippable(plan: FusionPlan) -> list[tuple[PlanOp, str]]:
    """Ops that can be left out: a value of the same space and dtype takes their place."""
    known = {op.name: op for op in plan.ops}
    found = []
    for op in plan.ops:
        earlier = [known[str(arg)] for arg in op.args if arg in known]
        alike = [e.name for e in earlier if (e.space, e.dtype) == (op.space, op.dtype)]
        found += [(op, name) for name in alike if op.op != "cast"]
    return found


def test_a_missing_op(found: tuple[str, Lowered, FusionPlan]) -> None:
    name, lowered, plan = found
    tried = 0
    for op, earlier in skippable(plan):
        ops = tuple(
            msgspec.structs.replace(o, args=tuple(earlier if a == op.name else a for a in o.args))
            for o in plan.ops
        )
        if ops == plan.ops:
            continue
        if name == "softcap" and op.op == "sub":
            continue  # softmax without its maximum is the same function, where nothing overflows
        tried += 1
        assert check(lowered, msgspec.structs.replace(plan, ops=ops)) is not None, f"{name} {op.op}"
    assert tried or name in ("logs", "masked")


def test_inputs_bound_to_each_other(found: tuple[str, Lowered, FusionPlan]) -> None:
    _, lowered, plan = found
    site = plan.sites[0]
    if len(site.inputs) < 2:
        return
    turned = msgspec.structs.replace(site, inputs=site.inputs[::-1])
    assert check(lowered, plan, turned) is not None


def test_an_input_read_in_another_order() -> None:
    module, inputs = MODELS["turned"]()
    lowered = models.captured(module, *inputs).graphs[0].lowered
    (plan,) = models.plans_of(lowered)
    site = plan.sites[0]
    assert check(lowered, plan) is None
    index = next(i for i, item in enumerate(plan.inputs) if not item.dense)
    contiguous = list(site.input_strides)
    contiguous[index] = tuple(torch.empty(*site.row_sizes, site.columns).stride())
    wrong = msgspec.structs.replace(site, input_strides=tuple(contiguous))
    assert check(lowered, plan, wrong) is not None


def test_another_dtype(found: tuple[str, Lowered, FusionPlan]) -> None:
    _, lowered, plan = found
    output = plan.outputs[0]
    index = int(output.value[1:])
    other = "float16" if output.dtype == "float32" else "float32"
    op = plan.ops[index]
    attributes = {"dtype": other} if op.op == "cast" else op.attributes
    wrong = with_op(plan, index, dtype=other, attributes=attributes)
    rest = (msgspec.structs.replace(output, dtype=other), *plan.outputs[1:])
    reason = check(lowered, msgspec.structs.replace(wrong, outputs=rest))
    assert reason is not None
    assert f"not {other}" in reason


def test_a_region_that_gives_no_number_cannot_be_judged() -> None:
    lowered = models.captured(NeverFinite(), torch.randn(6, 32)).graphs[0].lowered
    (plan,) = models.plans_of(lowered)
    assert "cannot be compared" in (check(lowered, plan) or "")


def test_a_value_the_plan_does_not_know_of(found: tuple[str, Lowered, FusionPlan]) -> None:
    _, lowered, plan = found
    site = plan.sites[0]
    gone = msgspec.structs.replace(site, inputs=("%gone", *site.inputs[1:]))
    reason = "the graph has no %gone: the workload has changed, profile again"
    assert check(lowered, plan, gone) == reason
    other = msgspec.structs.replace(site, inputs=(site.outputs[0],) * len(site.inputs))
    assert check(lowered, plan, other) is not None


def test_forward_and_backward_of_a_training_step() -> None:
    graphs = models.captured_training(models.Chain(), torch.randn(6, 48, requires_grad=True)).graphs
    assert [item.lowered.graph.phase for item in graphs] == ["forward", "backward"]
    checked = 0
    for item in graphs:
        for plan in models.plans_of(item.lowered):
            for site in plan.sites:
                assert check(item.lowered, plan, site) is None
                checked += 1
    assert checked >= 4
