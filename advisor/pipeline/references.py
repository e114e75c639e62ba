"""Copies of a workload to judge others by: computed more exactly, or without random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils import _pytree as pytree

from advisor.errors import WorkloadError
from collectors.live.failures import failure
from collectors.live.workload import Workload

Reload = Callable[[], Workload]
# What computes something else in evaluation than the statistics of the batch give, or fails.
_STILL_TRAINED = (_BatchNorm, _InstanceNorm, nn.RNNBase)


def exact_type(module: nn.Module) -> torch.dtype:
    """The type that a module's rounding can be measured against.

    float32 for parameters that are all narrower; else float64, for float32 itself would be compared
    with itself. float64 values are also left alone by autocast.
    """
    kinds = {p.dtype for p in module.parameters() if p.is_floating_point()}
    narrower = bool(kinds) and all(torch.finfo(kind).bits < 32 for kind in kinds)
    return torch.float32 if narrower else torch.float64


def widened(twin: Workload) -> torch.dtype | None:
    """Let a workload's module compute in its `exact_type`, in place; None where it is no module.

    The optimizer holds these very parameters; what it has of them is converted too. What the module
    is given is converted, and what it returns in float64 is rounded to float32: the loss around it
    may know no other type. What its code makes float32 by name stays so.
    """
    module = twin.part
    if not isinstance(module, nn.Module):
        return None
    kind = exact_type(module)
    module._apply(lambda tensor: _in_type(tensor, kind))
    if twin.optimizer is not None:
        for parameter, held in twin.optimizer.state.items():
            alike = {n: v for n, v in held.items() if getattr(v, "shape", None) == parameter.shape}
            held.update(_cast(alike, kind))
    module.register_forward_pre_hook(
        lambda _, args, named: _cast((args, named), kind), with_kwargs=True
    )
    module.register_forward_hook(lambda _, args, result: _cast(result, torch.float32))
    return kind


def _cast(values: Any, kind: torch.dtype) -> Any:
    """All floating-point and complex tensors in a structure, in a type."""
    return pytree.tree_map(
        lambda v: _in_type(v, kind) if isinstance(v, torch.Tensor) else v, values
    )


def _in_type(tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """A tensor of numbers in a type, complex ones of it: `Module.to` would drop imaginary parts."""
    if tensor.is_complex():
        return tensor.to(kind.to_complex())
    return tensor.to(kind) if tensor.is_floating_point() else tensor


def without_dropout(twin: Workload) -> Workload | None:
    """A workload that drops nothing, its module in place; None where it is no training module, or
    one that refuses.

    The module evaluates, for what draws random numbers asks whether it trains; norms that take the
    statistics of the batch go on to do so, and so do recurrent layers, of which cuDNN computes no
    gradients else: their own dropout becomes 0.
    """
    module = twin.part
    if twin.kind != "training" or not isinstance(module, nn.Module):
        return None
    trained = [m for m in module.modules() if isinstance(m, _STILL_TRAINED) and m.training]
    try:
        _evaluate(module, trained)
    except WorkloadError:
        return None
    for part in trained:
        if isinstance(part, nn.RNNBase):
            part.dropout = 0.0
    return twin


def _evaluate(module: nn.Module, trained: Sequence[nn.Module]) -> None:
    """Let a module evaluate, but for parts of it."""
    try:
        module.eval()
        for part in trained:
            part.train()
    except Exception as error:  # modes are set by the user's code, which may raise anything
        raise failure("it does not evaluate", error, where=type(module).__name__) from error


def undropped(reload: Reload) -> Reload:
    """How to load a workload so that it drops nothing, if it can."""

    def load() -> Workload:
        twin = reload()
        return without_dropout(twin) or twin

    return load
