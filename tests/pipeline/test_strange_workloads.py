"""Workloads of unusual tensors and errors: captured, or refused with one line of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import WorkloadError
from collectors.live.capture import capture
from collectors.live.failures import MOST_SAID
from collectors.live.workload import Workload, load_workload

CPU = torch.device("cpu")


class Applying(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def workload(function: Callable[[Any], Any], x: torch.Tensor) -> Workload:
    return Workload("strange", "inference", CPU, Applying(function).eval(), inputs=(x,))


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize(
    ("function", "make", "shape"),
    [
        (lambda x: (x @ torch.ones(4, 2)) * 2, lambda: torch.eye(4).to_sparse_csr(), "4, 4"),
        (lambda x: torch.sparse.mm(x, torch.ones(4, 2)), lambda: torch.eye(4).to_sparse(), "4, 4"),
        (
            lambda x: (x * 2).relu(),
            lambda: torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)]),
            "nested",
        ),
        (lambda x: x * 2 + 1, lambda: torch.ones(1, 4).expand(3, 4), "3, 4"),
        (lambda x: torch.softmax(x * 2, -1), lambda: torch.zeros(0, 4), "0, 4"),
    ],
)
def test_tensors_of_every_layout_are_inputs(
    function: Callable[[Any], Any], make: Callable[[], torch.Tensor], shape: str
) -> None:
    work = workload(function, make())
    assert work.shapes() == (f"float32[{shape}]",)
    with work.preserved():
        work.step_of()()
    capture(work, generate_code=False)


def test_what_cannot_be_moved_to_the_device_is_an_error_of_the_workload(
    tmp_path: Any,
) -> None:
    path = tmp_path / "on_meta.py"
    path.write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Linear(4, 4), (torch.empty(2, 4, device='meta'),)\n"
    )
    with pytest.raises(WorkloadError, match="Cannot copy out of meta tensor"):
        load_workload(f"{path}:make", CPU)


def test_an_endless_message_is_cut() -> None:
    def fail(_: Any) -> Any:
        raise ValueError("A" * 100_000)

    work = workload(fail, torch.zeros(3))
    for run in (work.step_of(), lambda: capture(work, generate_code=False)):
        with pytest.raises(WorkloadError, match="AAA…") as caught:
            run()
        assert len(caught.value.line()) < 2 * MOST_SAID
