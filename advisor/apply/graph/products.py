"""The two matrix products of attention, whatever way they are spelled.

A product is read as operands whose axes are named: leading axes, then rows and columns. `torch.bmm`
on flattened heads, `matmul` with broadcasting and `einsum` with any order of letters are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from advisor.apply.graph.spelling import Call, read, same_shape, same_size, value_of

Size = int | torch.SymInt
Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class Operand:
    """A tensor seen with other axes: `axes[i]` is the node's axis there, None an axis of one.

    `reader` is the node that reads it today.
    """

    node: fx.Node
    axes: Axes
    reader: fx.Node

    def shape(self) -> tuple[Size, ...]:
        """The sizes in the order of `axes`."""
        sizes = tensor(self.node).shape
        return tuple(1 if axis is None else sizes[axis] for axis in self.axes)

    def swapped(self) -> Operand:
        """The last two axes exchanged."""
        return replace(self, axes=(*self.axes[:-2], self.axes[-1], self.axes[-2]))

    def bare(self) -> Operand:
        """The same tensor without the transpositions that make its node."""
        found = self
        while (step := _transposed(found.node)) is not None:
            source, order = step
            axes = tuple(None if axis is None else order[axis] for axis in found.axes)
            found = Operand(source, axes, found.node)
        return found


@dataclass(frozen=True)
class Product:
    """`left @ right`, [leading axes, M, K] by [leading axes, K, N].

    `order` are the axes of the node's result, as numbers of [leading axes, M, N]. `added` is what
    `baddbmm` adds to the product, before any later step, and `scale` what it multiplies it with.
    """

    node: fx.Node
    left: Operand
    right: Operand
    order: tuple[int, ...]
    scale: Any = 1
    added: Any = None
    added_scale: Any = 1


def tensor(node: fx.Node) -> torch.Tensor:
    """The fake tensor of a node that is known to be one."""
    value = value_of(node)
    assert value is not None
    return value


def product_of(node: fx.Node, *, of_weights: bool = False) -> Product | None:
    """The product that a node computes, or None; `of_weights` if its left operand is a matrix.

    That tells which letter of an `einsum` are the rows, where the left operand alone has several:
    the one before last of a matrix, else the one before last of the result.
    """
    call = read(node)
    if call is None or value_of(node) is None or call.in_place:
        return None
    if call.name in ("matmul", "bmm"):
        return _matmul(node, call["input"], call["other"])
    if call.name == "baddbmm":
        plain = _matmul(node, call["batch1"], call["batch2"])
        scale = 1 if call["alpha"] is None else call["alpha"]
        beta = 1 if call["beta"] is None else call["beta"]
        if plain is None:
            return None
        return Product(node, plain.left, plain.right, plain.order, scale, call["input"], beta)
    if call.name == "einsum":
        return _einsum(node, call, of_weights)
    return None


def _matmul(node: fx.Node, left: Any, right: Any) -> Product | None:
    first, second = value_of(left), value_of(right)
    rank = tensor(node).dim()
    if first is None or second is None or min(first.dim(), second.dim()) < 2:
        return None
    return Product(
        node,
        Operand(left, _aligned(first.dim(), rank), node),
        Operand(right, _aligned(second.dim(), rank), node),
        tuple(range(rank)),
    )


def _aligned(rank: int, wanted: int) -> Axes:
    """The axes of a tensor of `rank` that broadcasts to `wanted` axes."""
    return (*(None,) * (wanted - rank), *range(rank))


def _einsum(node: fx.Node, call: Call, of_weights: bool) -> Product | None:
    """One contracted letter; each of the last two letters of the result from one operand only."""
    left, right = call["left"], call["right"]
    first, second = value_of(left), value_of(right)
    letters = _letters(call["equation"], first, second)
    if letters is None:
        return None
    one, two, result = letters
    inner = [letter for letter in one if letter in two and letter not in result]
    rows = [letter for letter in result if letter not in two]
    columns = [letter for letter in result if letter not in one]
    if len(inner) != 1 or len(columns) != 1 or not rows:
        return None
    if any(x not in result and x not in inner for x in one + two):
        return None
    row, column = one[-2] if of_weights and one[-2] in rows else rows[-1], columns[0]
    lead = [letter for letter in result if letter not in (row, column)]
    wanted = [*lead, row, column]
    return Product(
        node,
        Operand(left, tuple(_find(one, letter) for letter in (*lead, row, inner[0])), node),
        Operand(right, tuple(_find(two, letter) for letter in (*lead, inner[0], column)), node),
        tuple(wanted.index(letter) for letter in result),
    )


def _letters(
    equation: str, first: torch.Tensor | None, second: torch.Tensor | None
) -> tuple[str, str, str] | None:
    """The letters of operands and result, an ellipsis written out; None for other spellings."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    one, comma, two = inputs.partition(",")
    if not arrow or not comma or "," in two or first is None or second is None:
        return None
    dots = {first.dim() - len(one) + 3 if "..." in one else 0}
    dots.add(second.dim() - len(two) + 3 if "..." in two else 0)
    if len(dots) != 1:
        return None
    spare = [c for c in "ABCDEFGHIJKLMNOP" if c not in equation][: dots.pop()]
    parts = [text.replace("...", "".join(spare)) for text in (one, two, result)]
    if any(len(set(text)) != len(text) for text in parts):
        return None
    return parts[0], parts[1], parts[2]


