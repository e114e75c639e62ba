"""Conversions of eight-bit floats as Triton device functions.

A GPU's own instruction rounds to the nearest, and what is too large to the largest number. In
e4m3fn that is what Inductor does and PyTorch from 2.13 on; before, PyTorch made it NaN. In e5m2
PyTorch makes it infinity, which is put right unless the program bounds its values itself. Triton's
interpreter rounds otherwise, so there bits are computed as PyTorch computes them
(`Float8_e4m3fn.h`, `Float8_e5m2.h`): adding to a number half of the last place that is kept, and to
numbers below the smallest normal one a number beside which only these bits have place.
"""

from __future__ import annotations

from collections import Counter

from advisor.model.graph import Arg, literal_value
from advisor.model.optable import FLOAT8_MAX, FLOAT_DTYPES, spec_of
from advisor.model.plan import FusionPlan, PlanOp

# Whether the kernel is interpreted: the one name of the text that is no function.
INTERPRETED = "INTERPRETED"
# What keeps a rounding from being taken for another of the same number.
ONE_AT = "one_at"

HELPERS: dict[str, str] = {
    INTERPRETED: """
# Triton's interpreter rounds to narrow floats otherwise than GPUs do.
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
""",
    ONE_AT: '''
@triton.jit
def one_at(pointer, NOWHERE: tl.constexpr):
    """1.0, as no tensor lies there, which no compiler knows: x * 1.0 is another value to it."""
    return tl.where(pointer.to(tl.int64) != NOWHERE, 1.0, 0.0)
''',
    "from_float8_e4m3fn": '''
@triton.jit
def from_float8_e4m3fn(x):
    """x as float32; the code with all bits set is NaN."""
    wide = x.to(tl.float32)
    if INTERPRETED:
        code = x.to(tl.uint8, bitcast=True) & 127
        wide = tl.where(code == 127, float("nan"), wide)
    return wide
''',
    "from_float8_e5m2": '''
@triton.jit
def from_float8_e5m2(x):
    """x as float32: it is a float16 without the last eight bits."""
    code = x.to(tl.uint8, bitcast=True).to(tl.uint16)
    return (code << 8).to(tl.float16, bitcast=True).to(tl.float32)
''',
    "bits_of_float8_e4m3fn": '''
@triton.jit
def bits_of_float8_e4m3fn(x):
    """x rounded to three bits behind the point, at most to 448, by arithmetic; NaN stays NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    size, sign = bits & 0x7FFFFFFF, (bits >> 24) & 128
    tiny = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True)
    normal = (size - 0x3C000000 + 0x7FFFF + ((size >> 20) & 1)) >> 20
    code = tl.where(size < 0x3C800000, tiny - 0x46800000, normal)
    code = tl.where(size > 0x43E80000, tl.where(size > 0x7F800000, 127, 126), code) | sign
    return code.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
''',
    "bits_of_float8_e5m2": '''
@triton.jit
def bits_of_float8_e5m2(x):
    """x rounded to two bits behind the point, by arithmetic; from 61440 on it is infinite."""
    bits = x.to(tl.uint32, bitcast=True)
    size, sign = bits & 0x7FFFFFFF, (bits >> 24) & 128
    tiny = (size.to(tl.float32, bitcast=True) + 128.0).to(tl.uint32, bitcast=True)
    normal = (size - 0x38000000 + 0xFFFFF + ((size >> 21) & 1)) >> 21
    code = tl.where(size < 0x38800000, tiny - 0x43000000, normal)
    code = tl.where(size >= 0x47700000, tl.where(size > 0x7F800000, 127, 124), code) | sign
    return code.to(tl.uint8).to(tl.float8e5, bitcast=True)
''',
    "to_float8_e4m3fn": '''
@triton.jit
def to_float8_e4m3fn(x):
    """x rounded to three bits behind the point, at most to 448; NaN stays NaN."""
    if INTERPRETED:
        stored = bits_of_float8_e4m3fn(x)
    else:
        stored = x.to(tl.float8e4nv)
    return stored
''',
    "to_float8_e5m2": '''
@triton.jit
def to_float8_e5m2(x, BOUNDED: tl.constexpr):
    """x rounded to two bits behind the point; from 61440 on it is infinite, unless BOUNDED."""
    if INTERPRETED:
        stored = bits_of_float8_e5m2(x)
    else:
        stored = x.to(tl.float8e5)
        if not BOUNDED:
            bits = x.to(tl.uint32, bitcast=True)
            size, sign = bits & 0x7FFFFFFF, (bits >> 24) & 128
            beyond = sign | tl.where(size > 0x7F800000, 127, 124)
            code = tl.where(size >= 0x47700000, beyond, stored.to(tl.uint8, bitcast=True))
            stored = code.to(tl.uint8).to(tl.float8e5, bitcast=True)
    return stored
''',
}


