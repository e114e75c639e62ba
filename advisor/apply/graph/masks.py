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
    """How to tell fused attention which pairs count; `words` say it.

    `window` is the number of keys that each query sees, itself and those before it, if the mask
    is known to be that. `visible` [batch or 1, heads or 1, queries, keys] are the pairs that count,
    where that is constant; every query sees a key then. `may_be_blind`: some query may see none,
    which only the values at run time tell.
    """

    kind: MaskKind
    words: str
    window: int | None = None
    visible: torch.Tensor | None = None
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
            raise IllegalFusionError(
                f"masked scores are put to {step.number:g}, so high that they keep weight; mask "
                "with -inf"
            )
    if not masking:
        return Mask("none", "no mask")
    known = _computed(steps, sizes, dtype, constants)
    if known is not None:
        return known
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


def _computed(
    steps: Sequence[Step], sizes: tuple[Size, Size], dtype: torch.dtype, constants: Constants
) -> Mask | None:
    """The mask or bias, if it is constant and every query sees a key; else its numbers matter."""
    if not all(isinstance(size, int) for size in sizes):
        return None
    rows, columns = (int(size) for size in sizes)
    values = [_constant(step, constants) for step in steps]
    key: list[object] = [rows, columns, dtype]
    for step, value in zip(steps, values, strict=True):
        if value is None and step.kind in ("add", "fill"):
            return None
        key += [step.kind, step.number, step.inverted, id(value)]
    masks = constants.shared
    if tuple(key) not in masks:
        masks[tuple(key)] = _compared(steps, values, (rows, columns), low_of(dtype))
    found = masks[tuple(key)]
    assert found is None or isinstance(found, Mask)
    return found


def _constant(step: Step, constants: Constants) -> torch.Tensor | None:
    """The value of a step's tensor if its leading axes are those of batch and heads, or of one."""
    if step.term is None or step.kind not in ("add", "fill"):
        return None
    fake = tensor(step.term)
    leading = tuple(fake.shape[:-2])
    if len(step.lead) != 2 and not all(isinstance(size, int) and size == 1 for size in leading):
        return None
    return constants.value(step.term, step.node)


def _compared(
    steps: Sequence[Step],
    values: Sequence[torch.Tensor | None],
    sizes: tuple[int, int],
    low: float,
) -> Mask | None:
    total = torch.zeros(1, 1, device="cpu")
    for step, value in zip(steps, values, strict=True):
        if value is not None:
            total = _after(step, total, _one_for_all(value))
        elif bool(total.any()) and not (step.kind == "scale" and step.number > 0):
            return None  # What was masked need not be masked after it.
    masked = total <= low
    if masked.shape[:-2].numel() * sizes[0] * sizes[1] > MOST_ELEMENTS:
        return None
    allowed = (~masked).expand(*masked.shape[:-2], *sizes)
    if not bool(allowed.any(-1).all()):
        return None
    if not bool((masked | (total == 0)).all()):
        words = "a fixed bias and mask" if bool(masked.any()) else "a fixed bias"
        return Mask("additive", words, visible=_by_heads(allowed))
    only_fills = all(step.kind != "add" for step in steps)
    return _named(allowed, "boolean" if only_fills else "additive")


def _one_for_all(value: torch.Tensor) -> torch.Tensor:
    """The mask without leading axes along which it is the same."""
    for axis in range(value.dim() - 2):
        first = value.narrow(axis, 0, 1)
        if bool((value == first).all()):
            value = first
    return value


def _after(step: Step, total: torch.Tensor, term: torch.Tensor) -> torch.Tensor:
    if step.kind == "add":
        return total + step.number * term.float()
    return torch.where(~term if step.inverted else term, -torch.inf, total)


def _by_heads(allowed: torch.Tensor) -> torch.Tensor:
    """[batch or 1, heads or 1, queries, keys]; the scores may have fewer leading axes."""
    plain = _one_for_all(allowed)
    return plain.reshape(*(1,) * (4 - plain.dim()), *plain.shape)


def _named(allowed: torch.Tensor, kind: MaskKind) -> Mask:
    """The mask of [..., queries, keys], of which every query sees a key."""
    rows, columns = allowed.shape[-2:]
    if bool(allowed.all()):
        return Mask("none", "a mask that allows everything")
    first, second = (torch.arange(size, device=allowed.device) for size in (rows, columns))
    distance = first[:, None] - second[None, :]
    if torch.equal(allowed, (distance >= 0).expand_as(allowed)):
        return Mask("causal", "causal", window=rows)
    width = int(distance.masked_fill(~allowed, -1).max()) + 1
    if torch.equal(allowed, ((distance >= 0) & (distance < width)).expand_as(allowed)):
        return Mask(kind, f"a causal window of {width} keys", window=width)
    return Mask(kind, "a fixed mask", visible=_by_heads(allowed))


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
