"""Decisions at their borders: what pays is kept, what does not is taken out with the reason."""

from __future__ import annotations

import math

import pytest
import torch

from advisor.apply.judge import judge_region, judge_set, outputs_agree
from advisor.model.applied import Comparison, Timing
from advisor.pipeline.likeness import Results, agreement, difference


def comparison(low: int, mid: int, high: int, *, before: int = 1_000_000) -> Comparison:
    def sample(value: int) -> Timing:
        return Timing(median_ns=value, low_ns=value, high_ns=value, samples=16)

    return Comparison(
        before=sample(before), after=sample(before - mid), gain_low_ns=low, gain_mid_ns=mid,
        gain_high_ns=high, clock="gpu_busy",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("low", "mid", "high", "keep", "words"),
    [
        (1, 1_000, 2_000, True, "1 µs less on the GPU"),
        (1, 999, 2_000, False, "no gain beyond noise"),
        (0, 50_000, 90_000, False, "no gain beyond noise"),
        (-1, 50_000, 90_000, False, "no gain beyond noise"),
        (-9_000, -5_000, 0, False, "no gain beyond noise"),
        (-9_000, -5_000, -1, False, "5 µs more on the GPU"),
        (0, 0, 0, False, "no gain beyond noise"),
    ],
)
def test_a_region_is_kept_for_a_gain_beyond_noise(
    low: int, mid: int, high: int, keep: bool, words: str
) -> None:
    found = judge_region(comparison(low, mid, high))
    assert found.keep is keep
    assert words in found.reason


@pytest.mark.parametrize(
    ("gpu", "step", "keep"),
    [
        ((10_000, 20_000, 30_000), (-50_000, -10_000, 0), True),
        ((10_000, 20_000, 30_000), (-50_000, -10_000, -1), False),
        ((10_000, 20_000, 30_000), (5, 10, 20), True),
        ((-5, 0, 5), (5_000, 10_000, 20_000), False),
    ],
)
def test_a_set_must_not_slow_the_step(
    gpu: tuple[int, int, int], step: tuple[int, int, int], keep: bool
) -> None:
    found = judge_set(comparison(*gpu), comparison(*step))
    assert found.keep is keep
    assert found.reason


@pytest.mark.parametrize(
    ("error", "baseline", "agree"),
    [
        (0.0, 0.0, True),
        (2e-7, 0.0, True),
        (2.5e-7, 0.0, False),
        (2e-3, 1e-3, True),
        (2.1e-3, 1e-3, False),
        (math.nan, 1e-3, False),
        (math.inf, math.inf, False),
        (1e-3, math.nan, False),
    ],
)
def test_outputs_agree_as_far_as_the_compilers_own(
    error: float, baseline: float, agree: bool
) -> None:
    assert outputs_agree(error, baseline, 1e-7) is agree


def test_masked_outputs_are_compared_where_they_are_finite() -> None:
    theirs = [torch.tensor([1.0, -math.inf, math.nan, 2.0])]
    assert difference([theirs[0].clone()], theirs) == 0.0
    assert difference([torch.tensor([1.0, -math.inf, math.nan, 2.2])], theirs) == pytest.approx(
        0.0894, rel=1e-3
    )
    assert difference([torch.tensor([1.0, math.inf, math.nan, 2.0])], theirs) == math.inf
    assert difference([torch.tensor([1.0, -math.inf, 0.0, 2.0])], theirs) == math.inf
    assert difference([torch.tensor([math.nan, -math.inf, math.nan, 2.0])], theirs) == math.inf


def test_other_structure_is_infinitely_far() -> None:
    one = torch.ones(3)
    assert difference([one], [one, one]) == math.inf
    assert difference([one], [torch.ones(4)]) == math.inf
    assert difference([one], [one.double()]) == math.inf
    assert difference([torch.tensor([1, 2])], [torch.tensor([1, 3])]) == math.inf
    assert difference([torch.zeros(3)], [torch.zeros(3)]) == 0.0


def test_narrow_and_complex_results_are_compared() -> None:
    narrow = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    assert difference([narrow], [narrow]) == 0.0
    pair = torch.tensor([3.0 + 4.0j])
    assert difference([pair * 1.01], [pair]) == pytest.approx(0.01)


def test_results_that_are_nan_throughout_show_nothing() -> None:
    assert difference([torch.tensor([math.nan])], [torch.tensor([math.nan])]) == math.inf


def test_random_numbers_of_the_compiler_do_not_excuse_a_wrong_kernel() -> None:
    """With dropout the compiler is far from eager; ours must still be near the compiler."""
    eager, plain = (torch.rand(1000) * torch.bernoulli(torch.full((1000,), 0.5)) for _ in range(2))
    found = agreement([eager], [plain], [plain * (1 + 1e-7)], lambda: [plain], comparable=False)
    assert found is not None
    assert found.agrees
    wrong = agreement([eager], [plain], [torch.zeros(1000)], lambda: [plain], comparable=False)
    assert wrong is not None
    assert not wrong.agrees


def test_a_step_without_results_agrees_with_nothing() -> None:
    assert agreement([], [], [], list, comparable=True) is None


def test_results_that_are_rounding_alone_hide_no_wrong_ones_and_condemn_no_right_ones() -> None:
    """The gradient of a bias of keys is 0 but for rounding: no two runs have the same of it."""
    eager = [torch.tensor(2.0), torch.ones(8), torch.full((8,), 1e-9)]
    plain = [torch.tensor(2.0), torch.ones(8) * (1 + 1e-6), torch.full((8,), -2e-9)]
    assert Results(eager, plain, []).comparable
    right = [eager[0], eager[1] * (1 - 5e-7), torch.full((8,), 4e-9)]
    wrong = [eager[0], eager[1] * 1.05, eager[2]]
    large = [eager[0], eager[1], torch.full((8,), 1e-3)]
    for ours, agrees in ((right, True), (wrong, False), (large, False)):
        for comparable, again in ((True, list), (False, lambda: eager)):
            found = agreement(eager, plain, ours, again, comparable)
            assert found is not None
            assert not found.note
            assert found.agrees == agrees, found


def test_results_that_never_come_again_prove_nothing() -> None:
    one, two = torch.ones(8), torch.full((8,), 3.0)
    found = agreement([one], [two], [one], lambda: [one], comparable=False)
    assert found is not None
    assert "nothing shows that ours agree" in found.note
