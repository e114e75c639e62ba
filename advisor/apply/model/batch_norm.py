"""BatchNorm in inference folded into the convolution before it.

Which pairs may be folded is seen in a run, not guessed from names: the output of a convolution
module, read by one batch norm and by nothing else, and not returned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


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
        for leaf in pytree.tree_leaves((args, kwargs or {})):
            if isinstance(leaf, torch.Tensor) and id(leaf) in self.watched:
                self.count[id(leaf)] += 1
        return func(*args, **(kwargs or {}))


def fold_batch_norms(module: nn.Module, run: Callable[[], Any]) -> tuple[int, str | None]:
    """Fold every pair in place; (pairs folded, why none was). `run` calls the module once."""
    if module.training:
        return 0, "the module trains: its statistics change from step to step"
    pairs = _pairs(module, run)
    if not pairs:
        return 0, "no batch norm reads a convolution alone"
    parents = {
        child: (parent, name)
        for parent in module.modules()
        for name, child in parent.named_children()
    }
    for convolution, norm in pairs:
        _fold(convolution, norm)
        parent, name = parents[norm]
        setattr(parent, name, nn.Identity())
    return len(pairs), None


def _pairs(module: nn.Module, run: Callable[[], Any]) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    reads = _Reads()
    calls: Counter[nn.Module] = Counter()
    producer: dict[int, nn.Conv2d] = {}
    found: list[tuple[nn.Conv2d, nn.BatchNorm2d, int]] = []

    def convolved(made: nn.Conv2d, _: Any, output: torch.Tensor) -> None:
        calls[made] += 1
        producer[id(output)] = made
        reads.watch(output)

    def normalised(norm: nn.BatchNorm2d, given: tuple[Any, ...]) -> None:
        calls[norm] += 1
        source = producer.get(id(given[0])) if given else None
        if source is not None:
            found.append((source, norm, id(given[0])))

    with _hooked(module, convolved, normalised), torch.no_grad(), reads:
        returned = run()
    kept = {id(leaf) for leaf in pytree.tree_leaves(returned)}
    return [
        (convolution, norm)
        for convolution, norm, value in found
        if calls[convolution] == calls[norm] == 1
        and value not in kept
        and reads.count[value] == _reads_of(norm, reads.watched[value])
    ]


def _reads_of(norm: nn.BatchNorm2d, value: torch.Tensor) -> int:
    """How often torch sees the input of this norm on its way down: through several functions."""
    reads = _Reads()
    reads.watch(value)
    with torch.no_grad(), reads:
        norm(value)
    return reads.count[id(value)]


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
    return type(module) in kinds and not any(hooks)


def _fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    """Weights and bias that give what the convolution and the norm gave, in float32 once."""
    weight, bias = fuse_conv_bn_weights(
        convolution.weight.float(),
        None if convolution.bias is None else convolution.bias.float(),
        norm.running_mean.float(),  # type: ignore[union-attr]
        norm.running_var.float(),  # type: ignore[union-attr]
        norm.eps,
        None if norm.weight is None else norm.weight.float(),
        None if norm.bias is None else norm.bias.float(),
    )
    old = convolution.weight
    last = old.dim() == 4 and old.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    folded = weight.detach().to(old.dtype, memory_format=layout)
    convolution.weight = nn.Parameter(folded, requires_grad=False)
    convolution.bias = nn.Parameter(bias.detach().to(old.dtype), requires_grad=False)
