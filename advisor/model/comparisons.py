"""Numbers that a program compares its values with, as PyTorch does it: made of the values' type.

So 0.3 is 0.30078125 beside a bfloat16, and no value is beyond 1e39 beside a float32.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from advisor.model.graph import Arg
from advisor.model.optable import KERNEL_FLOATS

if TYPE_CHECKING:
    from advisor.model.plan import FusionPlan, PlanOp

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def as_compared(plan: FusionPlan) -> FusionPlan:
    """The plan with the numbers in its comparisons as the types of the values have them."""
    dtypes = {item.name: item.dtype for item in plan.inputs}
    dtypes |= {state.name: state.dtype for state in plan.states}
    dtypes |= {op.name: op.dtype for op in plan.ops}
    drawn = plan.drawn_values()
    ops = tuple(replace(op, args=compared(op, dtypes, drawn)) for op in plan.ops)
    return plan if ops == plan.ops else replace(plan, ops=ops)


def compared(op: PlanOp, dtypes: Mapping[str, str], drawn: Collection[str]) -> tuple[Arg, ...]:
    """The arguments of an op with such numbers; what was `drawn` is compared as it was drawn."""
    if op.op not in COMPARISONS or any(arg in drawn for arg in op.args):
        return op.args
    dtype = operand_dtype(op, dtypes)
    return tuple(arg if arg in dtypes else rounded_number(arg, dtype) for arg in op.args)


def operand_dtype(op: PlanOp, dtypes: Mapping[str, str]) -> str:
    """What the operands of a test become: the type of a float among them, else of the first."""
    found = [dtypes[arg] for arg in op.args if isinstance(arg, str) and arg in dtypes]
    floats = [dtype for dtype in found if dtype in KERNEL_FLOATS]
    return (floats or found or ["float32"])[0]


def rounded_number(arg: Arg, dtype: str) -> Arg:
    """A number made a float16 or bfloat16 as PyTorch makes it, to the nearest and from float32.

    Others stay as they are: of a float32 only what is too large for it is infinite.
    """
    if isinstance(arg, str | bool) or arg is None or dtype not in KERNEL_FLOATS:
        return arg
    try:
        if math.isnan(arg):
            return arg
        (bits,) = struct.unpack("<I", struct.pack("<f", arg))
        if dtype == "float32":
            return arg
        if dtype == "float16":
            (single,) = struct.unpack("<f", struct.pack("<I", bits))
            return float(struct.unpack("<e", struct.pack("<e", single))[0])
    except (OverflowError, struct.error):  # integers beyond 64 bits among them
        return "inf" if arg > 0 else "-inf"
    # Half of the last place that is kept, one less where that place is even.
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    (number,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(number) if math.isfinite(number) else "inf" if number > 0 else "-inf"
