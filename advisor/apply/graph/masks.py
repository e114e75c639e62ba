"""What the steps between product and softmax do to single pairs of query and key.

A mask is replaced by `is_causal`, or dropped, only if it was computed (`constants`) and compared.
Everything else is handed on as a tensor that repeats the model's own arithmetic on scores of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import fx

from advisor.apply.graph.constants import MOST_ELEMENTS, Constants
from advisor.apply.graph.products import Size, tensor
from advisor.apply.graph.site import Step
from advisor.apply.graph.spelling import read, value_of
from advisor.errors import IllegalFusionError

MaskKind = Literal["none", "causal", "boolean", "additive"]

# A key whose score is put this low has no weight beside one that is not, and a value added that is
# this low has the same effect: scores of models are below 1e3.
FILL = -1e4
_LOW = {torch.float16: -3e4}
_LOW_OTHERWISE = -1e9


def low_of(dtype: torch.dtype) -> float:
    """What is added to a score to mask it is below this."""
    return _LOW.get(dtype, _LOW_OTHERWISE)


@dataclass(frozen=True)
class Mask:
    """How to tell fused attention which pairs count; `words` say it, `allowed` if it is known.

    `may_be_blind`: some query may see no key, which only the values at run time tell.
    """

    kind: MaskKind
    words: str
    allowed: torch.Tensor | None = None
    may_be_blind: bool = False
    changes: tuple[str, ...] = ()


def mask_of(
    steps: Sequence[Step], sizes: tuple[Size, Size], dtype: torch.dtype, constants: Constants
) -> Mask:
    """The mask of a site of [queries, keys]; `dtype` is that of the fused attention.

    Raises `IllegalFusionError` for masks that no argument of fused attention expresses.
    """
    masking = [step for step in steps if step.kind in ("add", "fill")]
    for step in masking:
        if step.kind == "fill" and step.number > FILL:
            raise IllegalFusionError("masked scores are put so high that they keep weight")
    if not masking:
        return Mask("none", "no mask")
    allowed = _allowed(steps, sizes, dtype, constants)
    if allowed is not None:
        return _known(allowed, steps)
    fills = [step for step in masking if step.kind == "fill"]
    if len(fills) == len(masking) and all(step.number == -torch.inf for step in fills):
        change = "a query that may see no key gives 0 where softmax gives NaN"
        return Mask("boolean", "masked", changes=(change,))
    change = "a query that may see no key passes no gradient on to queries and keys"
    words = "masked, " if fills else ""
    return Mask(
        "additive",
        f"{words}with a tensor added to the scores",
        may_be_blind=True,
        changes=(change,),
    )


def _known(allowed: torch.Tensor, steps: Sequence[Step]) -> Mask:
    """A mask that was computed: every query sees a key."""
    if bool(allowed.all()):
        return Mask("none", "a mask that allows everything", allowed)
    if torch.equal(allowed, torch.ones_like(allowed).tril()):
        return Mask("causal", "causal", allowed)
    only_fills = all(step.kind != "add" for step in steps)
    kind: MaskKind = "boolean" if only_fills else "additive"
    window = window_of(allowed)
    words = "a fixed mask" if window is None else f"a causal window of {window} keys"
    return Mask(kind, words, allowed)


def window_of(allowed: torch.Tensor) -> int | None:
    """W if query i sees exactly the keys i - W < j <= i; None for other masks."""
    rows, columns = allowed.shape[-2:]
    distance = torch.arange(rows)[:, None] - torch.arange(columns)[None, :]
    seen = distance[allowed.reshape(-1, rows, columns).any(0)]
    if not seen.numel() or int(seen.min()) < 0:
        return None
    width = int(seen.max()) + 1
    band = (distance >= 0) & (distance < width)
    return width if torch.equal(allowed, band.expand_as(allowed)) else None


def _allowed(
    steps: Sequence[Step], sizes: tuple[Size, Size], dtype: torch.dtype, constants: Constants
) -> torch.Tensor | None:
    """Which pairs count, [batch or 1, heads or 1, M, N], if that is constant and all there is.

    None also if some query sees no key: then the numbers added matter.
    """
    if not all(isinstance(size, int) for size in sizes):
        return None
    total = torch.zeros((1, 1, 1, 1), dtype=torch.float64)
    for step in steps:
        if step.kind in ("add", "fill"):
            term = _constant_term(step, constants)
            if term is None:
                return None
            total = _after(step, total, term)
        elif bool(total.any()) and not (step.kind == "scale" and step.number > 0):
            return None  # What was masked need not be masked after it.
    return _where_zero(total, sizes, low_of(dtype))


def _where_zero(total: torch.Tensor, sizes: tuple[Size, Size], low: float) -> torch.Tensor | None:
    masked = total <= low
    if not bool((masked | (total == 0)).all()):
        return None
    lead = total.shape[:-2]
    if lead.numel() * int(sizes[0]) * int(sizes[1]) > MOST_ELEMENTS:
        return None
    allowed = (~masked).expand(*lead, *sizes)
    return allowed if bool(allowed.any(-1).all()) else None


def _constant_term(step: Step, constants: Constants) -> torch.Tensor | None:
    assert step.term is not None
    fake = tensor(step.term)
    leading = fake.shape[:-2] if fake.dim() > 2 else torch.Size()
    fits = len(step.lead) == 2 or all(isinstance(n, int) and n == 1 for n in leading)
    if not fits or (fake.dim() > 4 and leading[:-2].numel() != 1):
        return None
    value = constants.value(step.term, step.node)
    if value is None:
        return None
    shape = (1,) * (4 - value.dim()) + tuple(value.shape) if value.dim() < 4 else value.shape[-4:]
    return value.reshape(shape)


def _after(step: Step, total: torch.Tensor, term: torch.Tensor) -> torch.Tensor:
    if step.kind == "add":
        return total + step.number * term.to(torch.float64)
    where = ~term if step.inverted else term
    return torch.where(where, torch.tensor(-torch.inf, dtype=torch.float64), total)


def made_of_booleans(node: fx.Node, constants: Constants) -> bool:
    """Whether a tensor holds only 0 and numbers so low that they mask: no precision to lose."""
    call = read(node)
    if call is None:
        return False
    if call.name in ("expand", "view", "getitem", "copy", "cast"):
        return _of(call["input"], constants)
    if call.name == "where":
        return all(_masks(constants, call[side], node) for side in ("input", "other"))
    if call.name == "masked_fill":
        return _masks(constants, call["value"], node) and _is_base(call["input"], node, constants)
    return call.name == "mul" and _masks(constants, call["other"], node) and _counted(call["input"])


def _is_base(value: object, reader: fx.Node, constants: Constants) -> bool:
    """Whether a tensor that is masked holds zeros, or is a mask itself."""
    if not isinstance(value, fx.Node):
        return False
    if getattr(value.target, "__name__", value.target) in ("zeros", "zeros_like", "new_zeros"):
        return True
    known = constants.value(value, reader)
    return made_of_booleans(value, constants) if known is None else not bool(known.any())


def _of(value: object, constants: Constants) -> bool:
    return isinstance(value, fx.Node) and made_of_booleans(value, constants)


def _masks(constants: Constants, value: object, reader: fx.Node) -> bool:
    number = constants.number(value, reader)
    return number is not None and (number == 0 or number <= FILL)


def _counted(value: object) -> bool:
    """`1 - mask`, where mask is cast from integers or booleans."""
    call = read(value) if isinstance(value, fx.Node) else None
    if call is None:
        return False
    value = value_of(call["input"])
    if call.name == "cast" and value is not None and not value.is_floating_point():
        return True
    if call.name in ("sub", "rsub") and isinstance(call["other"], fx.Node):
        return _counted(call["other"])
    return _counted(call["input"])
