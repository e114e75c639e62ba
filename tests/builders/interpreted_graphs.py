"""Run as a script with `TRITON_INTERPRET=1`: swapped graphs with their very kernels, on the CPU.

Each case is captured at one size, its kernels are swapped into the graph that Dynamo compiles for
any number of rows, and that graph is run at other sizes: the arguments and grids are those that the
graph computes. Writes what came of each case as a line of JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch.nn import functional

from advisor.apply.kernels import load_kernel
from advisor.apply.rewrite import rewrite
from advisor.model.configs import default_config
from advisor.model.launch import LaunchConfig, Scheme
from advisor.model.plan import FusionPlan
from advisor.pipeline import backend
from advisor.pipeline.backend import SwapLog
from collectors.live.as_on_gpu import decomposed_as_on_gpu
from collectors.live.capture import BoxedCall, _passes_only, no_compile_caches
from collectors.live.fx_graph import Lowered, copied
from tests.builders import captured as models
from tests.builders.gemms import gemms_of

Make = Callable[[int], tuple[torch.Tensor, ...]]


def softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2 + y, -1)


def of_sequences(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mask has one value a position: a kernel needs the size of the inner row axis for it."""
    return torch.softmax(x + mask[None, :, None], -1)


def transposed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Rows of the second lie in another order: one of its strides is a size times another."""
    return functional.layer_norm(x + y.transpose(0, 1), (x.shape[-1],))


def column_sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    wide = x * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6)
    return wide, wide.sum(0), wide.var(0)


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.silu(x @ weight)


def operands(rows: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, 32), torch.randn(32, 48)


def looked_up(ids: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows of a table and their norm; the last index of each sequence is not read."""
    read = functional.embedding(ids[:, :-1], table)
    return functional.layer_norm(read, (24,)), read


def rows_of(columns: int, tensors: int) -> Make:
    def make(rows: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(rows)
        return tuple(torch.randn(rows, columns, generator=generator) for _ in range(tensors))

    return make


def sequences(rows: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(3, rows, 24), torch.randn(rows)


def indices(rows: int) -> tuple[torch.Tensor, ...]:
    """Also of a table with any number of rows."""
    return torch.randint(0, 40 + rows, (rows, 7)), torch.randn(40 + rows, 24)


def both_orders(rows: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, 5, 24), torch.randn(5, rows, 24)


def streamed(scheme: Scheme, splits: int | None = None) -> LaunchConfig:
    return LaunchConfig(scheme=scheme, block_rows=4, block_columns=16, splits=splits)


Case = tuple[str, Callable[..., Any], Make, tuple[int, int], LaunchConfig | None]
# The name, the step, its inputs, which axis of each is dynamic (or none), how kernels are launched.
CASES: tuple[Case, ...] = (
    ("registers", softmax, rows_of(48, 2), (0, 0), LaunchConfig(block_rows=4)),
    ("looped", softmax, rows_of(40, 2), (0, 0), streamed("looped")),
    ("online", softmax, rows_of(40, 2), (0, 0), streamed("online")),
    ("split", softmax, rows_of(40, 2), (0, 0), streamed("split", splits=2)),
    ("product", product, operands, (0, -1), None),
    ("inner size", of_sequences, sequences, (1, 0), LaunchConfig(block_rows=2)),
    ("transposed", transposed, both_orders, (0, 1), None),
    ("looked up", looked_up, indices, (0, 0), LaunchConfig(block_rows=2)),
    ("column sums", column_sums, rows_of(24, 2), (0, 0),
     LaunchConfig(scheme="column_sums", block_rows=4, splits=8)),
)  # fmt: skip
SIZES = (12, 29, 3)


def running(log: SwapLog, kernels: Sequence[Any], swapped: list[fx.Graph]) -> Callable[..., Any]:
    """The backend with a compiler that runs swapped graphs node by node, kernels in Triton."""
    own = rewrite

    def keeping(graph: fx.Graph, *given: Any) -> Any:
        outcomes = own(graph, *given)
        swapped.append(copied(graph))
        return outcomes

    def inner(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
        with decomposed_as_on_gpu():
            _passes_only(gm, example_inputs, **options)
        runner = fx.Interpreter(fx.GraphModule(gm, swapped[-1]))
        return BoxedCall(lambda args: list(runner.run(*args)))

    backend.rewrite = keeping  # type: ignore[attr-defined]
    return backend.plan_backend(kernels, log, inner)


def plans_of(name: str, lowered: Lowered) -> list[FusionPlan]:
    return gemms_of(lowered) if name == "product" else models.plans_of(lowered)


def mark(inputs: Sequence[torch.Tensor], axes: Sequence[int]) -> None:
    """Have Dynamo compile for any size of one axis of each input; of those with -1 for none."""
    for tensor, axis in zip(inputs, axes, strict=True):
        if axis >= 0:
            torch._dynamo.mark_dynamic(tensor, axis)


def run(
    name: str,
    step: Callable[..., Any],
    make: Make,
    axes: tuple[int, int],
    config: LaunchConfig | None,
) -> dict[str, Any]:
    """One case, from capture to the error at the last size."""
    torch.compiler.reset()
    (graph,) = models.captured(step, *make(16)).graphs
    folder = Path(tempfile.mkdtemp())
    plans = plans_of(name, graph.lowered)
    kernels = [load_kernel(p, folder, config or default_config(p, p.sites[0])) for p in plans]
    torch.compiler.reset()
    log, swapped = SwapLog(), list[fx.Graph]()
    compiled = torch.compile(step, backend=running(log, kernels, swapped))
    errors = []
    for rows in SIZES:
        inputs = make(rows)
        mark(inputs, axes)
        pairs = zip(tensors(step(*inputs)), tensors(compiled(*inputs)), strict=True)
        errors.append(max(float((a - b).abs().max()) for a, b in pairs))
    calls = [
        node.kwargs["kwargs"]
        for node in swapped[0].find_nodes(
            op="call_function", target=triton_kernel_wrapper_functional
        )
    ]
    return {
        "name": name,
        "graphs": len(swapped),
        "refused": [outcome.refused for outcome in log.outcomes],
        "at run time": sorted({n for call in calls for n, v in call.items() if is_size(v)}),
        "errors": errors,
    }


def is_size(node: fx.Node) -> bool:
    return isinstance(node.meta["val"], torch.SymInt)


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


if __name__ == "__main__":
    import tests.builders.quick_interpreter  # noqa: F401

    with no_compile_caches(), torch.no_grad():
        for case in CASES:
            sys.stdout.write(json.dumps(run(*case)) + "\n")
