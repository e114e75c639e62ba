"""Rounding to bfloat16 within a program, as a Triton device function.

A GPU rounds to the nearest. Triton's interpreter cuts the last bits off, which is twice as far from
the number and always towards zero; where what follows amplifies it (the gradient of a SiLU far
below zero, by e^x), a right kernel would look wrong. So there bits are computed: half of the last
place that is kept is added, one less where that place is even. The rounding of a result on its way
to memory is left to `tl.store`: nothing follows it.
"""

from __future__ import annotations

from advisor.codegen.float8 import INTERPRETED
from advisor.model.plan import FusionPlan

TO_BFLOAT16 = "to_bfloat16"
HELPERS: dict[str, str] = {
    TO_BFLOAT16: '''
@triton.jit
def to_bfloat16(x):
    """x rounded to bfloat16, as float32; Triton's interpreter would cut bits off instead."""
    if INTERPRETED:
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        rounded = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
    else:
        rounded = x.to(tl.bfloat16).to(tl.float32)
    return rounded
''',
}


def helper_names(plan: FusionPlan) -> set[str]:
    """The device functions that the casts of a plan call."""
    drawn = plan.drawn_values()  # compared as they were drawn
    casts = (op for op in plan.ops if op.op == "cast" and op.name not in drawn)
    return {TO_BFLOAT16, INTERPRETED} if any(op.dtype == "bfloat16" for op in casts) else set()
