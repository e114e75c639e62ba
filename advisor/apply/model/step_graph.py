"""A step or a module as one CUDA graph: captured once, replayed by one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from advisor.errors import WorkloadError

# What capture needs before it: lazily made handles, workspaces and optimizer state.
WARMUP = 3


class StepGraph:
    """Replays what `step` did when it was captured, on the tensors it used then.

    Results live in memory that the next replay writes. Raises `WorkloadError` where the step cannot
    be captured: it synchronises with the host, allocates on another stream or changes its shapes.
    """

    def __init__(self, step: Callable[[], Any]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        gc.collect()
        before = torch.cuda.memory_reserved()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        untouched = generator.clone_state()
        self._graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self._graph):
                self._result = step()
        except (RuntimeError, WorkloadError) as error:
            torch.cuda.synchronize()
            # A capture that fails leaves the generator waiting for its end.
            generator.graphsafe_set_state(untouched)
            cause = error.__cause__ or error
            raise WorkloadError(
                "the step cannot be one CUDA graph",
                why=str(cause).strip().partition("\n")[0],
                remedy="keep host synchronisation (.item(), prints of values) out of the step",
            ) from error
        self.pool_bytes = max(torch.cuda.memory_reserved() - before, 0)

    def __call__(self) -> Any:
        self._graph.replay()
        return self._result


class ModuleGraph:
    """A module's forward as one CUDA graph for inputs of the shapes that it was captured with.

    Inputs are copied into tensors of its own; calls with others run `part` itself. Outputs live in
    memory that the next call writes, as with `torch.compile(mode="reduce-overhead")`.
    """

    def __init__(
        self, part: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._part = part
        self._leaves, self._shape = pytree.tree_flatten((args, kwargs))
        # Not what repeats in memory: it cannot be written.
        self._static = [_own(leaf) for leaf in self._leaves]
        held_args, held_kwargs = pytree.tree_unflatten(self._static, self._shape)
        self._graph = StepGraph(lambda: part(*held_args, **held_kwargs))
        self.pool_bytes = self._graph.pool_bytes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, shape = pytree.tree_flatten((args, kwargs))
        if shape != self._shape or not all(map(_alike, self._static, leaves)):
            return self._part(*args, **kwargs)
        for held, given in zip(self._static, leaves, strict=True):
            if isinstance(held, torch.Tensor) and held is not given:
                held.copy_(given)
        return self._graph()


def _own(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone(memory_format=torch.preserve_format)


def _alike(held: Any, given: Any) -> bool:
    """Whether the graph was captured for such an argument."""
    if not isinstance(held, torch.Tensor):
        return type(held) is type(given) and bool(held == given)
    return (
        isinstance(given, torch.Tensor)
        and not given.requires_grad
        and (held.shape, held.dtype, held.device) == (given.shape, given.dtype, given.device)
        and held.stride() == given.stride()
    )


def prepare_optimizer(optimizer: torch.optim.Optimizer) -> str | None:
    """Let the optimizer be captured: its counts and rates on the device; the reason if it cannot.

    A rate that stays a Python number would be frozen into the graph, whatever a scheduler says.
    """
    for group in optimizer.param_groups:
        if "capturable" not in group and type(optimizer) is not torch.optim.SGD:
            return f"{type(optimizer).__name__} has no capturable form"
        if "capturable" in group:
            group["capturable"] = True
        device = group["params"][0].device
        if not isinstance(group["lr"], torch.Tensor):
            group["lr"] = torch.tensor(group["lr"], device=device)
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if isinstance(step, torch.Tensor) and step.device != parameter.device:
                optimizer.state[parameter]["step"] = step.to(parameter.device)
    return None
