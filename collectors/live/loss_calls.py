"""A loss that goes through the parts of its model instead of calling it: then the loss is compiled.

`for layer in model: x = layer(x)` or `model[0](x)` finds no layers in a compiled model, which has
no length, no items and another type; and what it calls of `model.encoder` runs uncompiled. Compiled
as one function that is given the model as it is, such a loss sees everything, and its calls are in
the graphs.

Any other loss can be compiled with its model too (`WithLoss`): what it computes of the model's
result is then in one graph with what made that, and what it drops of it is no result at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch._dynamo.eval_frame import OptimizedModule

from collectors.live.random_numbers import kept

Loss = Callable[[Any], torch.Tensor]


class _CalledError(BaseException):
    """A module was called; no handler of the user's code for its own errors takes it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def calls_parts(loss: Loss, model: nn.Module) -> bool:
    """Whether the first module that a loss calls is a part of the model, and not the model.

    The loss runs as far as that call, from the random numbers that it finds, which stay as they
    are; a batch that it takes from an iterator is gone. A loss that calls no module, or fails
    before, goes through no parts.
    """

    def called(module: nn.Module, _: Any) -> None:
        raise _CalledError(module)

    parts = [part for part in model.modules() if not isinstance(part, torch.jit.ScriptModule)]
    hooks = [part.register_forward_pre_hook(called, prepend=True) for part in parts]
    devices = {parameter.device for parameter in model.parameters()}
    try:
        # What the user's code raises, it will raise again where that is told.
        with kept(devices), contextlib.suppress(Exception):
            loss(model)
    except _CalledError as call:
        return call.module is not model
    finally:
        for hook in hooks:
            hook.remove()
    return False


class LossOfParts:
    """A loss that can be given a compiled model whichever way it uses it."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self._goes_through: bool | None = None
        self._compiled: WeakKeyDictionary[OptimizedModule, Loss] = WeakKeyDictionary()

    def goes_through(self, model: nn.Module) -> bool:
        """Whether it calls parts of the model in the model's place; asked once, for all models."""
        if self._goes_through is None:
            self._goes_through = calls_parts(self.loss, model)
        return self._goes_through

    def __call__(self, model: Any) -> torch.Tensor:
        """The loss of a model; where it is a compiled one and gone through, compiled as a whole."""
        if not isinstance(model, OptimizedModule) or not self.goes_through(model._orig_mod):
            return self.loss(model)
        if model not in self._compiled:
            # As the model is compiled: by the same backend, with the same settings.
            self._compiled[model] = model.dynamo_ctx(self.loss)
        return self._compiled[model](model._orig_mod)


class WithLoss:
    """A model that a backend compiles together with its loss, as one function.

    Where the compiler parts that function it computes the same, in several graphs.
    """

    def __init__(self, model: nn.Module, backend: Callable[..., Any]) -> None:
        self.model, self._backend = model, backend
        self._compiled: tuple[Loss, Loss] | None = None

    def loss_of(self, loss: Loss) -> torch.Tensor:
        """The loss of the model, compiled when it is first asked for."""
        bare = loss.loss if isinstance(loss, LossOfParts) else loss
        if self._compiled is None or self._compiled[0] is not bare:
            self._compiled = bare, torch.compile(bare, backend=self._backend)
        return self._compiled[1](self.model)


def loss_of(loss: Loss, part: Any) -> torch.Tensor:
    """The loss of a model, of a compiled one, or of one that is compiled with its loss."""
    return part.loss_of(loss) if isinstance(part, WithLoss) else loss(part)


# By name: what is not in use is not imported for it.
_WRAPPERS = frozenset(
    ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
)


def wrapper_in(model: nn.Module) -> str | None:
    """What splits or shards a model, or a part of it, among ranks; None where nothing does.

    Its hooks and buckets run between graphs: it is not compiled together with what calls it.
    """
    names = (kind.__name__ for part in model.modules() for kind in type(part).__mro__)
    return next((name for name in names if name in _WRAPPERS), None)
