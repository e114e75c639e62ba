"""A whole step as one CUDA graph: captured once, replayed by one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

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
        self._graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self._graph):
                self._result = step()
        except (RuntimeError, WorkloadError) as error:
            torch.cuda.synchronize()
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
