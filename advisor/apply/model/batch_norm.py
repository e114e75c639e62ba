"""BatchNorm in inference folded into the convolution before it.

Which pairs may be folded is seen in a run, not guessed from names: the output of a convolution
module, read by one batch norm and by nothing else, and held by nothing when the run is over. A
second run shows that nothing but its parents reached the norm; else all is put back.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from advisor.errors import IllegalFusionError

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# What a tensor is, not what is in it: whoever asks does not read it.
FACTS = {
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda")
} | {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.stride, torch.Tensor.is_floating_point}


class _Reads(TorchFunctionMode):
    """Counts for every watched tensor how often some function of torch is given it."""

    def __init__(self) -> None:
        super().__init__()
        # Held, so that no other tensor gets the identity of one that is gone.
        self.watched: dict[int, torch.Tensor] = {}
        self.count: Counter[int] = Counter()

    def watch(self, tensor: torch.Tensor) -> None:
        self.watched[id(tensor)] = tensor

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs or {})) if func not in FACTS else ():
            if isinstance(leaf, torch.Tensor) and id(leaf) in self.watched:
                self.count[id(leaf)] += 1
        return func(*args, **(kwargs or {}))


class _Pair(NamedTuple):
    convolution: nn.Conv2d
    norm: nn.BatchNorm2d


def fold_batch_norms(module: nn.Module, run: Callable[[], Any]) -> tuple[int, str | None]:
    """Fold every pair in place; (pairs folded, why none was). `run` calls the module once.

    Raises `IllegalFusionError` where the module uses a norm otherwise than by calling it.
    """
    if module.training:
        return 0, "the module trains: its statistics change from step to step"
    pairs = _pairs(module, run)
    if not pairs:
        return 0, "no batch norm reads a convolution alone"
    with ExitStack() as undo:
        for pair in pairs:
            _fold(pair, module, undo)
        refused = _reached(pairs, run)
        if refused is None:
            undo.pop_all()
    return (len(pairs), None) if refused is None else (0, refused)


def _pairs(module: nn.Module, run: Callable[[], Any]) -> list[_Pair]:
    reads = _Reads()
    calls: Counter[nn.Module] = Counter()
    producer: dict[int, nn.Conv2d] = {}
    found: list[tuple[_Pair, int]] = []

    def convolved(made: nn.Conv2d, _: Any, output: torch.Tensor) -> None:
        calls[made] += 1
        producer[id(output)] = made
        reads.watch(output)

    def normalised(norm: nn.BatchNorm2d, given: tuple[Any, ...]) -> None:
        calls[norm] += 1
        source = producer.get(id(given[0])) if given else None
        # Of an output without a batch, the norm takes another axis for the channels.
        if source is not None and given[0].dim() == source.weight.dim():
            found.append((_Pair(source, norm), id(given[0])))

    for item in module.modules():
        if isinstance(item, CONVOLUTIONS) and _is_plain(item, CONVOLUTIONS):
            reads.watch(item.weight)
    with _hooked(module, convolved, normalised), torch.no_grad(), reads:
        returned = run()
    alone = [
        (pair, weakref.ref(reads.watched[value]))
        for pair, value in found
        if calls[pair.convolution] == calls[pair.norm] == 1
        and reads.count[id(pair.convolution.weight)] == 1
        and reads.count[value] == _reads_of(pair.norm, reads.watched[value])
    ]
    reads.watched.clear()
    kept = [pair for pair, output in alone if output() is None]
    del returned  # only now: what it held was alive until here
    return kept


def _reads_of(norm: nn.BatchNorm2d, value: torch.Tensor) -> int:
    """How often torch sees the input of this norm on its way down: through several functions."""
    reads = _Reads()
    reads.watch(value)
    with torch.no_grad(), reads:
        norm(value)
    return reads.count[id(value)]


def _reached(pairs: list[_Pair], run: Callable[[], Any]) -> str | None:
    """Why the folded module is not what it was: a norm is still called.

    Raises `IllegalFusionError` if something else of a norm is used.
    """
    called: list[nn.Module] = []
    with ExitStack() as stack:
        for _, norm in pairs:
            hook = norm.register_forward_pre_hook(lambda it, _: called.append(it))
            stack.callback(hook.remove)
        try:
            with torch.no_grad():
                run()
        except Exception as error:  # the user's code may raise anything without its norm
            raise IllegalFusionError("the module does not run without its batch norm") from error
    return "a batch norm is called by another way than its parent's" if called else None


@contextmanager
def _hooked(
    module: nn.Module, convolved: Callable[..., None], normalised: Callable[..., None]
) -> Iterator[None]:
    """Watch plain convolutions and batch norms; subclasses and hooked modules may do more."""
    with ExitStack() as stack:
        for item in module.modules():
            if _is_plain(item, CONVOLUTIONS):
                handle = item.register_forward_hook(convolved)
            elif _is_plain(item, NORMS) and item.running_mean is not None and not item.training:
                handle = item.register_forward_pre_hook(normalised)
            else:
                continue
            stack.callback(handle.remove)
        yield


def _is_plain(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return type(module) in kinds and not any(hooks) and "forward" not in vars(module)


def _fold(pair: _Pair, module: nn.Module, undo: ExitStack) -> None:
    """Weights and bias that give what both gave, rounded once; no norm in any of its places."""
    convolution, norm = pair
    old, bias = convolution.weight, convolution.bias
    weight, shift = _folded(pair, torch.promote_types(old.dtype, torch.float32))
    last = old.dim() == 4 and old.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    undo.callback(setattr, convolution, "bias", bias)
    undo.callback(setattr, convolution, "weight", old)
    folded = weight.detach().to(old.dtype, memory_format=layout)
    convolution.weight = nn.Parameter(folded, requires_grad=False)
    convolution.bias = nn.Parameter(shift.detach().to(old.dtype), requires_grad=False)
    for parent in list(module.modules()):
        for name in [key for key, child in parent._modules.items() if child is norm]:
            undo.callback(setattr, parent, name, norm)
            setattr(parent, name, nn.Identity())


def _folded(pair: _Pair, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias in a type in which nothing of the module is rounded."""

    def wide(tensor: torch.Tensor | None) -> Any:
        return None if tensor is None else tensor.to(dtype)

    convolution, norm = pair
    return fuse_conv_bn_weights(
        *(wide(convolution.weight), wide(convolution.bias)),
        *(wide(norm.running_mean), wide(norm.running_var)),
        norm.eps,
        *(wide(norm.weight), wide(norm.bias)),
    )
