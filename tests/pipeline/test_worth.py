"""What kernels may gain in a compiled step: the compiler's own kernels at their sites, and ours."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from msgspec.structs import replace

from advisor.model.base import Range
from advisor.model.guards import Prediction
from advisor.model.plan import FusionPlan
from advisor.pipeline.switch import GraphSwitch, OwnKernels
from advisor.pipeline.worth import worth_of
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
    assert "at 2 sites take" in found.told()


def test_a_kernel_that_was_not_timed_leaves_the_worth_unknown(own: OwnKernels) -> None:
    found = worth_of([priced(own, 300)], [own], {})
    assert (found.sites, found.now_ns, found.gain_ns) == (2, None, None)
    assert "not known" in found.told()


def test_a_plan_without_a_site_gains_nothing(own: OwnKernels) -> None:
    found = worth_of([priced(own, 300)], [OwnKernels(None, own.seen)], {})
    assert (found.sites, found.gain_ns) == (0, 0)
    assert found.told() == "no site of it is in the compiled graphs"
