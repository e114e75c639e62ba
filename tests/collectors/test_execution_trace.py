"""The reader of execution traces on planted files: reuse of addresses, threads, unseen results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.model.execution import ExecutionTrace
from collectors.execution_trace import read_execution_trace

SIN = "aten::sin(Tensor self) -> Tensor"
COPY = "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)"
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"


def values(*storages: int, elements: int = 4) -> dict[str, Any]:
    return {
        "values": [[900 + s, s, 0, elements, 4, "cuda:0"] for s in storages],
        "shapes": [[elements] for _ in storages],
        "types": ["Tensor(float)" for _ in storages],
        "strides": [[1] for _ in storages],
    }


def op(
    number: int,
    name: str,
    schema: str,
    reads: list[int],
    makes: list[int],
    parent: int = 1,
    **more: Any,
) -> dict[str, Any]:
    attributes = {"rf_id": number, "op_schema": schema, "seq_id": -1, "kernel_backend": ""} | more
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": values(*reads),
        "outputs": values(*makes),
        "attrs": [{"name": k, "type": "", "value": v} for k, v in attributes.items()],
    }


def read(path: Path, *nodes: dict[str, Any]) -> ExecutionTrace:
    """Nodes in the order in which they ended, as the observer writes them."""
    path.write_text(json.dumps({"schema": "1.1.1", "pid": 1, "nodes": list(nodes)}))
    return read_execution_trace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "execution.json"


def generations(trace: ExecutionTrace) -> dict[int, tuple[list[int], list[int]]]:
    return {
        o.id: ([t.generation for t in o.tensors()], [t.generation for t in o.outputs])
        for o in trace.ops
    }


def test_a_result_at_an_old_address_is_a_new_allocation(path: Path) -> None:
    trace = read(
        path,
        op(2, "aten::sin", SIN, [7], [8]),
        op(3, "aten::sin", SIN, [8], [9]),
        op(4, "aten::sin", SIN, [9], [8]),  # 8 was freed and is given out again
        op(5, "aten::sin", SIN, [8], [9]),
    )
    assert generations(trace) == {2: ([0], [1]), 3: ([1], [1]), 4: ([1], [2]), 5: ([2], [2])}


def test_views_and_writes_make_no_memory(path: Path) -> None:
    trace = read(path, op(2, "aten::view", VIEW, [7], [7]), op(3, "aten::copy_", COPY, [7, 6], [7]))
    assert generations(trace) == {2: ([0], [0]), 3: ([0, 0], [0])}
    view, copy = trace.ops
    assert view.is_view
    assert copy.writes == (0,)
    assert [t.storage for t in copy.written()] == [7]


def test_an_outer_op_returns_what_an_inner_one_made(path: Path) -> None:
    trace = read(
        path,
        op(3, "aten::sin", SIN, [7], [8], parent=2),  # ends before the op around it
        op(2, "aten::square", "aten::square(Tensor self) -> Tensor", [7], [8]),
        op(4, "aten::sin", SIN, [8], [9]),
    )
    assert generations(trace)[2] == generations(trace)[3] == ([0], [1])
    assert generations(trace)[4][0] == [1]


def test_a_result_filled_before_it_was_returned_was_new_already(path: Path) -> None:
    trace = read(
        path,
        op(2, "aten::sin", SIN, [7], [8]),
        op(4, "aten::sin", SIN, [8], [9], parent=3),  # still reads the old 8
        op(5, "aten::copy_", COPY, [8, 9], [8], parent=3),  # a kernel's own allocation at 8
        op(3, "aten::addmm", "aten::addmm(Tensor self) -> Tensor", [6], [8]),
    )
    assert generations(trace)[4] == ([1], [1])
    assert generations(trace)[5] == ([2, 1], [2])
    assert generations(trace)[3] == ([0], [2])


def test_what_an_op_reads_is_the_memory_as_it_began(path: Path) -> None:
    """The op of another thread ends later but began before the address was given out again."""
    trace = read(
        path,
        op(2, "aten::sin", SIN, [7], [8]),
        op(4, "aten::sin", SIN, [7], [5]),
        op(3, "backward", "", [8], [], tid=2),
        op(6, "aten::sin", SIN, [7], [8]),
    )
    assert generations(trace)[3][0] == [1]
    assert generations(trace)[6][1] == [2]


def test_tensors_without_elements_share_nothing(path: Path) -> None:
    node = op(2, "aten::cat", "aten::cat(Tensor[] tensors, int dim=0) -> Tensor", [], [])
    node["inputs"] = values(3, 4, elements=0)
    node["inputs"]["values"][1][1] = 3  # the same address: none
    first, second = read(path, node).ops[0].tensors()
    assert first.memory != second.memory


def test_lists_scalars_and_unknown_types(path: Path) -> None:
    node = op(2, "aten::_foreach_add_", "", [], [])
    tensor = [901, 5, 2, 4, 2, "cuda:1"]
    node["inputs"] = {
        "values": [[tensor, tensor], 0.5, [2, 3], "<None>", True, tensor, tensor],
        "shapes": [[[4], [4]], [], [[], []], [], [], [2, 2], [2, 2]],
        "types": [
            "GenericList[Tensor(c10::Half),Tensor(c10::Half)]",
            "Double",
            "GenericList[Int,Int]",
            "None",
            "Bool",
            "Tensor(c10::Half)",
            "Tensor(quaternion)",
        ],
        "strides": [[[1], [1]], [], [[], []], [], [], [1, 2], [1, 2]],
    }
    trace = read(path, node)
    held = trace.ops[0].inputs
    assert isinstance(held[0], tuple)
    assert [t.dtype for t in held[0]] == ["float16", "float16"]
    assert held[1:5] == ("0.5", "[2, 3]", "", "True")
    assert not isinstance(held[5], (str, tuple))
    assert (held[5].offset, held[5].strides, held[5].device) == (2, (1, 2), "cuda:1")
    assert held[6] == ""
    assert [(w.code, w.count) for w in trace.warnings] == [("execution-types", 1)]
    assert "quaternion" in trace.warnings[0].message


def test_strides_may_be_missing(path: Path) -> None:
    node = op(2, "aten::sin", SIN, [7], [8])
    del node["inputs"]["strides"]
    (sine,) = read(path, node).ops
    assert sine.tensors()[0].strides is None
