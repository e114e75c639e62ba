"""Inputs that count: kernels compute them, whatever lies in the memory that is given for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

pytest.importorskip("triton", reason="kernels need triton")

import torch
from torch.nn import functional

from advisor.codegen import render
from advisor.codegen.families import reference
from advisor.errors import InvalidRecordError
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.model.site_work import site_bytes
from advisor.pipeline.graph_programs import programs_of
from advisor.verify.interpret import evaluate
from advisor.verify.region import region_disagreement
from analyzers.gemm_advice import title_of
from analyzers.program_notes import walk
from analyzers.row_plans import cluster, plan_of
from tests.builders.captured import CPU, captured, captured_training
from tests.builders.plan import PlanBuilder
from tests.codegen.interpreter import Interpreter
from tests.codegen.test_schemes import run

ROWS, COLUMNS = 5, 70


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    with Interpreter(tmp_path_factory.mktemp("interpreter")) as child:
        yield child


def hits(*, reduce: bool = True) -> FusionPlan:
    """Where columns 3, 5, 7, … meet twice a row's number: x there, over the sum of all of them."""
    make = PlanBuilder()
    x = make.input()
    column = make.input("int64", (False, True), counts=(3, 2))
    row = make.input("int64", (True, False), counts=(0, 1))
    met = make.op("eq", column, make.op("mul", row, 11))
    taken = make.op("where", met, x, make.op("mul", x, 0.25))
    last = make.op("div", taken, make.op("sum", taken)) if reduce else taken
    return make.plan(last, sizes=(ROWS,), columns=COLUMNS)


def inputs() -> list[torch.Tensor]:
    """The counting ones hold something else."""
    wrong = [torch.full((1, COLUMNS), 9), torch.full((ROWS, 1), 9)]
    return [torch.rand(ROWS, COLUMNS) + 0.5, *wrong]


def wanted(x: torch.Tensor, *, reduce: bool) -> torch.Tensor:
    column, row = torch.arange(3, 3 + 2 * COLUMNS, 2)[None, :], torch.arange(ROWS)[:, None]
    taken = torch.where(column == 11 * row, x, 0.25 * x)
    return taken / taken.sum(-1, keepdim=True) if reduce else taken


@pytest.mark.parametrize("scheme", ["registers", "looped", "blocks"])
def test_kernels_and_references_count(scheme: Scheme, interpreter: Interpreter) -> None:
    reduce = scheme != "blocks"
    plan, given = hits(reduce=reduce), inputs()
    block = None if scheme == "registers" else 32
    config = LaunchConfig(scheme=scheme, block_rows=2, block_columns=block)
    (got,) = run(interpreter, plan, given, config)
    truth = wanted(given[0], reduce=reduce)
    torch.testing.assert_close(got, truth)
    for precision in ("native", "exact"):
        (told,) = evaluate(plan, given, precision)  # type: ignore[arg-type]
        torch.testing.assert_close(told.float(), truth)
    space: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {}
    exec("import torch\n" + reference(plan), space)
    torch.testing.assert_close(space["reference"](*given)[0], truth)


def test_what_is_not_read_is_no_traffic_and_another_kernel() -> None:
    plan = hits()
    assert site_bytes(plan, plan.sites[0]) == 2 * 4 * ROWS * COLUMNS
    read = tuple(msgspec.structs.replace(item, counts=None) for item in plan.inputs)
    assert msgspec.structs.replace(plan, inputs=read).signature() != plan.signature()
    assert "counts" not in msgspec.structs.replace(plan, inputs=read).signature()


def test_nobody_is_told_that_it_is_read() -> None:
    plan = hits()
    assert "in1: [1, columns] int64, counted from 3 by 2, not read\n" in render(plan).text
    assert "one pass reads 1 tensor and" in walk(plan, plan.sites[0]).text


@pytest.mark.parametrize(
    "changes", [{"dtype": "int32"}, {"spans": (True, True)}, {"dense": False}], ids=str
)
def test_nothing_else_counts(changes: dict[str, object]) -> None:
    plan = hits()
    bad = msgspec.structs.replace(plan.inputs[1], **changes)
    with pytest.raises(InvalidRecordError, match="counts along no single axis"):
        msgspec.structs.replace(plan, inputs=(plan.inputs[0], bad, plan.inputs[2])).check()


