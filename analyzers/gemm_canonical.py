"""A product and the ops that follow it as a program in canonical form.

The ops are numbered as those of any row program that reads the product; then the product takes the
place of the input that it was, and the iteration space gets its depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from advisor.errors import IllegalFusionError
from advisor.model.derived import renamed
from advisor.model.gemm import PRODUCT, PlanProduct
from advisor.model.graph import Node
from advisor.model.plan import PlanInput, PlanOp, PlanOutput, Site
from advisor.model.sizes import NONE, ONE, RunTimeSizes, Size, dense_steps, parse
from advisor.model.spaces import Space, space_of
from analyzers.dataflow import Dataflow
from analyzers.growth import Group
from analyzers.row_plans import Program, canonical_program

Unit = TypeVar("Unit", bound=str)


@dataclass(frozen=True)
class Spelled:
    """A product as a graph spells it: alpha left @ right + beta added."""

    node: Node
    left: str
    right: str
    added: str | None
    alpha: float
    beta: float
    tf32: bool


@dataclass(frozen=True)
class _Tensor:
    """An input with the value it is bound to and its strides over [rows..., depth, columns]."""

    item: PlanInput
    value: str
    strides: tuple[Size, ...]


def canonical_gemm(flow: Dataflow, product: Spelled, group: Group) -> Program:
    """The program of a product with a group of ops that read it."""
    after = canonical_program(flow, group)
    if after.column_axes != 1:
        raise IllegalFusionError("a tensor walks the columns of the product along several axes")
    return _Gemm(flow, product, after).program()


class _Gemm:
    def __init__(self, flow: Dataflow, product: Spelled, after: Program) -> None:
        self.flow, self.product, self.after = flow, product, after
        self.told = after.site.run_time or _known(after.site)
        self.rows, (self.columns,) = self.told.row_sizes, self.told.column_sizes
        left, right = (flow.need_meta(value) for value in (product.left, product.right))
        self.depth = parse(left.shape[1])
        self.left = [parse(stride) for stride in left.strides]
        self.right = [parse(stride) for stride in right.strides]

    def program(self) -> Program:
        """The whole: operands first, then what the ops read besides."""
        tensors = [*self._operands(), *self._others()]
        names, own = self._names(tensors), self._own()
        whole, shift = own[-1].name, len(own)
        names |= {op.name: f"v{number + shift}" for number, op in enumerate(self.after.ops)}
        names |= {name: whole for name, is_product in self._products() if is_product}
        ops = (*own, *(renamed(op, names) for op in self.after.ops))
        outputs = self._outputs(whole, names)
        return Program(
            row_axes=self.after.row_axes + 1,
            column_axes=1,
            inputs=tuple(
                msgspec.structs.replace(one.item, name=f"in{place}")
                for place, one in enumerate(tensors)
            ),
            ops=ops,
            outputs=tuple(output for output, _, _ in outputs),
            product=PlanProduct(
                left="in0",
                right="in1",
                left_unit=_first_unit(self.left[1], "depth", self.left[0], "rows"),
                right_unit=_first_unit(self.right[1], "columns", self.right[0], "depth"),
                tf32=self.product.tf32,
            ),
            site=self._site(tensors, outputs),
        )

    # --- inputs -----------------------------------------------------------------------------------

    def _operands(self) -> list[_Tensor]:
        """Both operands, and what is added to their product."""
        rows = len(self.rows)
        dtype = self.flow.need_meta(self.product.left).dtype
        found = [
            self._tensor(self.product.left, dtype, (*self._over(self.left[0]), self.left[1], NONE)),
            self._tensor(self.product.right, dtype, (*(NONE,) * rows, *self.right)),
        ]
        if self.product.added is not None:
            found.append(self._added(self.product.added))
        return found

    def _over(self, stride: Size) -> tuple[Size, ...]:
        """Strides along the row axes of what walks them as one."""
        steps = dense_steps((*self.rows, ONE), (*(True,) * len(self.rows), False))[:-1]
        return tuple(stride.times(step) for step in steps)

    def _tensor(self, value: str, dtype: str, strides: Sequence[Size]) -> _Tensor:
        spans = tuple(stride != NONE for stride in strides)
        item = PlanInput(
            name="",
            dtype=dtype,
            spans=spans,
            dense=False,
            unit_stride=not spans[-1] or strides[-1].is_one,
        )
        return _Tensor(item, value, tuple(strides))

    def _added(self, value: str) -> _Tensor:
        """A bias or matrix, broadcast to the product."""
        meta = self.flow.need_meta(value)
        steps = [NONE, NONE]
        for back, (size, stride) in enumerate(
            zip(meta.shape[::-1], meta.strides[::-1], strict=True)
        ):
            steps[1 - back] = NONE if parse(size).is_one else parse(stride)
        rows = self._over(steps[0])
        return self._tensor(value, meta.dtype, (*rows, NONE, steps[1]))

    def _products(self) -> list[tuple[str, bool]]:
        """The inputs of what follows, and whether each is the product."""
        value = self.product.node.value()
        return [
            (item.name, self.flow.base(bound) == value)
            for item, bound in zip(self.after.inputs, self.after.site.inputs, strict=True)
        ]

    def _others(self) -> list[_Tensor]:
        found = []
        rows = zip(
            self._products(),
            self.after.inputs,
            self.after.site.inputs,
            self.told.input_strides,
            strict=True,
        )
        for (_, is_product), item, value, strides in rows:
            if is_product:
                continue
            spans = (*item.spans[:-1], False, item.spans[-1])
            # Read, also where it counts: what a tile reads of it is nothing beside the product.
            kept = msgspec.structs.replace(item, spans=spans, dense=False, counts=None)
            found.append(_Tensor(kept, value, (*strides[:-1], NONE, strides[-1])))
        return found

    def _names(self, tensors: Sequence[_Tensor]) -> dict[str, str]:
        """New names of the inputs that the ops read besides the product."""
        first = len(tensors) - sum(not is_product for _, is_product in self._products())
        others = [name for name, is_product in self._products() if not is_product]
        return {name: f"in{first + place}" for place, name in enumerate(others)}

    # --- ops --------------------------------------------------------------------------------------

    def _own(self) -> list[PlanOp]:
        """The ops that make the product's own value: what is added, and the rounding."""
        dtype = self.flow.need_meta(self.product.node.value()).dtype
        ops: list[PlanOp] = []

        def op(name: str, args: tuple[str | float, ...], kind: str, space: Space = "tile") -> str:
            made = PlanOp(
                name=f"v{len(ops)}",
                op=name,
                args=args,
                dtype=kind,
                space=space,
                attributes={"dtype": kind} if name == "cast" else {},
            )
            ops.append(made)
            return made.name

        value = PRODUCT
        if self.product.alpha != 1:
            value = op("mul", (value, self.product.alpha), "float32")
        if self.product.added is not None:
            added = "in2"
            if self.product.beta != 1:
                where = space_of(self._added(self.product.added).item.spans)
                wide = op("cast", (added,), "float32", where)
                added = op("mul", (wide, self.product.beta), "float32", where)
            value = op("add", (value, added), "float32")
        if dtype != "float32" or value == PRODUCT:
            op("cast", (value,), dtype)
        return ops

    # --- outputs and site -------------------------------------------------------------------------

    def _outputs(
        self, whole: str, names: dict[str, str]
    ) -> list[tuple[PlanOutput, str, tuple[Size, ...]]]:
        """Outputs with the values of the graph that they are, and their strides."""
        along = (*(True,) * len(self.rows), False, True)
        dense = dense_steps((*self.rows, ONE, self.columns), along)
        found = []
        node, value = self.product.node, self.product.node.value()
        inside = {*self.after.site.nodes}
        uses = self.flow.uses.get(value, ())
        if value in self.flow.escapes_graph or any(use.consumer not in inside for use in uses):
            dtype = self.flow.need_meta(value).dtype
            found.append((_output(whole, dtype, unit=True), node.value(), dense))
        given = self.told.output_strides or (None,) * len(self.after.outputs)
        for output, name, strides in zip(
            self.after.outputs, self.after.site.outputs, given, strict=True
        ):
            laid_out = dense if strides is None else (*strides[:-1], NONE, strides[-1])
            made = _output(names[output.value], output.dtype, unit=laid_out[-1].is_one)
            found.append((made, name, laid_out))
        return found

    def _site(
        self,
        tensors: Sequence[_Tensor],
        outputs: Sequence[tuple[PlanOutput, str, tuple[Size, ...]]],
    ) -> Site:
        """The site in numbers, and as symbols where it has any."""
        told = RunTimeSizes(
            row_sizes=(*self.rows, self.depth),
            column_sizes=(self.columns,),
            input_strides=tuple(one.strides for one in tensors),
            output_strides=tuple(strides for _, _, strides in outputs),
        )
        return msgspec.structs.replace(
            self.after.site,
            nodes=(self.product.node.id, *self.after.site.nodes),
            inputs=tuple(one.value for one in tensors),
            outputs=tuple(value for _, value, _ in outputs),
            row_sizes=self._numbers(told.row_sizes),
            input_strides=tuple(map(self._numbers, told.input_strides)),
            output_strides=tuple(map(self._numbers, told.output_strides)),
            run_time=told if any(size.symbols for size in told.every) else None,
        )

    def _numbers(self, sizes: Sequence[Size]) -> tuple[int, ...]:
        return tuple(map(self.flow.hint, sizes))


def _known(site: Site) -> RunTimeSizes:
    """The sizes of a site that are all numbers, as sizes."""
    return RunTimeSizes(
        row_sizes=_as_sizes(site.row_sizes),
        column_sizes=_as_sizes(site.column_axes),
        input_strides=tuple(map(_as_sizes, site.input_strides)),
        output_strides=tuple(map(_as_sizes, site.output_strides)),
    )


def _as_sizes(numbers: Sequence[int]) -> tuple[Size, ...]:
    return tuple(map(parse, numbers))


def _output(value: str, dtype: str, *, unit: bool) -> PlanOutput:
    return PlanOutput(
        value=value, dtype=dtype, space="tile", strided=True, unit_stride=unit, last=True
    )


def _first_unit(inner: Size, along: Unit, outer: Size, across: Unit) -> Unit | None:
    """The axis along which a matrix lies without gaps, by its two strides."""
    return along if inner.is_one else across if outer.is_one else None
