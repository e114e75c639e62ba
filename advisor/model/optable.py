"""The fixed op table: the closed vocabulary of graphs, plans, cost model and code generation.

ATen is first reduced by PyTorch's own decompositions, so the table stays small. An op is known here
by what it computes, never by how a framework spells it; whatever is not in the table is `opaque`
and a boundary of every fusion. Costs are per element: `flops` counts arithmetic on the FP32 pipe,
`special` counts instructions on the special function unit (MUFU: ex2, lg2, rsq, rcp, sin, cos,
tanh), as listed in the CUDA C++ Programming Guide, "Arithmetic Instructions"; multi-instruction
functions count each one.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from advisor.errors import InvalidRecordError
from advisor.model.base import Record

OpKind = Literal["pointwise", "reduction", "view", "opaque"]
Result = Literal["promote", "bool", "float32", "attribute"]

DTYPES: tuple[str, ...] = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
# Those that generated kernels have; they compute in float32.
KERNEL_FLOATS: tuple[str, ...] = ("float16", "bfloat16", "float32")
# What is reduced, and what errors are counted in; eight bits only hold what is stored.
FLOAT_DTYPES: tuple[str, ...] = (*KERNEL_FLOATS, "float64")
ITEM_BYTES: dict[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}  # fmt: skip
# The largest finite number, which is where casts differ: PyTorch's go beyond it to NaN or infinity.
FLOAT8_MAX: dict[str, float] = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
RANDOM = "random"


class OpSpec(Record, frozen=True, kw_only=True):
    """One op: arity, result dtype rule, attributes, cost per element of the widest operand."""

    name: str
    kind: OpKind
    arity: int
    meaning: str
    result: Result = "promote"
    attributes: tuple[str, ...] = ()
    flops: int = 1
    special: int = 0


def _pointwise(
    arity: int,
    name: str,
    meaning: str,
    *,
    flops: int = 1,
    special: int = 0,
    result: Result = "promote",
) -> OpSpec:
    return OpSpec(
        name=name,
        kind="pointwise",
        arity=arity,
        meaning=meaning,
        flops=flops,
        special=special,
        result=result,
    )


_unary, _binary = partial(_pointwise, 1), partial(_pointwise, 2)


def _reduction(
    name: str, meaning: str, *, flops: int = 1, attributes: tuple[str, ...] = ()
) -> OpSpec:
    return OpSpec(
        name=name, kind="reduction", arity=1, meaning=meaning, flops=flops, attributes=attributes
    )


OPS: tuple[OpSpec, ...] = (
    _unary("neg", "-x"),
    _unary("abs", "|x|"),
    _unary("exp", "e^x", special=1),
    _unary("exp2", "2^x", flops=0, special=1),
    _unary("expm1", "e^x - 1", flops=8, special=1),
    _unary("log", "ln x", special=1),
    _unary("log2", "log2 x", flops=0, special=1),
    _unary("log1p", "ln(1 + x)", flops=8, special=1),
    _unary("sqrt", "sqrt x", flops=6, special=1),
    _unary("rsqrt", "1 / sqrt x", special=1),
    _unary("reciprocal", "1 / x", flops=6, special=1),
    _unary("sin", "sin x", flops=16),
    _unary("cos", "cos x", flops=16),
    _unary("tanh", "tanh x", flops=16, special=2),
    _unary("sigmoid", "1 / (1 + e^-x)", flops=3, special=2),
    _unary("erf", "erf x", flops=14, special=1),
    _unary("relu", "max(x, 0), NaN kept"),
    _unary("floor", "largest integer <= x"),
    _unary("ceil", "smallest integer >= x"),
    _unary("round", "nearest integer, the even one of two", flops=4),
    _unary("sign", "-1, 0 or 1", flops=3),
    _unary("logical_not", "not x", result="bool"),
    _unary("isnan", "x is NaN", result="bool"),
    _unary("isinf", "x is infinite", result="bool"),
    _binary("add", "a + b"),
    _binary("sub", "a - b"),
    _binary("mul", "a b"),
    _binary("div", "a / b", flops=8, special=1),
    _binary("pow", "a^b", flops=30, special=2),
    _binary("maximum", "max(a, b), NaN kept"),
    _binary("minimum", "min(a, b), NaN kept"),
    _binary("eq", "a == b", result="bool"),
    _binary("ne", "a != b", result="bool"),
    _binary("lt", "a < b", result="bool"),
    _binary("le", "a <= b", result="bool"),
    _binary("gt", "a > b", result="bool"),
    _binary("ge", "a >= b", result="bool"),
    _binary("logical_and", "a and b", result="bool"),
    _binary("logical_or", "a or b", result="bool"),
    _pointwise(3, "where", "a if c else b"),
    _pointwise(3, "fma", "a b + c, rounded once", flops=2),
    OpSpec(
        name=RANDOM,
        kind="pointwise",
        arity=1,
        meaning="uniform in [0, 1): Philox of the seed x at the element's linear index",
        result="float32",
        flops=60,
    ),
    OpSpec(
        name="cast",
        kind="pointwise",
        arity=1,
        meaning="x rounded to another dtype",
        result="attribute",
        attributes=("dtype",),
        flops=1,
    ),
    _reduction("sum", "sum over the reduced axes"),
    _reduction("mean", "sum over the reduced axes / their size"),
    _reduction("amax", "maximum over the reduced axes, NaN kept"),
    _reduction("amin", "minimum over the reduced axes, NaN kept"),
    _reduction("var", "sum (x - mean)^2 / (n - correction)", flops=4, attributes=("correction",)),
    OpSpec(
        name="reshape",
        kind="view",
        arity=1,
        meaning="same elements in the same linear order",
        flops=0,
    ),
    OpSpec(
        name="expand", kind="view", arity=1, meaning="size-1 axes repeated without a copy", flops=0
    ),
    OpSpec(
        name="opaque",
        kind="opaque",
        arity=-1,
        meaning="anything else: a boundary of every fusion",
        flops=0,
    ),
)

BY_NAME: dict[str, OpSpec] = {spec.name: spec for spec in OPS}


def spec_of(name: str) -> OpSpec:
    """The table's row for an op name; raises `InvalidRecordError` for a name not in it."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise InvalidRecordError(
            f"unknown op {name!r}", remedy="only ops of the table may occur"
        ) from None


def item_bytes(dtype: str) -> int:
    """Bytes of one element; raises `InvalidRecordError` for an unknown dtype."""
    try:
        return ITEM_BYTES[dtype]
    except KeyError:
        raise InvalidRecordError(f"unknown dtype {dtype!r}") from None
