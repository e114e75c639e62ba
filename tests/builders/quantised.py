"""Plans that make eight bits: quantisers that write both orders, laid out as they are captured, and
what reads its own result back.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from advisor.model.plan import FusionPlan
from tests.builders.plan import PlanBuilder

LIMITS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
Form = Literal["all", "rows", "blocks", "squares"]
# Row and column axes: of all [1, rows, columns], of blocks [blocks, rows, block], of squares
# [blocks, blocks, block, block].
AXES: dict[Form, tuple[int, int]] = {
    "all": (1, 2), "rows": (1, 1), "blocks": (2, 1), "squares": (2, 2),
}  # fmt: skip


def rounded(
    make: PlanBuilder, dtype: str, target: str, *, dense: bool, clamp: bool = True
) -> tuple[str, str]:
    """`(x / s)` rounded to eight bits, and s = max |x| / limit, of a new input."""
    wide = make.cast(make.input(dtype, dense=dense), "float32")
    peak = make.op("maximum", make.op("amax", make.op("abs", wide)), 1e-12)
    scale = make.op("div", peak, LIMITS[target])
    value = make.op("div", wide, scale)
    if target == "int8":
        value = make.op("round", value)
    if clamp:
        value = make.op("minimum", make.op("maximum", value, -LIMITS[target]), LIMITS[target])
    return make.cast(value, target), scale


def both_orders(
    form: Form, rows: int, columns: int, *, block: int = 128, dtype: str = "bfloat16",
    target: str = "float8_e4m3fn", read: bool = False,
) -> FusionPlan:  # fmt: skip
    """`(x / s)` rounded to eight bits, s = max |x| / limit, and its transpose, as captured.

    With `read` also what these hold, doubled.
    """
    axes = AXES[form]
    make = PlanBuilder(*axes)
    dense = form in ("all", "rows")
    small, scale = rounded(make, dtype, target, dense=dense)
    copy = make.cast(small, target)
    held = (make.op("mul", make.cast(small, "float32"), 2.0),) if read else ()
    down, beside = rows // block, columns // block
    sizes = {"all": (1, rows, columns), "rows": (rows, columns), "blocks": (beside, rows, block),
             "squares": (down, beside, block, block)}[form]  # fmt: skip
    first = {"all": (0, columns, 1), "rows": (columns, 1), "blocks": (block, columns, 1),
             "squares": (block * columns, block, columns, 1)}[form]  # fmt: skip
    second = {"all": (rows * columns, 1, rows), "rows": (1, rows),
              "blocks": (block * rows, 1, rows),
              "squares": (block, block * rows, 1, rows)}[form]  # fmt: skip
    scales = {"all": (0, 0, 0), "rows": (1, 0), "blocks": (1, beside, 0),
              "squares": (beside, 1, 0, 0)}[form]  # fmt: skip
    plan = make.plan(
        small,
        scale,
        copy,
        *held,
        title=f"quantised, both orders, scale of {form}",
        sizes=sizes[: axes[0]],
        columns=sizes[axes[0] :],
        strided=(copy,) if dense else (small, scale, copy, *held),
        turned=(copy,),
    )
    written = (first, scales, second, *(first for _ in held))
    strides = {"input_strides": (first,), "output_strides": written}
    return msgspec.structs.replace(plan, sites=(msgspec.structs.replace(plan.sites[0], **strides),))


def round_trip(target: str = "float8_e4m3fn") -> FusionPlan:
    """What rows are after eight bits, and the eight bits."""
    make = PlanBuilder()
    wide = make.cast(make.input("bfloat16"), "float32")
    small = make.cast(make.op("mul", wide, 3.0), target)
    again = make.cast(small, "float32")
    rows = make.op("sum", again)
    title = f"there and back by {target}"
    return make.plan(small, make.op("mul", again, rows), title=title, columns=1024)


def copied_twice(target: str = "float8_e4m3fn") -> FusionPlan:
    """Eight bits in one order, and twice in the other, one a copy of the other; none is read."""
    make = PlanBuilder(column_axes=2)
    small = make.cast(make.input("bfloat16"), target)
    copy = make.cast(small, target)
    again = make.cast(copy, target)
    written = small, copy, again
    title = f"three orders of {target}"
    return make.plan(*written, title=title, columns=(8, 16), strided=written, turned=(copy, again))
