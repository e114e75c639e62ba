"""Families whose loss is in the order of work: streams made one, transfers that hide no more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch

from . import kernels_points as kernels
from .model import DTYPES, Family, Pair, Run, Scope, Tensors, as_op, size_of

LAYERS = 16


def two_chains(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Two independent chains of kernels of so many programs, in turn or side by side."""
    block, links, programs = 1_024, sizes["links"], sizes["programs"]
    count = programs * block
    values = [[scope.random(count) for _ in range(links + 1)] for _ in range(2)]

    def chain(of: list[torch.Tensor]) -> None:
        for x, y in pairwise(of):
            scope.launch(
                kernels.iterate, (programs,), x, y, count, sizes["steps"], BLOCK=block, num_warps=8
            )

    return _chains(scope, [lambda of=of: chain(of) for of in values], [of[-1] for of in values])


def two_products(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Two independent chains of the library's products."""
    size, dtype = sizes["size"], DTYPES[sizes["dtype"]]
    weights = scope.random(size, size, dtype=dtype) * size**-0.5
    values = [[scope.random(size, size, dtype=dtype) for _ in range(7)] for _ in range(2)]

    def chain(of: list[torch.Tensor]) -> None:
        for x, y in pairwise(of):
            torch.mm(x, weights, out=y)

    return _chains(scope, [lambda of=of: chain(of) for of in values], [of[-1] for of in values])


def _chains(scope: Scope, chains: list[Callable[[], None]], results: list[torch.Tensor]) -> Pair:
    """Both chains on one stream, against a stream each; replayed as graphs on a GPU."""
    outputs = tuple(results)

    def one() -> Tensors:
        for chain in chains:
            chain()
        return outputs

    def two() -> Tensors:
        with _side_stream(scope):
            chains[1]()
        chains[0]()
        _join(scope)
        return outputs

    moved = 2 * size_of(*results)
    return Pair(_graphed(scope, one), _graphed(scope, two), moved, concurrent=True)


_SIDE: dict[torch.device, torch.cuda.Stream] = {}


@contextlib.contextmanager
def _side_stream(scope: Scope) -> Iterator[None]:
    """Work that may run beside what follows; where there are no streams it runs at once."""
    if scope.device.type != "cuda":
        yield
        return
    side = _SIDE.setdefault(scope.device, torch.cuda.Stream())
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield


def _join(scope: Scope) -> None:
    if scope.device.type == "cuda":
        torch.cuda.current_stream().wait_stream(_SIDE[scope.device])


def _graphed(scope: Scope, run: Run) -> Run:
    """The run as a CUDA graph: what overlaps is then up to the GPU, not to the host's pace."""
    if scope.device.type != "cuda":
        return run
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()

    def replay() -> Tensors:
        graph.replay()
        return results

    return replay


def offload(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Layers whose results go to the host in so many buckets, beside the layers that follow."""
    count, buckets, steps = sizes["size"], sizes["buckets"], sizes["steps"]
    x, y = scope.random(LAYERS, count), scope.empty(LAYERS, count)
    pinned = scope.device.type == "cuda"
    host = torch.empty(LAYERS, count, pin_memory=pinned, device=None if pinned else scope.device)

    def layer(i: int) -> None:
        grid = (-(-count // 1_024),)
        scope.launch(kernels.iterate, grid, x[i], y[i], count, steps, BLOCK=1_024)

    layers = [as_op(f"layer_{i}", (x[i],), (y[i],), lambda i=i: layer(i)) for i in range(LAYERS)]

    def sent_in(parts: int) -> Run:
        each = LAYERS // parts

        def run() -> Tensors:
            for i, compute in enumerate(layers):
                compute()
                if (i + 1) % each == 0:
                    with _side_stream(scope):
                        host[i + 1 - each : i + 1].copy_(y[i + 1 - each : i + 1], non_blocking=True)
            _join(scope)
            return (host,)

        return run

    return Pair(sent_in(buckets), sent_in(LAYERS), size_of(x, y), concurrent=True)


FAMILIES = (
    Family(
        name="two_chains", engine="triton", cause="serialised_streams", knob="programs",
        neutral=2_112, build=two_chains,
        sweep=(
            ({"links": 6, "steps": 256}, (16, 66, 132, 2_112)),
            ({"links": 12, "steps": 64}, (64, 8, 2_112)),
        ),
        why="independent kernels that fit side by side, put on one stream",
        small={"links": 2, "steps": 3, "programs": 1},
    ),
    Family(
        name="two_products", engine="library", cause="serialised_streams", knob="size",
        neutral=4_096, build=two_products,
        sweep=(({"dtype": "bf16"}, (512, 256, 1_024, 4_096)),),
        why="independent products that leave multiprocessors idle, put on one stream",
        small={"dtype": "fp32", "size": 32},
    ),
    Family(
        name="offload", engine="library", cause="lost_overlap", knob="buckets",
        neutral=LAYERS,
        build=offload,
        sweep=(
            # Transfers take as long as some 140 steps of all layers.
            ({"size": 1 << 20, "steps": 128}, (1, 2, 4, LAYERS)),
            ({"size": 1 << 20, "steps": 512}, (1, LAYERS)),
            ({"size": 1 << 20, "steps": 4_096}, (1, LAYERS)),
            ({"size": 1 << 20, "steps": 16}, (1, LAYERS)),
        ),
        why="transfers merged into buckets that start when nothing is left to hide them",
        small={"size": 40, "steps": 2, "buckets": 4},
    ),
)  # fmt: skip
