"""Which constants of a Triton kernel are sizes of its tiles, and what else follows from each.

A constant that bounds a `tl.arange` may be changed if the launch changes with it: where the place
of a program is a product of it, there are fewer programs; where a loop walks by it, nothing else
changes; where it must cover a run-time size, no smaller one will do. Everything else (numbers of
rounds, fields, modes) is part of what the kernel computes and is left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_SHORT = ("Lt", "LtE")


@dataclass(frozen=True)
class Tile:
    """One size: `axes` of the grid that count in it, `walked` by a loop, or `covers` an argument.

    `covers` names the argument that lanes are compared with, None where there is none.
    """

    name: str
    axes: frozenset[int] = frozenset()
    walked: bool = False
    covers: str | None = None


def tiles_of(source: str, kernel: str) -> dict[str, Tile]:
    """The tiles of a kernel of a file; empty if it is not there. Raises `SyntaxError` as `ast`."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.FunctionDef) and statement.name == kernel:
            return _Reading(statement).tiles()
    return {}


def has_products(source: str, kernel: str) -> bool:
    """Whether a kernel multiplies matrices: its tiles then have least sizes, its loops stages."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.FunctionDef) and statement.name == kernel:
            return any(_called(node) == "dot" for node in ast.walk(statement))
    return False


class _Reading:
    """One function: what each of its names is made of."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self._function = function
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        self._constants = {a.arg for a in arguments if "constexpr" in _text(a.annotation)}
        self._runtime = {a.arg for a in arguments} - self._constants
        self._made: dict[str, tuple[set[int], set[str]]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if isinstance(target, ast.Name):
                    axes, lanes = self._made.setdefault(target.id, (set(), set()))
                    axes |= self._axes(node.value)
                    lanes |= self._lanes(node.value)

    def tiles(self) -> dict[str, Tile]:
        names = set(self._all_lanes(self._function))
        return {
            name: Tile(
                name,
                frozenset(self._counted(name)),
                self._is_walked(name),
                self._covered(name),
            )
            for name in sorted(names & self._constants)
        }

    def _axes(self, expression: ast.AST) -> set[int]:
        """The axes of the grid that a value depends on."""
        found: set[int] = set()
        for node in ast.walk(expression):
            if _called(node) == "program_id":
                found |= {axis for a in _arguments(node) if (axis := _axis(a)) is not None}
            elif isinstance(node, ast.Name) and node.id in self._made:
                found |= self._made[node.id][0]
        return found

    def _lanes(self, expression: ast.AST) -> set[str]:
        """The constants that bound the lanes of a value."""
        found = set(self._all_lanes(expression))
        for node in ast.walk(expression):
            if isinstance(node, ast.Name) and node.id in self._made:
                found |= self._made[node.id][1]
        return found

    @staticmethod
    def _all_lanes(tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            if _called(node) == "arange":
                yield from (a.id for a in _arguments(node)[1:] if isinstance(a, ast.Name))

    def _counted(self, tile: str) -> set[int]:
        """The axes of the grid whose number is multiplied by a tile."""
        found: set[int] = set()
        for node in ast.walk(self._function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                for one, other in ((node.left, node.right), (node.right, node.left)):
                    if isinstance(one, ast.Name) and one.id == tile:
                        found |= self._axes(other)
        return found

    def _is_walked(self, tile: str) -> bool:
        """Whether a loop goes on by the tile: it then ends where it ends."""
        steps = [
            _arguments(node)[2]
            for node in ast.walk(self._function)
            if _called(node) == "range" and len(_arguments(node)) == 3
        ]
        return any(isinstance(n, ast.Name) and n.id == tile for s in steps for n in ast.walk(s))

    def _covered(self, tile: str) -> str | None:
        for node in ast.walk(self._function):
            if not isinstance(node, ast.Compare) or len(node.comparators) != 1:
                continue
            bound, short = node.comparators[0], type(node.ops[0]).__name__ in _SHORT
            if short and isinstance(bound, ast.Name) and bound.id in self._runtime:
                lanes = self._lanes(node.left)
                if lanes == {tile}:
                    return bound.id
        return None


def _called(node: ast.AST) -> str:
    """The last name of what a call calls, as `arange` of `tl.arange(...)`."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _arguments(node: ast.AST) -> list[ast.expr]:
    return node.args if isinstance(node, ast.Call) else []


def _axis(expression: ast.expr) -> int | None:
    value = expression.value if isinstance(expression, ast.Constant) else None
    return value if isinstance(value, int) and 0 <= value <= 2 else None


def _text(expression: ast.expr | None) -> str:
    return ast.unparse(expression) if expression is not None else ""
