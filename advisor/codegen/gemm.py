"""A matrix product with what follows it as Triton source: one program computes one tile.

Tiles are numbered so that programs which run together share what they read: GROUP_ROWS blocks of
rows take the same block of columns one after the other. The product is added up in float32; what
follows it reads and writes the tile's own elements, so nothing of it goes to memory in between.
"""

from __future__ import annotations

from advisor.codegen import abi, float8
from advisor.codegen.exponentials import pointwise_helpers
from advisor.codegen.layout import indented
from advisor.codegen.streamed import kernel_text
from advisor.codegen.values import Values
from advisor.model.gemm import PRODUCT, after_product, arithmetic_of
from advisor.model.plan import FusionPlan

MULTIPLIED = "multiplied"
HELPERS: dict[str, str] = {
    MULTIPLIED: '''
@triton.jit
def multiplied(left, right, total, PRECISION: tl.constexpr):
    """total + left right, added up in float32; PRECISION is what float32 operands keep."""
    if INTERPRETED:  # it would multiply the bits of bfloat16
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, total, input_precision=PRECISION)
''',
}


def gemm_kernels(plan: FusionPlan, title: str) -> list[str]:
    """The kernel of a product with what follows it."""
    (kernel,) = abi.kernels(plan, "gemm")
    doc = f"{title}; one program computes BLOCK_ROWS × BLOCK_COLUMNS elements."
    return [kernel_text(kernel, doc, _Gemm(plan).body())]


def gemm_helper_names(plan: FusionPlan) -> set[str]:
    """The device functions that the kernel calls."""
    return pointwise_helpers(plan) | {MULTIPLIED, float8.INTERPRETED}


def product_lines(plan: FusionPlan) -> list[str]:
    """The product as a formula, for the docstring of a module; nothing where there is none."""
    if plan.product is None:
        return []
    bits = ", rounded to ten bits behind the point (tf32)" if plan.product.tf32 else ""
    return [f"    {PRODUCT} = {plan.product.left} @ {plan.product.right}{bits}, in float32"]


class _Gemm(Values):
    def __init__(self, plan: FusionPlan) -> None:
        super().__init__(plan)
        assert plan.product is not None
        self.product, self.depth = plan.product, plan.row_axes - 1
        self.dtypes[PRODUCT], self.spaces[PRODUCT] = "float32", "tile"

    def body(self) -> list[str]:
        """Which tile, its product, what follows."""
        return [
            *_TILE,
            *self.axes(),
            *self._first(self.product.left, "rows", "[None, :]"),
            *self._first(self.product.right, "columns", "[:, None]"),
            f"{PRODUCT} = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), tl.float32)",
            "for start in tl.range(0, n_depth, BLOCK_STEPS, num_stages=STAGES):",
            *indented(self._step()),
            *(self.load(item) for item in after_product(self.plan)),
            *(self.assign(op) for op in self.plan.ops),
            *(self.store(position) for position in range(len(self.plan.outputs))),
        ]

    def axes(self) -> list[str]:
        """The index along every row axis of the result, where some tensor needs them."""
        names = abi.size_names(self.plan)
        lines, rest = [], "rows"
        for axis, size in reversed(names):
            lines += [f"axis_{axis} = {rest} % {size}", f"above_{axis} = {rest} // {size}"]
            rest = f"above_{axis}"
        return [*lines, f"axis_0 = {rest}"] if names else []

    def _index(self, axis: int) -> str:
        if axis > self.depth:
            return "columns"
        return f"axis_{axis}" if abi.needs_axes(self.plan) else "rows"

    def _first(self, name: str, across: str, way: str) -> list[str]:
        """Where the first step of an operand lies, and its place in the step."""
        tensor = self.strided[name]
        strides = dict(tensor.strides)
        outer = next((stride for axis, stride in tensor.strides if axis != self.depth), None)
        steps = f"{name}_steps"
        terms = [name, across if outer is None else f"{across}.to(tl.int64) * {outer}"]
        deep = strides.get(self.depth)
        terms.append(steps if deep is None else f"{steps}.to(tl.int64) * {deep}")
        return [
            f"{steps} = tl.arange(0, BLOCK_STEPS){way}",
            f"{name}_at = {' + '.join(terms)}",
        ]

    def _step(self) -> list[str]:
        """One step of the depth: both operands, their product, and on."""
        precision = "tf32" if arithmetic_of(self.plan) == "tfloat32" else "ieee"
        lines = []
        for name, ok in ((self.product.left, "row_ok"), (self.product.right, "column_ok")):
            inside = f"((start + {name}_steps < n_depth) | EVEN_STEPS)"
            lines.append(f"{name}_step = tl.load({name}_at, mask={ok} & {inside}, other=0.0)")
        left, right = f"{self.product.left}_step", f"{self.product.right}_step"
        lines.append(f'{PRODUCT} = multiplied({left}, {right}, {PRODUCT}, "{precision}")')
        return [*lines, *(self._next(name) for name in (self.product.left, self.product.right))]

    def _next(self, name: str) -> str:
        stride = dict(self.strided[name].strides).get(self.depth)
        wide = "tl.full((1, 1), BLOCK_STEPS, tl.int64)"
        return f"{name}_at += BLOCK_STEPS" if stride is None else f"{name}_at += {wide} * {stride}"


_TILE = (
    "program = tl.program_id(0)",
    "beside = tl.cdiv(n_columns, BLOCK_COLUMNS)",
    "group = program // (GROUP_ROWS * beside)",
    "tall = tl.minimum(tl.cdiv(n_rows, BLOCK_ROWS) - group * GROUP_ROWS, GROUP_ROWS)",
    "within = program % (GROUP_ROWS * beside)",
    "row_block = group * GROUP_ROWS + within % tall",
    "rows = row_block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)[:, None]",
    "columns = within // tall * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]",
    "row_ok = (rows < n_rows) | EVEN_ROWS",
    "column_ok = (columns < n_columns) | EVEN_COLUMNS",
)
