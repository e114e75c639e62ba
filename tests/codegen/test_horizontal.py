"""Horizontal plans: several programs in one launch, whatever they are and in whatever order."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="interpreting kernels needs triton")

from advisor.codegen import render
from advisor.codegen.families import site_launches
from advisor.errors import InvalidRecordError
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import decode, encode
from advisor.model.configs import candidate_configs, schemes_of
from advisor.model.dealing import dealt
from advisor.model.members import bodies, parts, split
from advisor.model.plan import FusionPlan
from advisor.model.site_work import site_bytes
from advisor.pipeline.sizing import requests
from advisor.verify.interpret import evaluate
from advisor.verify.resources import resources_of
from advisor.verify.timing import site_inputs
from tests.builders import members as m
from tests.codegen.interpreter import Interpreter

CPU = torch.device("cpu")
MIXED = (
    m.rms_norm(6, 40, "bfloat16"),
    m.softmax(3, 33),
    m.rms_norm(2, 40, "bfloat16"),
    m.bias_act(5, 70),
    m.flat(9, 100),
)


@st.composite
def groups(draw: st.DrawFn) -> FusionPlan:
    """Two to five programs of any kinds and sizes; some of them equal."""
    size = st.integers(1, 9), st.sampled_from((1, 2, 31, 64, 65))
    drawn = st.lists(st.tuples(st.sampled_from(m.KINDS), *size), min_size=2, max_size=5)
    return m.group(*(kind(rows, columns) for kind, rows, columns in draw(drawn)))


def launched(
    plan: FusionPlan, interpreter: Interpreter, elements: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(what the kernel writes, what float64 gives) of every output."""
    inputs = site_inputs(plan, plan.sites[0], CPU)
    shapes = [
        (output.shape(site.row_sizes, site.column_axes), getattr(torch, output.dtype))
        for part, site in parts(plan, plan.sites[0])
        for output in part.outputs
    ]
    got = interpreter.run(render(plan).text, inputs, shapes, None, elements=elements)
    return list(zip(got, evaluate(plan, inputs, "exact"), strict=True))


@settings(max_examples=6, deadline=None)
@given(groups(), st.sampled_from((16, 64, 256)))
def test_random_members_are_what_they_are_alone(
    interpreter: Interpreter, plan: FusionPlan, elements: int
) -> None:
    torch.manual_seed(0)
    for got, exact in launched(plan, interpreter, elements):
        torch.testing.assert_close(got.double(), exact.expand(got.shape), rtol=3e-5, atol=3e-6)


def test_members_of_different_types_share_a_launch(interpreter: Interpreter) -> None:
    torch.manual_seed(0)
    for got, exact in launched(m.group(*MIXED), interpreter, 128):
        narrow = got.dtype == torch.bfloat16
        torch.testing.assert_close(
            got.double(), exact.expand(got.shape), rtol=8e-3 if narrow else 3e-5, atol=1e-5
        )


def test_the_order_of_members_does_not_matter() -> None:
    plan, shuffled = m.group(*MIXED), list(MIXED)
    for seed in range(5):
        random.Random(seed).shuffle(shuffled)
        other = m.group(*shuffled)
        assert other.signature() == plan.signature()
        assert other.id == plan.id
        assert render(other).text == render(plan).text


def test_equal_members_share_a_body_and_others_do_not() -> None:
    plan = m.group(*MIXED)
    assert sorted(len(run) for run in bodies(plan)) == [1, 1, 1, 2]
    source = render(plan)
    compile(source.text, "horizontal", "exec")
    assert source.text.count("@triton.jit\ndef body_") == 4
    assert max(map(len, source.text.splitlines())) <= 100
    wider = m.group(m.rms_norm(4, 64), m.rms_norm(4, 65))
    assert len(bodies(wider)) == 2, "twice the registers are no body for half of the columns"


def test_a_plan_reads_back_as_it_was_and_counts_what_members_move() -> None:
    plan = m.group(*MIXED)
    assert decode(encode(plan), FusionPlan) == plan
    assert schemes_of(plan) == ("dealt",)
    alone = sum(site_bytes(p, p.sites[0]) for p in MIXED)
    assert site_bytes(plan, plan.sites[0]) == alone
    (launch,) = site_launches(plan, candidate_configs(plan, plan.sites[0])[0], plan.sites[0])
    elements = candidate_configs(plan, plan.sites[0])[0].block_columns
    assert elements is not None
    assert launch.grid == (sum(dealt(plan, plan.sites[0], elements)), 1, 1)
    ends = [launch.scalars[f"end_{n}"] for n in range(len(plan.members))]
    assert ends == sorted(ends)
    assert ends[-1] == launch.grid[0]


def test_no_member_reads_what_another_computes() -> None:
    """Hostile plans: a value of another member, counts that do not add up, rows that do not fit."""
    plan = m.group(m.softmax(3, 33), m.flat(2, 8))
    first = plan.members[0]
    last = plan.ops[-1]
    wrong: list[dict[str, Any]] = [
        {"ops": (*plan.ops[:-1], msgspec.structs.replace(last, args=("v0", last.args[1])))},
        {"members": (msgspec.structs.replace(first, inputs=first.inputs + 1), plan.members[1])},
        {"members": plan.members[:1]},
        {"members": (first, msgspec.structs.replace(plan.members[1], width=16))},
        {"members": (msgspec.structs.replace(first, width=48), plan.members[1])},
        {"members": ()},
        {"sites": (msgspec.structs.replace(plan.sites[0], members=()),)},
    ]
    for change in wrong:
        with pytest.raises(InvalidRecordError):
            msgspec.structs.replace(plan, **change).check()


def test_members_are_programs_of_their_own() -> None:
    plan = m.group(*MIXED)
    assert sorted(part.signature() for part in split(plan)) == sorted(
        program.signature() for program in MIXED
    )


@pytest.mark.usefixtures("forked_compilers")
def test_eight_norms_compile_without_spills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = m.group(*(m.rms_norm(512, 1024, "bfloat16") for _ in range(8)))
    config = candidate_configs(plan, plan.sites[0])[0]
    for row in resources_of(requests(plan, config), [gpu_by_key("h200")])[0]:
        assert row.error is None, row
        assert (row.spill_store_bytes, row.spill_load_bytes) == (0, 0)
        assert row.occupancy is not None
        assert row.occupancy >= 0.5, row
