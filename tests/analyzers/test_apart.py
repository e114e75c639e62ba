"""Rows without the sums over them: a shorter program beside the one that computes both."""

from __future__ import annotations

import torch

from advisor.model.optable import spec_of
from advisor.verify.region import region_disagreement
from analyzers.apart import rows_apart
from analyzers.row_plans import canonical_program, plan_of
from analyzers.row_programs import find_row_programs
from tests.analyzers.planted.captured import lowered
from tests.analyzers.planted.columns import COLUMNS
from tests.builders.graph import Sketch

CASES = {case.name: case for case in COLUMNS}
CPU = torch.device("cpu")


def test_the_gradient_of_a_norm_has_one_program_for_all_and_one_for_its_input() -> None:
    for name in ("the gradient of a layer norm", "the gradient of an RMS norm"):
        found = find_row_programs(lowered(CASES[name]).graph)
        (whole,), (apart,) = found.whole, found.apart
        assert apart is not None
        assert apart in found.every_group()
        both, rows = (canonical_program(found.flow, g) for g in (whole, apart))
        spaces = [output.space for output in both.outputs]
        assert sorted(spaces) == ["column"] * (len(spaces) - 1) + ["tile"]
        assert [output.space for output in rows.outputs] == ["tile"]
        # What the weights' gradients need too is left to them as well.
        assert set(apart.shares.again) <= set(whole.members) - set(apart.own)
        plan = plan_of([rows], "backward", name)
        assert region_disagreement(plan, rows.site, lowered(CASES[name]).fx_aliases, CPU) is None


def test_a_value_per_row_that_both_need_is_written() -> None:
    s = Sketch()
    x = s.input(64, 32)
    scale = s.op("rsqrt", s.mean(s.op("mul", x, x)))
    out = s.op("mul", x, scale)
    total = s.reduce("sum", s.op("exp", out), (0,))
    found = find_row_programs(s.build(out, total))
    (apart,) = found.apart
    assert apart is not None
    assert apart.space.late == frozenset()
    assert out in apart.space.outputs
    mean = next(n for n in apart.members if spec_of(found.flow.nodes[n].op).kind == "reduction")
    assert mean not in apart.shares.again


def test_programs_that_reduce_along_one_axis_are_no_shorter() -> None:
    for name in ("a bias gradient alone", "statistics of channels"):
        found = find_row_programs(lowered(CASES[name]).graph)
        assert [rows_apart(found.flow, group) for group in found.whole] == [None]
