"""Walks through the body of a Triton kernel once, as one program would, with unknown data."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from advisor.model.dtypes import TRITON_ITEM_BYTES
from analyzers.overfusion.reading import (
    SPECIALS,
    Access,
    KernelReading,
    Product,
    Special,
)
from analyzers.overfusion.source_parts import (
    DEEPEST,
    DTYPES,
    MOST_STEPS,
    MOST_UNROLLED,
    REDUCTIONS,
    SAME,
    UNKNOWN,
    Value,
    as_tile,
    blank,
    bounds_of,
    called,
    carried,
    compared,
    computed,
    product_of,
    short,
    sizes_of,
    unary,
)
from analyzers.overfusion.tile_values import Tile, added, divided, joined, wrapped


def walk(
    functions: Mapping[str, ast.FunctionDef],
    name: str,
    constants: Mapping[str, Value],
    signature: Mapping[str, str],
) -> KernelReading:
    """The reading of one kernel; helpers of the same file are followed."""
    walker = _Walker(functions, signature)
    scope: dict[str, Value] = {}
    for argument in functions[name].args.args:
        kind = signature.get(argument.arg, "")
        pointer = argument.arg if kind.startswith("*") or argument.arg.endswith("_ptr") else None
        scope[argument.arg] = constants.get(argument.arg, Tile(pointer=pointer))
    try:
        walker.block(functions[name].body, scope)
    except _TooMuchError:
        walker.complete = False
    branches = len({access.side for access in walker.accesses if access.side})
    return KernelReading(
        name=name,
        accesses=tuple(
            replace(access, dealt=branches) if access.side else access for access in walker.accesses
        ),
        specials=tuple(walker.specials),
        products=tuple(walker.products),
        branches=branches,
        ragged=walker.ragged,
        complete=walker.complete and bool(walker.accesses),
        item_bytes={
            n: TRITON_ITEM_BYTES.get(t.lstrip("*k"), 4)
            for n, t in signature.items()
            if t[:1] == "*"
        },
    )


class _TooMuchError(Exception):
    """The body is longer than is worth reading."""


class _Returned(Exception):  # noqa: N818 - control flow, not an error
    def __init__(self, value: Value) -> None:
        self.value = value


class _Walker:
    """Mutable state of one walk: what was seen, the loops and the branch that the walk is in."""

    def __init__(self, functions: Mapping[str, ast.FunctionDef], signature: Mapping[str, str]):
        self._functions, self._signature = functions, signature
        self.accesses: list[Access] = []
        self.specials: list[Special] = []
        self.products: list[Product] = []
        self.complete, self.ragged = True, False
        self._extents: dict[str, int] = {}
        self._loops: list[tuple[str, int | None]] = []
        self._side: tuple[str, ...] = ()
        self._steps = self._depth = self._loop_count = 0

    # --- statements -------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt], scope: dict[str, Value]) -> None:
        """Walk through statements; raises `_Returned` where the function returns."""
        for statement in body:
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise _TooMuchError
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: dict[str, Value]) -> None:
        if isinstance(node, ast.Assign):
            value = self.value(node.value, scope)
            for target in node.targets:
                self._assign(target, value, scope)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self.value(node.value, scope), scope)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            binary = ast.BinOp(ast.Name(name, ast.Load()), node.op, node.value)
            scope[name] = self.value(binary, scope)
        elif isinstance(node, ast.Expr):
            self.value(node.value, scope)
        elif isinstance(node, ast.For):
            self._loop(node, scope)
        elif isinstance(node, ast.While):
            self._repeat(node.body, scope, None)
        elif isinstance(node, ast.If):
            self._branch(node, scope)
        elif isinstance(node, ast.Return):
            raise _Returned(None if node.value is None else self.value(node.value, scope))

    def _assign(self, target: ast.expr, value: Value, scope: dict[str, Value]) -> None:
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Tuple):
            parts = value if isinstance(value, tuple) else (value,) * len(target.elts)
            for part, one in zip(target.elts, parts, strict=False):
                self._assign(part, one, scope)

    def _loop(self, node: ast.For, scope: dict[str, Value]) -> None:
        call = node.iter
        if not isinstance(call, ast.Call):
            self._repeat(node.body, scope, None)
            return
        bounds = [self.value(argument, scope) for argument in call.args]
        first, last, step = bounds_of(bounds)
        self.ragged |= any(isinstance(bound, Tile) and bound.loaded for bound in bounds)
        known = all(isinstance(bound, int) for bound in (first, last, step)) and step != 0
        trips = max(0, -(-(last - first) // step)) if known else None
        if called(call) == "static_range" and trips is not None and trips <= MOST_UNROLLED:
            for number in range(first, last, step):
                self._assign(node.target, number, scope)
                self.block(node.body, scope)
            return
        loop = self._next_loop()
        start = first if isinstance(first, Tile) else UNKNOWN
        by = step if isinstance(step, int) else None
        self._assign(node.target, replace(start, steps={**start.steps, loop: by}), scope)
        self._repeat(node.body, scope, trips, loop)

    def _next_loop(self) -> str:
        self._loop_count += 1
        return f"loop{self._loop_count}"

    def _repeat(
        self, body: list[ast.stmt], scope: dict[str, Value], trips: int | None, loop: str = ""
    ) -> None:
        """A body that runs again and again: once, with what it carries along made to vary."""
        loop = loop or self._next_loop()
        for name in carried(body) & scope.keys():
            if isinstance(scope[name], Tile):
                scope[name] = replace(scope[name], steps={**scope[name].steps, loop: None})
            elif isinstance(scope[name], (int, float)):
                scope[name] = Tile(steps={loop: None})
        self._loops.append((loop, trips))
        self.block(body, scope)
        self._loops.pop()

    def _branch(self, node: ast.If, scope: dict[str, Value]) -> None:
        test = self.value(node.test, scope)
        if not isinstance(test, Tile):
            self.block(node.body if test else node.orelse, scope)
            return
        before = self._side
        by_program = any(source.startswith("pid") for source in test.steps)
        for number, body in enumerate((node.body, node.orelse)):
            self._side = (*before, f"{node.lineno}.{number}") if by_program else before
            try:
                self.block(body, scope)
            except _Returned as returned:
                if self._depth:
                    self._side = before
                    raise returned from None
        self._side = before

    # --- expressions ------------------------------------------------------------------------------

    def value(self, node: ast.expr, scope: dict[str, Value]) -> Value:
        """What an expression is; unknown names and constructs are an unknown scalar."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return scope.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            return DTYPES.get(node.attr, UNKNOWN)
        if isinstance(node, (ast.Tuple, ast.List)):
            return short(tuple(self.value(part, scope) for part in node.elts))
        if isinstance(node, ast.BinOp):
            left, right = self.value(node.left, scope), self.value(node.right, scope)
            return self._binary(node.op, left, right)
        if isinstance(node, ast.UnaryOp):
            return unary(node.op, self.value(node.operand, scope))
        if isinstance(node, ast.Compare):
            sides = [self.value(part, scope) for part in (node.left, *node.comparators)]
            return compared(node, sides)
        if isinstance(node, ast.BoolOp):
            return joined(*(as_tile(self.value(part, scope)) for part in node.values))
        if isinstance(node, ast.IfExp):
            return self._chosen(node, scope)
        if isinstance(node, ast.Subscript):
            return self._subscript(node, scope)
        if isinstance(node, ast.Call):
            return self._call(node, scope)
        return UNKNOWN

    def _chosen(self, node: ast.IfExp, scope: dict[str, Value]) -> Value:
        test = self.value(node.test, scope)
        if isinstance(test, Tile):
            sides = (self.value(node.body, scope), self.value(node.orelse, scope))
            return joined(*map(as_tile, sides))
        return self.value(node.body if test else node.orelse, scope)

    def _binary(self, op: ast.operator, left: Value, right: Value) -> Value:
        if isinstance(left, tuple) and isinstance(right, tuple):
            return short(left + right)
        if not isinstance(left, Tile) and not isinstance(right, Tile):
            return computed(op, left, right)
        a, b = as_tile(left), as_tile(right)
        dtype = a.dtype or b.dtype
        if isinstance(op, (ast.Add, ast.Sub)):
            return replace(added(a, b, 1 if isinstance(op, ast.Add) else -1), dtype=dtype)
        if isinstance(op, ast.Mult):
            found = product_of(left, right)
        elif isinstance(op, (ast.Mod, ast.FloorDiv)) and not isinstance(left, (int, float)):
            by = right if isinstance(right, int) else None
            found = wrapped(a, by) if isinstance(op, ast.Mod) else divided(a, by)
            found = replace(joined(a, b), steps={**dict.fromkeys(b.steps), **found.steps})
        else:
            found = joined(a, b)
            if isinstance(op, ast.Div) and isinstance(right, Tile) and right.loaded:
                self._special(1, found)
        return replace(found, dtype=dtype)

    def _subscript(self, node: ast.Subscript, scope: dict[str, Value]) -> Value:
        of = self.value(node.value, scope)
        if isinstance(of, tuple):
            at = self.value(node.slice, scope)
            return of[at] if isinstance(at, int) and -len(of) <= at < len(of) else UNKNOWN
        if not isinstance(of, Tile):
            return UNKNOWN
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        sizes = list(of.shape)
        shape = [
            1 if isinstance(p, ast.Constant) else (sizes.pop(0) if sizes else 1) for p in parts
        ]
        return replace(of, shape=(*shape, *sizes))

    # --- calls ------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, scope: dict[str, Value]) -> Value:
        name = called(node)
        values = [self.value(argument, scope) for argument in node.args]
        named = {k.arg: self.value(k.value, scope) for k in node.keywords if k.arg}
        if isinstance(node.func, ast.Name) and name in self._functions:
            return self._follow(self._functions[name], values, named)
        own = None
        if isinstance(node.func, ast.Attribute):
            own = self.value(node.func.value, scope)
        if name in ("to", "cast"):
            value, to = (own, values[0]) if name == "to" and values else (values[0], values[-1])
            return replace(as_tile(value), dtype=to) if isinstance(to, str) else as_tile(value)
        if isinstance(own, Tile) and own is not UNKNOWN:
            values = [own, *values]
        return self._builtin(name, values, named)

    def _builtin(self, name: str, values: list[Value], named: Mapping[str, Value]) -> Value:
        tiles = [as_tile(value) for value in values]
        if name in ("program_id", "num_programs"):
            axis = values[0] if values and isinstance(values[0], int) else named.get("axis", 0)
            return Tile(steps={f"pid{axis}": 1}) if name == "program_id" else UNKNOWN
        if name == "arange":
            return self._arange(values)
        if name in ("zeros", "full", "zeros_like", "full_like"):
            shape = values[0] if values else named.get("shape")
            return Tile(shape=sizes_of(shape)) if isinstance(shape, tuple) else blank(tiles)
        if name in ("load", "store") or name.startswith("atomic_"):
            return self._access(name, tiles, named)
        if name == "dot":
            return self._dot(values, named)
        if name in SPECIALS:
            found = joined(*tiles)
            if found.loaded:
                self._special(SPECIALS[name], found)
            return found
        if name in REDUCTIONS and tiles:
            return self._reduced(tiles[0], values, named)
        if name in ("minimum", "maximum") and len(tiles) == 2:
            wide = max(tiles, key=lambda tile: len(tile.steps))
            return replace(wide, loaded=tiles[0].loaded | tiles[1].loaded)
        if name == "cdiv" and all(isinstance(value, int) for value in values):
            return -(-values[0] // values[1])
        if name == "broadcast_to" and len(values) > 1:
            shape = values[1] if isinstance(values[1], tuple) else tuple(values[1:])
            return replace(tiles[0], shape=sizes_of(shape))
        if name in SAME and tiles:
            return tiles[0]
        if name in ("make_block_ptr", "make_tensor_descriptor", "inline_asm_elementwise"):
            self.complete = False
        return joined(*tiles)

    def _follow(
        self, function: ast.FunctionDef, values: list[Value], named: Mapping[str, Value]
    ) -> Value:
        if self._depth >= DEEPEST:
            raise _TooMuchError
        names = [argument.arg for argument in function.args.args]
        scope = dict(zip(names, values, strict=False)) | dict(named)
        self._depth += 1
        try:
            self.block(function.body, scope)
        except _Returned as returned:
            return returned.value
        finally:
            self._depth -= 1
        return None

    def _arange(self, values: list[Value]) -> Tile:
        first, last, _ = bounds_of(values)
        if not (isinstance(first, int) and isinstance(last, int)):
            self.complete = False
            return UNKNOWN
        source = f"lane{len(self._extents)}"
        self._extents[source] = last - first
        return Tile(shape=(last - first,), steps={source: 1})

    def _access(self, name: str, tiles: list[Tile], named: Mapping[str, Value]) -> Tile:
        if not tiles or tiles[0].pointer is None:
            self.complete = False
            return joined(*tiles)
        at = tiles[0]
        if name == "store" and len(tiles) > 1:
            at = replace(at, shape=joined(at, tiles[1]).shape)
        kind = name if name in ("load", "store") else "atomic"
        pointer = str(at.pointer)
        self.accesses.append(
            Access(
                kind=kind,
                pointer=pointer,
                lanes=at.lanes,
                run=at.contiguous(self._extents),
                trips=self._trips(),
                fixed=frozenset({"pid0", "pid1", "pid2"} - at.steps.keys()),
                inside=tuple(loop for loop, _ in self._loops),
                side=".".join(self._side),
                follows=frozenset(source for source in at.steps if source.startswith("loop")),
            )
        )
        loaded = frozenset({(pointer, len(self.accesses))})
        # What was loaded varies with its address, but is no address itself.
        steps = dict.fromkeys(at.steps)
        dtype = self._signature.get(pointer, "").lstrip("*k") or None
        return Tile(shape=at.shape, steps=steps, loaded=loaded, dtype=dtype)

    def _dot(self, values: list[Value], named: Mapping[str, Value]) -> Tile:
        a, b = as_tile(values[0]), as_tile(values[1])
        precise = named.get("input_precision") == "ieee" or named.get("allow_tf32") is False
        full = a.dtype == "fp32" and b.dtype == "fp32"
        shape = (*a.shape[:-1], b.shape[-1] if b.shape else 1)
        if len(shape) >= 2:
            loops = tuple(loop for loop, _ in self._loops)
            self.products.append(
                Product(
                    rows=shape[-2], columns=shape[-1], tensor_cores=not (precise and full),
                    inside=loops, loaded=a.loaded | b.loaded,
                )
            )  # fmt: skip
        else:
            self.complete = False
        found = joined(a, b, *(as_tile(value) for value in values[2:3]))
        return replace(found, shape=shape, dtype="fp32")

    def _reduced(self, tile: Tile, values: list[Value], named: Mapping[str, Value]) -> Tile:
        axis = named.get("axis", values[1] if len(values) > 1 else None)
        shape: tuple[int, ...] = ()
        if isinstance(axis, int) and tile.shape:
            at = axis % len(tile.shape)
            shape = (*tile.shape[:at], *tile.shape[at + 1 :])
        return replace(tile, shape=shape)

    def _special(self, weight: int, tile: Tile) -> None:
        loops = tuple(loop for loop, _ in self._loops)
        self.specials.append(
            Special(
                results=weight * tile.lanes, trips=self._trips(), loaded=tile.loaded, inside=loops
            )
        )

    def _trips(self) -> int | None:
        total = 1
        for _, trips in self._loops:
            if trips is None:
                return None
            total *= trips
        return total
