"""What a training step's loss computes outside the model, where no graph of the model holds it.

The loss that autograd returns leads back, op by op, to where the compiled model gave its result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

# How AOTAutograd's functions are called in an autograd graph.
_COMPILED = "CompiledFunction"
_NO_WORK = frozenset({
    "accumulate_grad", "alias", "as_strided", "detach", "expand", "permute", "reshape_alias",
    "select", "slice", "split", "squeeze", "t", "transpose", "unbind", "unsafe_view", "unsqueeze",
    "view",
})  # fmt: skip


@dataclass
class WatchedLoss:
    """Calls `loss` and keeps, in `outside`, the ops by which the latest result left the model."""

    loss: Callable[[Any], torch.Tensor]
    outside: tuple[str, ...] = field(default=(), init=False)

    def __call__(self, model: Any) -> torch.Tensor:
        """The loss of the model, as it is."""
        result = self.loss(model)
        self.outside = ops_outside(result) if isinstance(result, torch.Tensor) else ()
        return result


def ops_outside(result: torch.Tensor) -> tuple[str, ...]:
    """Differentiable ops between compiled functions and a result, views left out, last op first."""
    found: list[str] = []
    pending, seen = [result.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = type(node).__name__
        if _COMPILED in name:
            continue
        pending += [function for function, _ in node.next_functions]
        found.append(_op_name(name))
    return tuple(name for name in found if name not in _NO_WORK)


def _op_name(name: str) -> str:
    """`LogSoftmaxBackward0` as `log_softmax`."""
    bare = re.sub(r"Backward\d*$", "", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", bare).lower()
