"""What kernels may gain in a compiled step: the compiler's own kernels at their sites, and ours."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import cast

import pytest
import torch
from msgspec.structs import replace

from advisor.apply.compiler.cuts import CompiledKernel
from advisor.apply.recipe import UNCHANGED, Recipe
from advisor.model.base import Range
from advisor.model.guards import Prediction
from advisor.model.plan import FusionPlan
from advisor.pipeline.candidates import Candidate
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.switch import GraphSwitch, OwnKernels
from advisor.pipeline.trials import Trial
from advisor.pipeline.worth import worth_by_finding, worth_of
from analyzers.row_plans import plan_of
from collectors.live.capture import no_compile_caches


class Softmaxes(torch.nn.Module):
    """Two equal softmaxes, and between them what no row program holds."""

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.softmax(x * 2.0, -1) @ w * 2.0, -1)


@pytest.fixture(scope="module")
def own() -> Iterator[OwnKernels]:
    torch.compiler.reset()
    switch = GraphSwitch()
    part = torch.compile(Softmaxes(), backend=switch.backend())
    with torch.no_grad(), no_compile_caches():
        part(torch.randn(8, 32), torch.randn(32, 32))
    (found,) = switch.own_kernels()
    yield found
    torch.compiler.reset()


def priced(own: OwnKernels, after_ns: int) -> FusionPlan:
    """The plan of both softmaxes; the prediction is of two sites."""
    assert own.programs is not None
    program = max(own.programs.programs, key=lambda one: len(one.ops))
    signature = program.signature()
    alike = [one for one in own.programs.programs if one.signature() == signature]
    plan = plan_of(alike, "forward", "softmax")
    assert len(plan.sites) == 2

    def exactly(value: int) -> Range:
        return Range(low=value, mid=value, high=value)

    prediction = Prediction(
        before_ns=exactly(10 * after_ns),
        after_ns=exactly(after_ns),
        saving_ns=exactly(9 * after_ns),
        bytes_before=1,
        bytes_after=1,
        basis="modelled",
    )
    return replace(plan, prediction=prediction)


def test_the_compilers_kernels_at_the_sites_are_what_there_is_to_gain(own: OwnKernels) -> None:
    plan = priced(own, 300)
    touched = {k.name for k in own.seen.kernels if any("exp" in node for node in k.nodes)}
    assert touched
    times = dict.fromkeys((k.name for k in own.seen.kernels), 1) | dict.fromkeys(touched, 1_000)
    found = worth_of([plan], [own], times)
    assert found.sites == 2
    assert found.ours_ns == 300
    assert found.now_ns is not None
    assert found.now_ns >= 1_000 * len(touched)
    assert found.gain_ns == found.now_ns - 300
    assert "at 2 sites take at most " in found.told()


def test_a_kernel_that_was_not_timed_leaves_the_worth_unknown(own: OwnKernels) -> None:
    found = worth_of([priced(own, 300)], [own], {})
    assert (found.sites, found.now_ns, found.gain_ns) == (2, None, None)
    assert "not known" in found.told()


def test_a_name_of_two_graphs_counts_whole(own: OwnKernels) -> None:
    """A second graph with kernels of the same names, of which nobody knows what each takes."""
    plan, names = priced(own, 300), {k.name for k in own.seen.kernels}
    times = dict.fromkeys(names, 1_001)
    alone = worth_of([plan], [own], times)
    beside = worth_of([plan], [own, OwnKernels(None, own.seen)], times)
    assert alone.now_ns is not None
    assert beside.now_ns is not None
    assert alone.now_ns <= beside.now_ns
    assert beside.now_ns % 1_001 == 0


def test_calls_in_one_graph_share_the_time_of_their_kernel(own: OwnKernels) -> None:
    """Of a kernel that is called at as many places again, which are not ours, half is left."""
    plan, times = priced(own, 300), dict.fromkeys((k.name for k in own.seen.kernels), 1_001)
    elsewhere = [CompiledKernel(k.name, ()) for k in own.seen.kernels]
    twice = OwnKernels(own.programs, own.seen._replace(kernels=(*own.seen.kernels, *elsewhere)))
    alone, half = worth_of([plan], [own], times), worth_of([plan], [twice], times)
    assert alone.now_ns is not None
    assert half.now_ns == pytest.approx(alone.now_ns / 2, abs=1)


def test_kernels_that_took_no_time_were_not_timed(own: OwnKernels) -> None:
    found = worth_of(
        [priced(own, 300)], [own], dict.fromkeys((k.name for k in own.seen.kernels), 0)
    )
    assert (found.now_ns, found.gain_ns) == (None, None)


class Timed:
    """A bench that knows what one step's kernels take, but for those that nobody timed."""

    def __init__(self, own: OwnKernels, untimed: Collection[str] = ()) -> None:
        self.own, self.untimed = own, untimed

    def own_kernels(self, recipe: Recipe) -> list[OwnKernels]:
        return [self.own]

    def kernel_times(self, variant: Variant) -> dict[str, int]:
        names = (k.name for k in self.own.seen.kernels if k.name not in self.untimed)
        return dict.fromkeys(names, 1_000)


def test_what_was_refused_is_told_nothing_of(own: OwnKernels) -> None:
    plan = priced(own, 300)
    told: list[str] = []

    def gains(refused: str | None) -> list[int | None]:
        trial, item = Trial("row-program-1", (plan.id,)), Candidate(plan, refused=refused)
        base = Variant("base", list, list, list)
        return worth_by_finding(
            [[trial]], {plan.id: item}, cast(Bench, Timed(own)), UNCHANGED,
            lambda *_, **facts: told.append(facts["message"]), base,
        )  # fmt: skip

    assert gains("numerics") == [None]
    assert told == []
    (gain,) = gains(None)
    assert gain is not None
    assert len(told) == 1


def test_a_plan_without_a_site_gains_nothing(own: OwnKernels) -> None:
    found = worth_of([priced(own, 300)], [OwnKernels(None, own.seen)], {})
    assert (found.sites, found.gain_ns) == (0, 0)
    assert found.told() == "no site of it is in the compiled graphs"


@pytest.mark.parametrize(("after_ns", "wanted"), [(300, 1_000), (10, 90)])
def test_what_is_known_in_part_is_worth_that_part_at_most_what_is_predicted(
    own: OwnKernels, after_ns: int, wanted: int
) -> None:
    """A library's product beside the compiler's kernels, which was not timed."""
    plan = priced(own, after_ns)
    first, second = (k for k in own.seen.kernels if any("exp" in node for node in k.nodes))
    kernels = first, CompiledKernel("library", second.nodes)
    both = OwnKernels(own.programs, own.seen._replace(kernels=kernels))
    bench, base = Timed(both, ["library"]), Variant("base", list, list, list)
    (gain,) = worth_by_finding(
        [[Trial("row-program-1", (plan.id,))]], {plan.id: Candidate(plan)}, cast(Bench, bench),
        UNCHANGED, lambda *_, **__: None, base,
    )  # fmt: skip
    assert gain == wanted
