"""The captured corpus: what may fuse, what may not and why; names play no part; plans are right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from advisor.codegen import render
from advisor.model.configs import schemes_of
from advisor.model.plan import FusionPlan, Site
from advisor.verify.interpret import evaluate
from advisor.verify.region import region_disagreement
from advisor.verify.timing import site_inputs
from analyzers.row_plans import canonical_program, plan_of
from analyzers.row_programs import find_row_programs
from tests.analyzers.planted.captured import Case, answer, computed_again, described, lowered
from tests.analyzers.planted.columns import COLUMNS
from tests.analyzers.planted.libraries import LIBRARIES, one_process_group
from tests.analyzers.planted.lookups import LOOKUPS
from tests.analyzers.planted.memory import MEMORY
from tests.analyzers.planted.spaces import SPACES
from tests.analyzers.planted.types import TYPES
from tests.builders.graph import assert_legal
from tests.builders.renamed import renamed
from tests.codegen.interpreter import Interpreter

CORPUS = (*COLUMNS, *MEMORY, *SPACES, *TYPES, *LIBRARIES, *LOOKUPS)
WITH_GROUPS = tuple(case for case in CORPUS if case.groups)
# What is compiled or interpreted: a sample, since every launch is interpreted element by element.
LAUNCHED = WITH_GROUPS[::5]
CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("collectives")


@pytest.fixture(scope="module")
def collectives() -> Iterator[None]:
    with one_process_group():
        yield


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    pytest.importorskip("triton", reason="interpreting kernels needs triton")
    with Interpreter(tmp_path_factory.mktemp("planted")) as child:
        yield child


def plans_of(case: Case) -> list[tuple[FusionPlan, Site]]:
    """A plan for every way to fuse anything in a case."""
    found = find_row_programs(lowered(case).graph)
    programs = [canonical_program(found.flow, group) for group in found.every_group()]
    made = [plan_of([program], case.phase, case.name) for program in programs]
    return [(plan, plan.sites[0]) for plan in made]


def test_the_corpus_is_large_and_says_something_about_every_case() -> None:
    assert len(CORPUS) >= 60
    assert len({case.name for case in CORPUS}) == len(CORPUS)
    assert sum(bool(case.outside) for case in CORPUS) >= 60


@pytest.mark.parametrize("case", CORPUS, ids=str)
def test_what_may_fuse_and_why_the_rest_may_not(case: Case) -> None:
    graph = lowered(case).graph
    found = find_row_programs(graph)
    assert sorted(answer(found)) == sorted(case.groups)
    assert set(computed_again(found)) == set(case.again)
    names = described(graph)
    for name, reason in case.outside.items():
        given = [miss.reason for miss in found.near_misses if miss.node == names[name]]
        assert any(reason in text for text in given), f"{name}: {given}"
    assert_legal(graph, found.whole)
    plain = [old or group for old, group in zip(found.plain, found.whole, strict=True)]
    assert_legal(graph, plain)


@pytest.mark.parametrize("case", CORPUS, ids=str)
def test_names_decide_nothing(case: Case) -> None:
    graph = lowered(case).graph
    other, names = renamed(graph)
    before, after = find_row_programs(graph), find_row_programs(other)
    mine, theirs = before.every_group(), after.every_group()
    assert [[names[n] for n in group.members] for group in mine] == [
        list(group.members) for group in theirs
    ]
    assert [canonical_program(before.flow, group).signature() for group in mine] == [
        canonical_program(after.flow, group).signature() for group in theirs
    ]
    assert [(names[m.seed], names[m.node], m.reason) for m in before.near_misses] == [
        (m.seed, m.node, m.reason) for m in after.near_misses
    ]


@pytest.mark.parametrize("case", WITH_GROUPS, ids=str)
def test_every_plan_equals_the_region_it_replaces(case: Case) -> None:
    plans = plans_of(case)
    assert len(plans) >= len(case.groups)
    for plan, site in plans:
        assert region_disagreement(plan, site, lowered(case).fx_aliases, CPU) is None


@pytest.mark.parametrize("case", LAUNCHED, ids=str)
def test_a_generated_kernel_computes_its_plan(case: Case, interpreter: Interpreter) -> None:
    for plan, site in plans_of(case):
        torch.manual_seed(0)
        inputs = site_inputs(plan, site, CPU)
        shapes = [
            (output.shape(site.row_sizes, site.column_axes), getattr(torch, output.dtype))
            for output in plan.outputs
        ]
        scheme = schemes_of(plan)[0]
        options = {"splits": 3, "num_stages": 1} if scheme == "column_sums" else {}
        got = interpreter.run(render(plan, scheme).text, inputs, shapes, **options)
        for mine, want in zip(got, evaluate(plan, inputs, "native"), strict=True):
            torch.testing.assert_close(mine, want.expand(mine.shape), equal_nan=True)
