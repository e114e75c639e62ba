"""Matrix products with what follows them: what a plan says beside its ops.

    p0[m, n] = sum over k of left[m, k] right[k, n]      out = f(p0, inputs of [m, n])

The iteration space is [rows..., depth, columns]: `left` spans rows and depth, `right` depth and
columns, everything else and all results rows and columns. The ops are pointwise, once for every
element of the product, which is added up in float32 and rounded where the plan casts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn

from msgspec.structs import replace

from advisor.errors import InvalidRecordError
from advisor.model.base import Record
from advisor.model.optable import RANDOM, spec_of
from advisor.units import counted

if TYPE_CHECKING:
    from advisor.model.plan import FusionPlan, PlanInput, Site

# What ops call the product.
PRODUCT = "p0"
OPERAND_DTYPES = ("float16", "bfloat16", "float32")
# Operands of float32 rounded for matrix units keep as many bits as a float16 does.
TF32_BITS_OF = "float16"
ProductArithmetic = Literal["float16", "bfloat16", "float32", "tfloat32"]


class PlanProduct(Record, frozen=True, kw_only=True):
    """Which inputs are multiplied, and how they lie in memory.

    `left_unit` and `right_unit` name the axis along which an operand is stored without gaps, None
    where there is none. `tf32`: float32 operands are rounded to ten bits behind the point, which
    the caller must have allowed (`torch.backends.cuda.matmul`).
    """

    left: str
    right: str
    left_unit: Literal["rows", "depth"] | None
    right_unit: Literal["depth", "columns"] | None
    tf32: bool = False


# --- the parts of a site --------------------------------------------------------------------------


def product_rows(site: Site) -> int:
    """The rows of a product at a site: those of its result."""
    return math.prod(site.row_sizes[:-1])


def depth_of(site: Site) -> int:
    """How many terms every element of a product has."""
    return site.row_sizes[-1]


def product_flops(site: Site) -> int:
    """Operations of the product, a multiply-add as two."""
    return 2 * product_rows(site) * depth_of(site) * site.columns


def product_text(site: Site) -> str:
    """The sizes of a site in words: `4,096 × 14,336, depth 4,096`."""
    return f"{product_rows(site):,} × {site.columns:,}, depth {depth_of(site):,}"


def products_text(sizes: Iterable[str]) -> str:
    """The sizes of several products: the first, and how many others there are beside it."""
    first, *others = dict.fromkeys(sizes)
    return f"{first} and {counted(len(others), 'other size')}" if others else first


def operand(plan: FusionPlan, name: str) -> PlanInput:
    """An operand of the product."""
    return next(item for item in plan.inputs if item.name == name)


def operands(plan: FusionPlan) -> tuple[str, ...]:
    """The inputs that are multiplied; none of a plan without a product."""
    return () if plan.product is None else (plan.product.left, plan.product.right)


def renamed_product(product: PlanProduct | None, names: Mapping[str, str]) -> PlanProduct | None:
    """The product with new names of its operands."""
    if product is None:
        return None
    return replace(product, left=names[product.left], right=names[product.right])


def arithmetic_of(plan: FusionPlan) -> ProductArithmetic:
    """What the matrix units multiply."""
    if plan.product is None:
        raise InvalidRecordError("there is no product", where=f"plan {plan.id}")
    if plan.product.tf32:
        return "tfloat32"
    dtypes: dict[str, ProductArithmetic] = {"float16": "float16", "bfloat16": "bfloat16"}
    return dtypes.get(operand(plan, plan.product.left).dtype, "float32")


def unit_axis(plan: FusionPlan, item: PlanInput) -> int | None:
    """The axis along which an input is stored without gaps: of all but operands, the columns."""
    last = plan.row_axes + plan.column_axes - 1
    if plan.product is None or item.name not in operands(plan):
        return last if item.unit_stride and plan.along(item)[last] else None
    left = item.name == plan.product.left
    unit = plan.product.left_unit if left else plan.product.right_unit
    places = {"rows": plan.row_axes - 2, "depth": plan.row_axes - 1, "columns": last}
    return places[unit] if unit is not None else None


def after_product(plan: FusionPlan) -> tuple[PlanInput, ...]:
    """The inputs that the ops read."""
    return tuple(item for item in plan.inputs if item.name not in operands(plan))


def product_space(plan: FusionPlan) -> dict[str, tuple[Literal["tile"], str]]:
    """Where the product lives, and its dtype, by the name that ops have for it."""
    return {} if plan.product is None else {PRODUCT: ("tile", "float32")}


# --- checks ---------------------------------------------------------------------------------------


def check_product(plan: FusionPlan) -> None:
    """Raise `InvalidRecordError` where a plan's product is none, or its ops read what they cannot.

    Called before the ops are checked as such.
    """
    if (plan.family == "gemm") != (plan.product is not None):
        _fail(f"a {plan.family} {'without' if plan.product is None else 'with'} a product")
    if plan.product is None:
        return
    if plan.row_axes < 2 or plan.column_axes != 1 or plan.states or plan.members:
        _fail("no axis of depth, several column axes, states or members")
    _check_operands(plan)
    read = {arg for op in plan.ops for arg in op.args if isinstance(arg, str)}
    if read.intersection(operands(plan)) or PRODUCT not in read:
        _fail("its ops read an operand of the product, or not the product")
    for op in plan.ops:
        if spec_of(op.op).kind != "pointwise" or op.op == RANDOM:
            _fail(f"{op.name}: {op.op} does not follow a product in one kernel")
    if any(item.dense or item.reverse for item in plan.inputs):
        _fail("an input without strides")
    if not all(output.strided and output.last for output in plan.outputs):
        _fail("an output without strides, or one of every step of the depth")


def check_product_outputs(plan: FusionPlan) -> None:
    """Raise `InvalidRecordError` for outputs and sites that no product has."""
    if plan.product is None:
        return
    if any(output.space != "tile" or output.reverse for output in plan.outputs):
        _fail("an output that is not one value an element of the product")
    place = [item.name for item in plan.inputs].index(plan.product.left)
    for site in plan.sites:
        if not rows_as_one(site.row_sizes[:-1], site.input_strides[place]):
            _fail(f"site in {site.graph}: the rows of the left operand are not one axis")


def rows_as_one(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor walks its row axes as if they were one."""
    pairs = zip(sizes[1:], strides, strides[1:], strict=False)
    return all(outer == size * inner or size == 0 for size, outer, inner in pairs)


def _check_operands(plan: FusionPlan) -> None:
    assert plan.product is not None
    items = {item.name: item for item in plan.inputs}
    left, right = items.get(plan.product.left), items.get(plan.product.right)
    if left is None or right is None or left is right:
        _fail("its operands are not two of the inputs")
    if left.dtype != right.dtype or left.dtype not in OPERAND_DTYPES:
        _fail(f"{left.dtype} times {right.dtype}")
    if plan.product.tf32 and left.dtype != "float32":
        _fail(f"tf32 of {left.dtype}")
    if any(len(item.spans) != plan.row_axes + 1 for item in plan.inputs):
        _fail("an input does not say of every axis whether it spans it")
    rows = plan.row_axes - 1
    if left.spans != (*(True,) * rows, True, False):
        _fail(f"{left.name}: the left operand spans rows and depth")
    if right.spans != (*(False,) * rows, True, True):
        _fail(f"{right.name}: the right operand spans depth and columns")
    if any(item.spans[rows] for item in plan.inputs if item not in (left, right)):
        _fail("an input of the ops varies along the depth")


def _fail(what: str) -> NoReturn:
    raise InvalidRecordError(what, where="product")
