"""Python frames around an op: the module path and the line of the user's program.

Profilers name a frame `file.py(12): function` (the line where the function begins), a module call
`nn.Module: Name_0`, a builtin `<built-in …>`. Frames of PyTorch and of the standard library are
nobody's program.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from advisor.model.linking import PIECE, innermost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table: TypeAlias = dict[str, NDArray[Any]]

_FRAME = re.compile(r"(?P<file>[^<(][^(]*)\((?P<line>\d+)\): ")
_MODULE = "nn.Module: "
_FOREIGN = ("torch/", "torchgen/", "triton/", "<")


class Place(NamedTuple):
    """What one frame adds: a module name or a line of the program."""

    module: str | None
    source: str | None


def place(name: str) -> Place:
    """`nn.Module: Mlp_0` is a module, `model.py(12): forward` a line; a library frame neither."""
    if name.startswith(_MODULE):
        return Place(name.removeprefix(_MODULE), None)
    found = _FRAME.match(name)
    if found is None:
        return Place(None, None)
    file = found["file"].replace("\\", "/")
    top = file.split("/")[0].removesuffix(".py")
    foreign = file.startswith(_FOREIGN) or "/torch/" in file or top in sys.stdlib_module_names
    return Place(None, None if foreign else f"{file}:{found['line']}")


def locate(
    ops: Table, frames: Table, names: list[str], missing: int
) -> tuple[NDArray[np.int32], list[Place]]:
    """(the number of each op's place, the places): module path, outermost first, and source line.

    Frames by the million stand in few different places, so places are made once and numbered.
    """
    parents, around = innermost(frames, ops, missing)
    kinds = {code: place(names[code]) for code in np.unique(frames["name"]).tolist()}
    places = [Place(None, None)]
    known: dict[tuple[int, int], int] = {}
    at: list[int] = []
    # Frames are sorted by start, parents first: each inherits what encloses it.
    for first in range(0, len(parents), PIECE):
        piece = (column[first : first + PIECE].tolist() for column in (frames["name"], parents))
        for code, parent in zip(*piece, strict=True):
            outer = 0 if parent == missing else at[parent]
            number = known.get((outer, code))
            if number is None:
                number = known[outer, code] = _entered(places, places[outer], kinds[code], outer)
            at.append(number)
    numbers = np.array([*at, 0], dtype=np.int32)  # the last entry: in no frame
    return numbers[np.where(around == missing, -1, around)], places


def _entered(places: list[Place], outer: Place, own: Place, outer_number: int) -> int:
    """The number of the place inside `outer` that a frame makes; its own one if it adds nothing."""
    if own.module is not None:
        path = own.module if outer.module is None else f"{outer.module}.{own.module}"
        places.append(Place(path, outer.source))
    elif own.source is not None:
        places.append(Place(outer.module, own.source))
    else:
        return outer_number
    return len(places) - 1
