"""Matrix products with what follows them as plans: of every layout, activations, residuals."""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.model.derived import dense_strides
from advisor.model.gemm import PRODUCT, PlanProduct
from advisor.model.graph import Arg
from advisor.model.plan import FusionPlan, PlanInput, PlanOp, PlanOutput, Site
from advisor.model.spaces import Space, space_of
from tests.builders.plan import op_in_spaces


@dataclass
class GemmBuilder:
    """A product over [rows..., depth, columns] with the ops that follow it."""

    sizes: tuple[int, ...]
    dtype: str = "float32"
    turned: tuple[bool, bool] = (False, False)
    tf32: bool = False
    inputs: list[PlanInput] = field(default_factory=list)
    strides: list[tuple[int, ...]] = field(default_factory=list)
    ops: list[PlanOp] = field(default_factory=list)
    spaces: dict[str, Space] = field(default_factory=lambda: {PRODUCT: "tile"})
    written: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        *rows, _, _ = self.sizes
        left = (*(True,) * len(rows), True, False)
        right = (*(False,) * len(rows), True, True)
        self.input(left, self.dtype, turned=self.turned[0])
        self.input(right, self.dtype, turned=self.turned[1])

    def input(self, spans: tuple[bool, ...], dtype: str = "", *, turned: bool = False) -> str:
        """A tensor along the axes that it spans, dense in their order, or `turned` around."""
        name = f"in{len(self.inputs)}"
        strides = dense_strides(self.sizes, spans)
        if turned:
            strides = tuple(_turned(self.sizes, spans))
        self.inputs.append(
            PlanInput(
                name=name,
                dtype=dtype or self.dtype,
                spans=spans,
                dense=False,
                unit_stride=not spans[-1] or strides[-1] == 1,
            )
        )
        self.strides.append(strides)
        self.spaces[name] = space_of(spans)
        return name

    def beside(self, dtype: str = "") -> str:
        """An input as large as the product."""
        return self.input((*(True,) * (len(self.sizes) - 2), False, True), dtype)

    def bias(self, dtype: str = "") -> str:
        """One value per column."""
        return self.input((*(False,) * (len(self.sizes) - 1), True), dtype)

    def op(self, op: str, *args: Arg, dtype: str = "") -> str:
        """An op on the elements of the product."""
        made = op_in_spaces(f"v{len(self.ops)}", op, args, dtype or self.dtype, self.spaces)
        self.ops.append(made)
        self.spaces[made.name] = made.space
        return made.name

    def plan(self, *written: str) -> FusionPlan:
        """The checked plan with one site, which writes these values."""
        along = (*(True,) * (len(self.sizes) - 2), False, True)
        by_name = {op.name: op for op in self.ops}
        site = Site(
            graph="graph0",
            nodes=tuple(f"n{n}" for n in range(len(self.ops))),
            inputs=tuple(f"%a{n}" for n in range(len(self.inputs))),
            outputs=tuple(f"%b{n}" for n in range(len(written))),
            row_sizes=self.sizes[:-1],
            columns=self.sizes[-1],
            input_strides=tuple(self.strides),
            output_strides=(dense_strides(self.sizes, along),) * len(written),
        )
        made = FusionPlan(
            id="0" * 16,
            rule="gemm-epilogue",
            title="a product of tests",
            family="gemm",
            phase="inference",
            row_axes=len(self.sizes) - 1,
            inputs=tuple(self.inputs),
            ops=tuple(self.ops),
            outputs=tuple(
                PlanOutput(
                    value=name, dtype=by_name[name].dtype, space="tile", strided=True, last=True
                )
                for name in written
            ),
            product=PlanProduct(
                left="in0",
                right="in1",
                left_unit="rows" if self.turned[0] else "depth",
                right_unit="depth" if self.turned[1] else "columns",
                tf32=self.tf32,
            ),
            sites=(site,),
        )
        made.check()
        return made


def _turned(sizes: tuple[int, ...], spans: tuple[bool, ...]) -> list[int]:
    """Strides of an operand whose first axis is innermost; its rows stay one axis."""
    depth = len(sizes) - 2
    if spans[-1]:  # [depth, columns]: the depth has stride 1
        return [*(0 for _ in sizes[:-2]), 1, sizes[depth]]
    rows = list(dense_strides(sizes[:-2], (True,) * depth))
    total = sizes[0] * rows[0] if rows else 1
    return [*rows, total, 0]


def biased_gelu(
    sizes: tuple[int, ...],
    dtype: str = "bfloat16",
    *,
    turned: tuple[bool, bool] = (False, True),
    tf32: bool = False,
    both: bool = False,
) -> FusionPlan:
    """gelu(x w + b) + residual; `both` writes what the activation reads as well."""
    made = GemmBuilder(sizes, dtype, turned, tf32)
    rounded = made.op("cast", PRODUCT)
    before = made.op("add", rounded, made.bias())
    wide = made.op("cast", before, dtype="float32")
    half = made.op("mul", wide, 0.5, dtype="float32")
    scaled = made.op("mul", wide, 0.7071067811865476, dtype="float32")
    grown = made.op("add", made.op("erf", scaled, dtype="float32"), 1.0, dtype="float32")
    active = made.op("cast", made.op("mul", half, grown, dtype="float32"))
    result = made.op("add", active, made.beside())
    return made.plan(*([before] if both else []), result)


def gated(sizes: tuple[int, ...], dtype: str = "bfloat16") -> FusionPlan:
    """silu(gate) * (x w): a gated MLP in the product of its second half."""
    made = GemmBuilder(sizes, dtype, (False, True))
    wide = made.op("cast", made.beside(), dtype="float32")
    gate = made.op("mul", wide, made.op("sigmoid", wide, dtype="float32"), dtype="float32")
    rounded = made.op("cast", PRODUCT)
    result = made.op("mul", made.op("cast", gate), rounded)
    return made.plan(result)
