"""Steps that ran on other sizes are told with the sizes; other work in some steps is not that."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from advisor.model.trace import Trace
from analyzers.step_sizes import sizes_vary
from collectors import read_trace
from tests.builders.trace import Timeline

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
Call = tuple[str, str | None, int]


def trace_of(*steps: list[Call]) -> Trace:
    """Steps of 100 µs, each a list of (op, operand shapes, blocks of its kernel)."""
    line = Timeline()
    for number, calls in enumerate(steps):
        at = 100.0 * number
        line.range(f"ProfilerStep#{number}", at, 90)
        for place, (name, shapes, blocks) in enumerate(calls):
            begin = at + 5 * place
            told = {} if shapes is None else {"input_shapes": shapes}
            line.op(name, begin, 4, **told)
            cause = line.launch(begin + 1)
            line.kernel(begin + 2, 2, name=f"k_{name}", correlation=cause, grid_x=blocks)
    return line.build()


def told(*steps: list[Call]) -> str:
    trace = trace_of(*steps)
    found = sizes_vary(trace, trace.steps(), "plans are of X")
    return found[0].message if found else ""


def mm(rows: int, name: str = "aten::mm") -> Call:
    return name, f"[[{rows}, 16], [16, 4]]", rows


def test_steps_of_the_same_sizes_say_nothing() -> None:
    assert told([mm(8), mm(9)], [mm(9), mm(8)], [mm(8), mm(9)]) == ""
    assert told([mm(8)]) == ""


def test_sizes_are_told_with_their_steps() -> None:
    assert told([mm(8)], [mm(12)], [mm(8)], [mm(8)]) == (
        "sizes vary between the recorded steps: aten::mm reads [[8, 16], [16, 4]] in steps 0, 2 "
        "to 3, [[12, 16], [16, 4]] in step 1. Figures a step are of all of them together; plans "
        "are of X"
    )


def test_the_longest_is_named_and_the_rest_counted() -> None:
    both = [[mm(n), ("aten::add", f"[[{n}, 16]]", n), mm(n)] for n in (1, 2, 3, 4, 5)]
    line = told(*both)
    assert "aten::mm reads [[1, 16], [16, 4]] in step 0" in line
    assert "2 more sizes; so does 1 other name" in line


def test_work_that_only_some_steps_do_is_no_other_size() -> None:
    """An evaluation, the first state of an optimizer, gradients that are accumulated."""
    assert told([mm(8)], [mm(8), mm(12)], [mm(8)]) == ""
    assert told([mm(8)], [mm(8), ("aten::zeros_like", "[[4]]", 4)]) == ""


def test_without_shapes_the_grids_tell() -> None:
    line = told([("triton_", None, 8)], [("triton_", None, 16)])
    assert "k_triton_ is launched over a grid of [8, 1, 1] in step 0, a grid of [16, 1, 1]" in line
    assert told([("triton_", None, 8)], [("triton_", None, 8)]) == ""


def test_messages_of_collectives_may_take_other_grids() -> None:
    line = Timeline()
    for number, blocks in enumerate((8, 16)):
        line.range(f"ProfilerStep#{number}", 100 * number, 90)
        cause = line.launch(100 * number + 1)
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        line.kernel(100 * number + 2, 2, name=name, correlation=cause, grid_x=blocks)
    trace = line.build()
    assert sizes_vary(trace, trace.steps(), "") == ()


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.json.gz")), ids=lambda path: path.name)
def test_no_recorded_trace_of_one_size_is_accused(path: Path) -> None:
    trace = read_trace(path)
    assert sizes_vary(trace, trace.steps(), "") == ()


def test_sizes_of_several_steps_are_shown_before_those_of_one() -> None:
    line = told(*([mm(100 * step + call) for call in range(5)] for step in range(3)))
    for step in range(3):
        assert f"[[{100 * step}, 16], [16, 4]] in step {step}" in line
    assert "12 more sizes" in line


def test_of_lists_of_tensors_the_part_that_differs_is_shown() -> None:
    """Optimizers pass hundreds of tensors to one op."""

    def lists(last: int) -> Call:
        return "aten::_foreach_add_", f"[{'[8, 16], ' * 300}[{last}, 16]]", 1

    line = told([lists(7)], [lists(9)])
    assert len(line) < 500
    assert "[7, 16]] in step 0" in line
    assert "[9, 16]] in step 1" in line


def test_thousands_of_sizes_take_no_time() -> None:
    steps = [[mm(10 * step + call) for call in range(10)] for step in range(3000)]
    trace = trace_of(*steps)
    begin = time.perf_counter()
    (warning,) = sizes_vary(trace, trace.steps(), "x")
    assert time.perf_counter() - begin < 5
    assert "29,997 more sizes" in warning.message
