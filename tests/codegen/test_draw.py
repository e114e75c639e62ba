"""Random numbers of generated kernels are those of Triton, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("triton", reason="kernels need triton")

import torch

from advisor.codegen.expressions import HELPERS
from advisor.codegen.row_program import IMPORTS
from tests.codegen.interpreter import Interpreter

BOTH = """
@triton.jit
def both(seed, start, ours, theirs, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    index = tl.load(start) + place
    drawn = tl.load(seed)
    tl.store(ours + place, draw(drawn, index))
    tl.store(theirs + place, tl.rand(drawn, index.to(tl.uint32)))


def fused(seed, start, *, out):
    both[(1,)](seed, start, out[0], out[1], BLOCK=256)
"""


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    with Interpreter(tmp_path_factory.mktemp("interpreter")) as child:
        yield child


@pytest.mark.parametrize("start", [0, 1 << 20, (1 << 32) - 100, 1 << 40])
@pytest.mark.parametrize("seed", [0, 1, -1, 123_456_789, (1 << 62) + 12_345, -(1 << 40)])
def test_a_drawn_number_is_tritons(seed: int, start: int, interpreter: Interpreter) -> None:
    given = [torch.tensor(value, dtype=torch.int64) for value in (seed, start)]
    source = IMPORTS + HELPERS["draw"] + BOTH
    shapes = [((256,), torch.float32)] * 2
    ours, theirs = interpreter.run(source, given, shapes, None)
    assert torch.equal(ours, theirs)
    assert bool(((ours >= 0) & (ours < 1)).all())
    assert len(set(ours.tolist())) > 250