class Loss(torch.nn.Module):
    """A cross-entropy, whose gradient asks which column is the label."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(torch.randn(24, 200))

    def forward(self, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.scores, labels)


def test_the_gradient_of_a_loss_counts_its_classes() -> None:
    torch.manual_seed(0)
    graph = captured_training(Loss(), torch.randint(0, 200, (24,))).graphs[-1].lowered
    assert graph.graph.phase == "backward"
    groups = cluster(("backward", program) for program in programs_of(graph.graph).programs)
    plans = [plan_of(group, "backward", "test") for group in groups]
    counted = [p for p in plans if any(item.counts == (0, 1) for item in p.inputs)]
    assert counted
    for plan in counted:
        assert region_disagreement(plan, plan.sites[0], graph.fx_aliases, CPU) is None
        told = tuple(
            item if item.counts is None else msgspec.structs.replace(item, counts=(1, 1))
            for item in plan.inputs
        )
        wrong = msgspec.structs.replace(plan, inputs=told)
        assert region_disagreement(wrong, plan.sites[0], graph.fx_aliases, CPU) is not None


def met(x: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Half of x but where a number is met, as shares of a row."""
    return torch.softmax(torch.where(numbers == (x[:, :1] * 10).long(), x, x * 0.5), -1)


def changed(count: int) -> torch.Tensor:
    numbers = torch.arange(count)
    numbers[3] = 7
    return numbers


@pytest.mark.parametrize(
    ("numbers", "counts"),
    [
        (lambda: torch.arange(70), (0, 1)),
        (lambda: torch.arange(5, 75), (5, 1)),
        (lambda: torch.arange(2, 212, 3), (2, 3)),
        (lambda: torch.arange(70).view(1, 70), (0, 1)),
        (lambda: torch.arange(80)[10:], None),
        (lambda: torch.arange(140)[::2], None),
        (lambda: torch.arange(70).flip(0), None),
        (lambda: torch.arange(90).as_strided((70,), (1,), 7), None),
        (lambda: torch.arange(24 * 70).view(24, 70), None),
        (lambda: torch.arange(70, dtype=torch.int32), None),
        (lambda: changed(70), None),
    ],
)  # fmt: skip
def test_only_whole_counts_count(
    numbers: Callable[[], torch.Tensor], counts: tuple[int, int] | None
) -> None:
    def module(x: torch.Tensor) -> torch.Tensor:
        return met(x, numbers())

    torch.compiler.reset()
    lowered = captured(module, torch.randn(24, 70)).graphs[0].lowered
    groups = cluster(("inference", program) for program in programs_of(lowered.graph).programs)
    plans = [plan_of(group, "inference", "test") for group in groups]
    assert {item.counts for plan in plans for item in plan.inputs} - {None} == {counts} - {None}
    for plan in plans:
        assert region_disagreement(plan, plan.sites[0], lowered.fx_aliases, CPU) is None


def test_what_follows_a_product_reads_what_counts() -> None:
    weight = torch.randn(128, 64)

    def module(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        y = functional.linear(x, weight)
        return torch.where(torch.arange(128) < lengths[:, None], y * torch.sigmoid(y), 0.0)

    torch.compiler.reset()
    lowered = captured(module, torch.randn(24, 64), torch.randint(0, 128, (24,))).graphs[0].lowered
    (program,) = (p for p in programs_of(lowered.graph).programs if p.product is not None)
    (group,) = cluster([("inference", program)])
    plan = plan_of(group, "inference", "test")
    assert plan.product is not None
    assert [item.dtype for item in plan.inputs[2:]] == ["int64", "int64"]
    assert title_of(plan) == "matrix product with sigmoid"
    assert region_disagreement(plan, plan.sites[0], lowered.fx_aliases, CPU) is None


def test_what_counts_is_multiplied_by_a_number_in_float64_where_that_is_the_truth() -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        angle = torch.arange(24)[:, None] * 0.3 * torch.arange(70)
        return torch.softmax(x * torch.cos(angle), -1)

    torch.compiler.reset()
    lowered = captured(turned, torch.randn(24, 70)).graphs[0].lowered
    programs = [("inference", program) for program in programs_of(lowered.graph).programs]
    (plan,) = (plan_of(group, "inference", "test") for group in cluster(programs))
    assert [item.counts for item in plan.inputs].count((0, 1)) == 2
    assert region_disagreement(plan, plan.sites[0], lowered.fx_aliases, CPU) is None
