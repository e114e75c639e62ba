"""A step or a module as one CUDA graph: captured once, replayed by one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from advisor.apply.model.multi_tensor import is_multi_tensor
from advisor.apply.model.optimizer import fuse_optimizer
from advisor.errors import WorkloadError

# What capture needs before it: lazily made handles, workspaces and optimizer state.
WARMUP = 3
# Arguments that are the same if they are equal; of others, arrays say, equality is no yes or no.
PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def beside(step: Callable[[], Any]) -> Any:
    """Run a step on a stream of its own, as it must be before it is captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = step()
    torch.cuda.current_stream().wait_stream(stream)
    return result


class StepGraph:
    """Replays what `step` did when it was captured, on the tensors it used then.

    Results live in memory that the next replay writes. Raises `WorkloadError` where the step cannot
    be captured: it synchronises with the host, allocates on another stream or changes its shapes.
    Before it is captured it is run `warmup` times.
    """

    def __init__(self, step: Callable[[], Any], warmup: int = WARMUP) -> None:
        for _ in range(warmup):
            beside(step)
        torch.cuda.synchronize()
        gc.collect()
        # Workspaces that cuBLAS keeps for the stream of all captures may lie in the pool of an
        # earlier graph, or be given back by whoever clears them next: this one gets its own.
        torch._C._cuda_clearCublasWorkspaces()
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
        finally:
            # Given back to this graph's pool, from which nobody else takes: no later capture uses
            # what this one's replays write.
            torch._C._cuda_clearCublasWorkspaces()
        self.pool_bytes = max(torch.cuda.memory_reserved() - before, 0)

    def __call__(self) -> Any:
        self._graph.replay()
        return self._result


class ModuleGraph:
    """A module's forward as one CUDA graph for inputs of the shapes that it was captured with.

    Inputs are copied into tensors of its own. Calls with others run `part` itself, and so do calls
    that want gradients, under another autocast or of a module switched to train since. Outputs live
    in memory that the next call writes, as with `torch.compile(mode="reduce-overhead")`.
    """

    def __init__(
        self, part: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._part = part
        self._leaves, self._shape = pytree.tree_flatten((args, kwargs))
        # Tensors of inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            # Not what repeats in memory: it cannot be written.
            self._static = [_own(leaf) for leaf in self._leaves]
            held_args, held_kwargs = pytree.tree_unflatten(self._static, self._shape)
            self._graph = StepGraph(lambda: part(*held_args, **held_kwargs))
            self._ambience = _ambience(part)
        self.pool_bytes = self._graph.pool_bytes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, shape = pytree.tree_flatten((args, kwargs))
        alike = shape == self._shape and all(map(_alike, self._static, leaves))
        if not alike or _ambience(self._part) != self._ambience:
            return self._part(*args, **kwargs)
        for held, given in zip(self._static, leaves, strict=True):
            if isinstance(held, torch.Tensor) and held is not given:
                held.copy_(given)
        return self._graph()


def on_host(part: object, given: Iterable[torch.Tensor]) -> str | None:
    """Why one CUDA graph cannot be what runs: some of it is on the CPU; None where none is."""
    mine, theirs = _places(part, given)
    return "it runs on the CPU" if mine | theirs == {"cpu"} else partly_on_host(part, given)


def partly_on_host(part: object, given: Iterable[torch.Tensor]) -> str | None:
    """The same where some of it is on the CPU and the rest is not.

    What the CPU computes, and numbers that a kernel is launched with, are those of the capture.
    """
    mine, theirs = _places(part, given)
    if "cpu" not in mine | theirs or mine | theirs == {"cpu"}:
        return None
    what = "a part of the model" if "cpu" in mine else "a tensor that it is given"
    return f"{what} is on the CPU, of which a graph would keep what was there at its capture"


def _places(part: object, given: Iterable[torch.Tensor]) -> tuple[set[str], set[str]]:
    """On which sorts of device a module's tensors are, and those that it is given."""
    own = [*part.parameters(), *part.buffers()] if isinstance(part, nn.Module) else []
    return {t.device.type for t in own}, {t.device.type for t in given}


def _ambience(part: Callable[..., Any]) -> tuple[Any, ...]:
    """What a call depends on besides its arguments; told in a microsecond, once a replay."""
    training = part.training if isinstance(part, nn.Module) else None
    autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
    return torch.is_grad_enabled(), autocast, training


def _own(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone(memory_format=torch.preserve_format)


def _alike(held: Any, given: Any) -> bool:
    """Whether the graph was captured for such an argument."""
    if not isinstance(held, torch.Tensor):
        return held is given or (
            isinstance(held, PLAIN) and type(held) is type(given) and held == given
        )
    # Strides may differ: it is copied, and a slice has none that a tensor of its own could have.
    same = (
        isinstance(given, torch.Tensor)
        and not given.requires_grad
        and (held.shape, held.dtype, held.device) == (given.shape, given.dtype, given.device)
    )
    # A graph keeps what was read on the CPU: a number that a kernel was launched with.
    return same and (held.device.type != "cpu" or torch.equal(held, given))


def prepare_optimizer(optimizer: torch.optim.Optimizer) -> str | None:
    """Let the optimizer be captured: its counts and rates on the device; the reason if it cannot.

    A rate that stays a Python number would be frozen into the graph, whatever a scheduler says.
    SGD reads one on the device in its fused form only; its others wait for its value.
    """
    groups = [group for group in optimizer.param_groups if group["params"]]
    for group in groups:
        if "capturable" not in group and type(optimizer) is not torch.optim.SGD:
            return f"{type(optimizer).__name__} has no capturable form"
    fused = is_multi_tensor(optimizer) or all(group.get("fused") for group in groups)
    if type(optimizer) is torch.optim.SGD and not fused:
        refused = fuse_optimizer(optimizer)
        if refused is not None:
            return f"SGD has a capturable form where it is fused: {refused}"
    for group in groups:
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
