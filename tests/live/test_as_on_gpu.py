"""Without a GPU a graph is decomposed as a GPU's: types of statistics, products, group norms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from collectors.live.capture import capture
from collectors.live.workload import Workload
from tests.builders.legal_groups import legal_groups

CPU = torch.device("cpu")
BF16 = torch.bfloat16


def nodes(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[tuple[str, str]]:
    """(op, dtype of its result) of all nodes of all graphs of a function and its gradient."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = nn.ParameterList(inputs)

        def forward(self) -> torch.Tensor:
            return function(*self.values)

    module = Module()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found, _ = capture(
        Workload(
            "test", "training", CPU, module, optimizer=optimizer, loss=lambda part: part().sum()
        ),
        generate_code=False,
    )
    return [
        (node.op, node.outputs[0].dtype)
        for graph in found.graphs
        for node in graph.lowered.graph.nodes
        if node.outputs
    ]


def test_statistics_of_a_norm_are_kept_in_float32() -> None:
    x, weight = torch.randn(4, 32, dtype=BF16), torch.ones(32, dtype=BF16)
    found = nodes(lambda x, w: functional.layer_norm(x, (32,), w, w), x, weight)
    assert ("rsqrt", "float32") in found
    # The result and three gradients, no statistics.
    assert found.count(("cast", "bfloat16")) == 4


def test_a_group_norm_scales_and_shifts_what_was_normalised() -> None:
    x, weight = torch.randn(2, 8, 4, 4), torch.ones(8)
    ops = [op for op, _ in nodes(lambda x, w: functional.group_norm(x, 2, w, w), x, weight)]
    assert ops[ops.index("rsqrt") + 1] == "sub"


def test_a_product_with_a_single_row_stays_one() -> None:
    ops = [op for op, _ in nodes(torch.matmul, torch.randn(1, 16), torch.randn(16, 1))]
    assert "mul" not in ops


def test_an_outer_product_is_what_this_pytorch_makes_of_it_off_the_cpu() -> None:
    from torch._inductor import decomposition

    aten = torch.ops.aten.mm.default
    sizes = (5, 1), (1, 7)
    elsewhere = decomposition.decompositions[aten](
        *(torch.empty(size, device="meta") for size in sizes)
    )
    ops = [op for op, _ in nodes(torch.matmul, torch.randn(40, 1), torch.randn(1, 70))]
    assert ("mul" in ops) == (elsewhere is not NotImplemented)


def test_the_gradient_of_a_convolutions_bias_is_a_sum() -> None:
    x, weight, bias = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
    ops = [op for op, _ in nodes(functional.conv2d, x, weight, bias)]
    assert "sum" in ops


def test_the_compilers_own_table_is_as_it_was_afterwards() -> None:
    from torch._inductor import decomposition

    before = dict(decomposition.decompositions)
    nodes(lambda x: functional.layer_norm(x, (32,)), torch.randn(4, 32))
    assert decomposition.decompositions == before
    assert decomposition.fast_random_decomps().items() >= before.items()


def test_the_groups_that_a_run_on_the_card_is_compared_with() -> None:
    found = legal_groups("sample:unet_block:train", CPU)
    assert {phase for phase, _ in found} == {"forward", "backward"}
