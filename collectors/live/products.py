"""Of a matrix product, what its node in a graph does not say: operands, factors, TF32.

A graph's opaque nodes keep each tensor once and no numbers. What is as usual has no attribute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import fx

from advisor.model.graph import ADDED, FACTORS, OPERANDS, TF32, AttributeValue

# Where left and right operand stand, and what is added to their product.
_PLACES = {"aten.mm.default": (0, 1), "aten.addmm.default": (1, 2)}
_USUAL = {2: (0, 1), 3: (1, 2)}


def product_attributes(
    node: fx.Node, values: Sequence[str], value_of: Callable[[fx.Node], object]
) -> dict[str, AttributeValue]:
    """Attributes of a product whose node reads `values`; {} for any other op.

    `operands` are the places of left and right among the values and `added` that of what is added,
    where a tensor is read twice. `factors` are those of the sum and of the product; nan where they
    are only known at run time. `tf32`: matrix units may round float32 operands.
    """
    places = _PLACES.get(str(node.target)) if node.op == "call_function" else None
    if places is None:
        return {}
    given = [value_of(arg) if isinstance(arg, fx.Node) else None for arg in node.args]
    if len(given) <= places[1] or any(value not in values for value in given):
        return {}
    found: dict[str, AttributeValue] = {}
    at = [values.index(str(value)) for value in given]
    if len(values) != len(given) or tuple(at[n] for n in places) != _USUAL[len(given)]:
        found[OPERANDS] = tuple(at[n] for n in places)
        if len(given) > 2:
            found[ADDED] = at[0]
    factors = [_number(node.kwargs.get(name, 1)) for name in ("beta", "alpha")]
    if factors != [1.0, 1.0]:
        found[FACTORS] = " ".join(map(repr, factors))
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32 and allows_tf32():
        found[TF32] = True
    return found


def _number(factor: object) -> float:
    return float(factor) if isinstance(factor, (int, float)) else math.nan


def allows_tf32() -> bool:
    """Whether the caller lets matrix units round the operands of float32 products."""
    matmul = torch.backends.cuda.matmul
    # The older flag cannot be read where the newer one was set.
    precision = getattr(matmul, "fp32_precision", "none")
    return bool(matmul.allow_tf32) if precision == "none" else precision == "tf32"
