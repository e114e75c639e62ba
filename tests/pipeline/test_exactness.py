"""Results that add up in another order than eager's, judged by what the step is in a wider type."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import nn

from advisor.pipeline.exactness import NOT_AGAIN, OTHER, against_exact, beside_exact
from advisor.pipeline.instances import Instances
from advisor.pipeline.likeness import Agreement, Results, agreement
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.peers import Alone
from advisor.pipeline.sets import disagreement
from collectors.live.workload import Workload

CPU = torch.device("cpu")
ROWS, PIECE = 16_384, 2_048


class RowByRow(torch.autograd.Function):
    """x Wᵀ; the gradient of W adds up one row after the other, as a matrix product on a GPU does.

    `piece` rows make up a sum of their own.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, piece: int) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.piece = piece
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,), (grad,) = ctx.saved_tensors, grads
        total = x.new_zeros(grad.shape[1], x.shape[1])
        for part, of_part in zip(x.split(ctx.piece), grad.split(ctx.piece), strict=True):
            held = torch.zeros_like(total)
            for row, by_row in zip(part, of_part, strict=True):
                held.addr_(by_row, row)
            total += held
        return None, total, None


class Summing(nn.Module):
    """A linear layer; `off` is how wrong it is."""

    def __init__(self, piece: int, off: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 8))
        self.piece, self.off = piece, off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = RowByRow.apply(x, self.weight, self.piece)
        return cast(torch.Tensor, found) * (1 + self.off)


def training(
    piece: int = ROWS, off: float = 0.0, batches: Iterator[torch.Tensor] | None = None
) -> Workload:
    torch.manual_seed(0)
    module, x = Summing(piece, off), torch.rand(ROWS, 8)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return Workload(
        *("w", "training", CPU, module), optimizer=optimizer,
        loss=lambda part: part(x if batches is None else next(batches)).mean(),
    )  # fmt: skip


class Given:
    """A bench whose results are given; the compiler's are eager's, as with one library."""

    def __init__(self, base: Workload, reload: Callable[[], Workload], ours: Workload) -> None:
        self.instances = Instances(base, reload)
        eager = base.results_of()
        self.found = Results(eager, eager, ours.results_of())

    def results(self, variant: Variant) -> Results:
        return self.found

    def agreement(self, results: Results, comparable: bool) -> Agreement | None:
        return agreement(*results, list, comparable)

    def against_exact(self, results: Results) -> Agreement | str:
        return against_exact(self.instances, results, Alone())


def judged(bench: Given) -> tuple[str, Agreement | None]:
    return disagreement(Alone(), cast(Bench, bench), Variant("ours", list, list, list))


def test_a_sum_in_pieces_is_further_from_eager_than_from_the_truth_and_agrees() -> None:
    bench = Given(training(), training, training(PIECE))
    beside_eager = bench.agreement(bench.found, comparable=True)
    assert beside_eager is not None
    assert not beside_eager.agrees
    why, found = judged(bench)
    assert why == ""
    assert found is not None
    assert found.reference == "a float64 run"
    assert found.error < found.baseline


def test_what_is_wrong_by_more_than_eager_rounds_is_out() -> None:
    why, _ = judged(Given(training(), training, training(PIECE, off=2e-5)))
    assert why.startswith("results differ from a float64 run's by 2.00e-05, without it by ")


def test_the_copy_stands_where_the_workload_has_come_to() -> None:
    base, ours = training(), training(PIECE)
    for work in (base, ours):
        with torch.no_grad():
            for parameter in cast(nn.Module, work.part).parameters():
                parameter.mul_(3.0)
    assert judged(Given(base, training, ours))[0] == ""


def test_of_a_step_that_reads_on_the_copy_begins_where_its_results_began() -> None:
    data = torch.rand(3, ROWS, 8)

    def reading(piece: int = ROWS) -> Workload:
        return training(piece, batches=itertools.cycle(data))

    base = reading()
    bench = Given(base, reading, reading(PIECE))
    for parameter in cast(nn.Module, base.part).parameters():
        parameter.data.mul_(3.0)  # it has trained since
    assert judged(bench)[0] == ""


def test_where_no_copy_does_the_same_eager_counts() -> None:
    seeds = itertools.count()

    def other() -> Workload:
        generator = torch.Generator().manual_seed(next(seeds))
        return training(batches=itertools.repeat(torch.rand(ROWS, 8, generator=generator)))

    why, found = judged(Given(training(), other, training(PIECE)))
    assert why.startswith("results differ from eager's by ")
    assert why.endswith(f"no exacter run can decide: {NOT_AGAIN}")
    assert found is not None
    assert found.reference == "eager"
    assert found.note == why


def test_a_result_that_rounds_badly_excuses_no_other() -> None:
    exact = [torch.ones(8, dtype=torch.float64)] * 2
    eager = [torch.ones(8) * 1.01, torch.ones(8)]
    fair = [torch.ones(8) * 0.99, torch.ones(8)]
    for ours, agrees in ((fair, True), ([eager[0], torch.ones(8) * 1.005], False)):
        found = beside_exact(Results(eager, eager, ours), exact, torch.float64)
        assert isinstance(found, Agreement)
        assert found.agrees == agrees, found


@pytest.mark.parametrize("gap", [1e-3, -1e-3])
def test_one_wrong_element_of_many_is_not_lost_in_a_norm(gap: float) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = [torch.randn(1 << 18, generator=generator, dtype=torch.float64) for _ in range(3)]
    exact = [noise[0]]
    eager, ours = [(noise[0] + 2e-6 * noise[1]).float()], [(noise[0] + 1e-6 * noise[2]).float()]
    right = beside_exact(Results(eager, eager, ours), exact, torch.float64)
    assert isinstance(right, Agreement)
    assert right.agrees
    ours[0][77] += gap
    found = beside_exact(Results(eager, eager, ours), exact, torch.float64)
    assert isinstance(found, Agreement)
    assert not found.agrees
    assert found.reference == "an element of a float64 run"


@pytest.mark.parametrize("exact", [[torch.full((8,), 3.0)], [torch.ones(4)], [torch.ones(8)] * 2])
def test_another_computation_says_nothing(exact: list[torch.Tensor]) -> None:
    results = Results([torch.ones(8)], [torch.ones(8)], [torch.ones(8)])
    assert beside_exact(results, exact, torch.float64) == OTHER
