"""What became of one site of a Dynamo graph."""

from __future__ import annotations

from typing import Literal

from advisor.model.base import Location, Record

Route = Literal["scaled_dot_product_attention", "flex_attention", "chunked_loss"]
SdpaBackend = Literal["flash", "memory-efficient", "cudnn", "math"]


class Rewritten(Record, frozen=True, kw_only=True):
    """One place where attention, or a loss over a vocabulary, is written out, and what replaced it.

    Or a call of `scaled_dot_product_attention` that no fused kernel took, with better arguments.

    `route` is the call that was meant when the site was refused too, or None if the reason came
    before the choice. `backends` are the kernels of `scaled_dot_product_attention` that PyTorch's
    own checks of arguments admit on CUDA; the GPU's generation may rule out more, and prefers one.
    cuDNN is not among them where it is left out because its gradients may be wrong.
    `or_flex`: FlexAttention takes the site too; if not, `not_flex` says why, and what to do.
    `changes` says in what the numbers differ from the original ones beyond rounding, and of a loss
    what it saves. `with_loss`: the site is in the graphs of a step whose loss is compiled with its
    model, and in no others.
    """

    what: str
    location: Location
    route: Route | None = None
    refused: str | None = None
    backends: tuple[SdpaBackend, ...] = ()
    or_flex: bool = False
    not_flex: str = ""
    changes: tuple[str, ...] = ()
    with_loss: bool = False
