"""What became of one site of a Dynamo graph."""

from __future__ import annotations

from typing import Literal

from advisor.model.base import Location, Record

Route = Literal["scaled_dot_product_attention", "flex_attention"]
SdpaBackend = Literal["flash", "memory-efficient", "cudnn", "math"]


class Rewritten(Record, frozen=True, kw_only=True):
    """One place where attention is written out, and the call that took its place.

    `route` is the call that was meant when the site was refused too, or None if the reason came
    before the choice. `backends` are the kernels of `scaled_dot_product_attention` that PyTorch's
    own checks of arguments admit on CUDA, best first; the GPU's generation may rule out more.
    `changes` says in what the numbers differ from the original ones beyond rounding.
    """

    what: str
    location: Location
    route: Route | None = None
    refused: str | None = None
    backends: tuple[SdpaBackend, ...] = ()
    changes: tuple[str, ...] = ()