def read_beside_store(plan: FusionPlan) -> dict[str, PlanOp]:
    """Values of eight bits, made here, that are stored and taken otherwise too: what rounds each.

    They are taken by a store, by each copy that has other strides, and by ops. All but the store
    round anew, by instructions that compilers do not take for the same: of a rounding that a store
    packs into a register, ptxas 12.8 takes a byte for another use from a register that nothing has
    written yet.
    """
    made, copied = _made(plan), copies(plan)
    stored = {output.value for output in plan.outputs}
    for name in reversed(copied):
        stored |= {copied[name]} if name in stored else set()
    taken = Counter(dict.fromkeys((output.value for output in plan.outputs), 1))
    taken.update(copied.values())
    taken.update({str(arg) for op in plan.ops if op.name not in copied for arg in op.args})
    found = {}
    for name in made:
        if name in stored and taken[name] > 1:
            first = name
            while first in copied:
                first = copied[first]
            found[name] = made[first]
    return found


def copies(plan: FusionPlan) -> dict[str, str]:
    """Casts that leave eight bits as they are, or make those that another made: which they copy.

    They are stored in another order.
    """
    made, first, found = _made(plan), dict[tuple[Arg, str], str](), {}
    for op in made.values():
        source, same = str(op.args[0]), first.setdefault((op.args[0], op.dtype), op.name)
        if source in made and made[source].dtype == op.dtype:
            found[op.name] = source
        elif same != op.name:
            found[op.name] = same
    return found


def _made(plan: FusionPlan) -> dict[str, PlanOp]:
    return {op.name: op for op in plan.ops if op.op == "cast" and op.dtype in FLOAT8_MAX}


def nowhere(plan: FusionPlan, copy: str) -> int:
    """An address below all tensors' for the copy of that name, another for the ops that read.

    A multiple of 16: compilers know of most tensors that their addresses are.
    """
    casts = [op.name for op in plan.ops if op.op == "cast"]
    return 16 * (1 + casts.index(copy)) if copy else 0


def read_for(plan: FusionPlan, arg: Arg) -> str | None:
    """An input that a value is made of, element by element: who computes the value has its pointer.

    None for what is made of reductions and numbers alone.
    """
    ops = {op.name: op for op in plan.ops}
    read = {item.name for item in plan.inputs if item.counts is None}
    waiting = [arg]
    for name in waiting:
        if name in read:
            return str(name)
        if isinstance(name, str) and name in ops and spec_of(ops[name].op).kind != "reduction":
            waiting += ops[name].args
    return None


def is_bounded(plan: FusionPlan, arg: Arg, limit: float) -> bool:
    """Whether minima and maxima with numbers keep a value within `limit`, or let it be NaN."""
    low, high = False, False
    ops = {op.name: op for op in plan.ops}
    values = {*ops, *(item.name for item in plan.inputs)}
    while isinstance(arg, str) and arg in ops:
        op = ops[arg]
        numbers = [float(literal_value(a)) for a in op.args if a not in values]
        if op.op == "minimum" and numbers:
            high |= numbers[0] <= limit
        elif op.op == "maximum" and numbers:
            low |= numbers[0] >= -limit
        elif op.op != "cast" or op.dtype not in FLOAT_DTYPES:
            break
        arg = next(a for a in op.args if a in values)
    return low and high


def helper_names(plan: FusionPlan) -> set[str]:
    """The conversions that the kernels of a plan call."""
    made = {op.name: op.dtype for op in plan.ops if op.dtype in FLOAT8_MAX}
    used = {f"{way}_{dtype}" for dtype in made.values() for way in ("to", "bits_of")}
    used |= {f"from_{item.dtype}" for item in plan.inputs if item.dtype in FLOAT8_MAX}
    # A cast to what a value is already is a copy of it, in another order.
    read = {str(a) for op in plan.ops for a in op.args if made.get(str(a)) not in (None, op.dtype)}
    used |= {f"from_{dtype}" for name, dtype in made.items() if name in read}
    if read_beside_store(plan):
        used.add(ONE_AT)
    return used | {INTERPRETED} if used - {"from_float8_e5m2"} else used