def _find(letters: str, letter: str) -> int | None:
    return letters.index(letter) if letter in letters else None


def _transposed(node: fx.Node) -> tuple[fx.Node, tuple[int, ...]] | None:
    """What a node transposes, and where each of its axes comes from; also looks past copies."""
    call = read(node)
    if call is None or call.in_place:
        return None
    source = call["input"]
    value = value_of(source)
    if value is None:
        return None
    order = list(range(value.dim()))
    if call.name == "transpose":
        a, b = call["dim0"], call["dim1"]
        order[a], order[b] = order[b], order[a]
    elif call.name in ("adjoint", "t"):
        if value.dim() < 2 or (call.name == "t" and value.dim() != 2):
            return None
        order[-1], order[-2] = order[-2], order[-1]
    elif call.name == "permute":
        order = [order[axis] for axis in call["dims"]]
    elif call.name != "copy":
        return None
    return source, tuple(order)


def without_repeats(operand: Operand) -> tuple[Operand, int] | None:
    """The tensor whose heads, axis 1 of 4, an operand repeats, and how often; None if it does not.

    `repeat_interleave`, or an axis of one put in behind the heads, expanded and merged with them.
    """
    bare = operand.bare()
    if len(bare.axes) != 4 or bare.axes[0] != 0:
        return None
    axis = bare.axes[1]
    if axis is None:
        return None
    found = _repeated(bare.node, axis)
    if found is None:
        return None
    source, times, reader = found
    return Operand(source, bare.axes, reader).bare(), times


def _repeated(node: fx.Node, axis: int) -> tuple[fx.Node, int, fx.Node] | None:
    call = read(node)
    if call is None:
        return None
    if call.name == "repeat_interleave":
        value, times = value_of(call["input"]), call["repeats"]
        if value is None or not isinstance(times, int) or call["dim"] is None:
            return None
        return (call["input"], times, node) if call["dim"] % value.dim() == axis else None
    if call.name in ("expand", "repeat"):
        return _of_one_head(node, call["input"], axis)
    if call.name != "view":
        return None
    return _expanded_group(node, call["input"], axis)


def _of_one_head(node: fx.Node, source: Any, axis: int) -> tuple[fx.Node, int, fx.Node] | None:
    value, result = value_of(source), tensor(node)
    if value is None or value.dim() != result.dim():
        return None
    if not same_size(value.shape[axis], 1):
        return None
    times = result.shape[axis]
    wide = (*value.shape[:axis], times, *value.shape[axis + 1 :])
    if isinstance(times, int) and times > 1 and same_shape(wide, tuple(result.shape)):
        return source, times, node
    return None


def _expanded_group(node: fx.Node, source: Any, axis: int) -> tuple[fx.Node, int, fx.Node] | None:
    """[.., heads, 1, ..] expanded to [.., heads, times, ..] and merged."""
    expanded = read(source) if isinstance(source, fx.Node) else None
    if expanded is not None and expanded.name == "copy":
        source = expanded["input"]
        expanded = read(source)
    if expanded is None or expanded.name not in ("expand", "repeat"):
        return None
    inserted = expanded["input"]
    before, after = value_of(inserted), value_of(source)
    inner = read(inserted) if isinstance(inserted, fx.Node) else None
    if before is None or after is None or inner is None or not _only_inserts(inner):
        return None
    base, result = value_of(inner["input"]), tensor(node)
    if base is None or after.dim() != result.dim() + 1 or base.dim() != result.dim():
        return None
    heads, times = base.shape[axis], after.shape[axis + 1]
    if not isinstance(heads, int) or not isinstance(times, int):
        return None
    around, behind = tuple(base.shape[:axis]), tuple(base.shape[axis + 1 :])
    expected = (
        (tuple(before.shape), (*around, heads, 1, *behind)),
        (tuple(after.shape), (*around, heads, times, *behind)),
        (tuple(result.shape), (*around, heads * times, *behind)),
    )
    fits = all(same_shape(a, b) for a, b in expected)
    return (inner["input"], times, inserted) if fits else None


def _only_inserts(call: Call) -> bool:
    """Whether a call of matching shapes can only have put in axes of one."""
    if call.name != "getitem":
        return call.name == "view"
    index = call["index"] if isinstance(call["index"], tuple) else (call["index"],)
    return all(item is None or item is Ellipsis or isinstance(item, slice) for item in index)
