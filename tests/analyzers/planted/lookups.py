"""Lookups before a norm: read from their tables, or not, and why."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.analyzers.planted.captured import SOFTMAX, Case, Inputs, Model, case
from tests.analyzers.planted.libraries import NORM, norm

Tensor = torch.Tensor
LAYER = "var mean sub add rsqrt mul mul add"


def tables(*shapes: tuple[int, ...], ids: tuple[int, ...] = (4, 16), rows: int = 50) -> Inputs:
    """Indices into tables of 32 columns, then tables and other tensors."""

    def made() -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        index = torch.randint(0, rows, ids, generator=generator)
        return (index, *(torch.randn(shape, generator=generator) for shape in shapes))

    return made


def bert(ids: Tensor, words: Tensor, kinds: Tensor, places: Tensor, w: Tensor, b: Tensor) -> Tensor:
    kind = torch.zeros_like(ids) + (ids > 20).long()
    place = torch.arange(16)[None] * 1
    read = functional.embedding(ids, words, padding_idx=0) + functional.embedding(kind, kinds)
    return functional.layer_norm(read + functional.embedding(place, places), (32,), w, b)


def first_layer(ids: Tensor, table: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    hidden = functional.embedding(ids, table)
    return hidden + norm(hidden) @ w, hidden


def through_a_product(ids: Tensor, table: Tensor, w: Tensor) -> Tensor:
    read = functional.embedding(ids, table)
    return norm(read + read @ w)


def in_two_ways(ids: Tensor, table: Tensor) -> Tensor:
    read = functional.embedding(ids, table)
    return norm(read[:, :8] + read[:, 8:])


def by_two_indices(ids: Tensor, table: Tensor) -> Tensor:
    return norm(functional.embedding(ids, table) + functional.embedding(ids + 1, table))


def in_heads(ids: Tensor, table: Tensor) -> Tensor:
    return norm(functional.embedding(ids, table).reshape(4, 16, 4, 8))


def smaller_and_kept(ids: Tensor, table: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    read = functional.embedding(ids, table)
    return norm(x + read), read


def written_to(ids: Tensor, table: Tensor) -> Tensor:
    result = norm(functional.embedding(ids, table))
    table.mul_(0.5)
    return result


def waiting(ids: Tensor, table: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The second group computes what the first one waits for; its rows are no table's."""
    read, early = functional.embedding(ids, table), y.sigmoid()
    first = norm(read + early @ w)
    return first, (read + y).reshape(4, -1).softmax(-1)


LOOKUPS: tuple[Case, ...] = (
    case("an embedding and its norm", lambda i, t: norm(functional.embedding(i, t)),
         tables((50, 32)), f"opaque {NORM}"),
    case("indices cut out of longer rows", lambda i, t: norm(functional.embedding(i[:, :-1], t)),
         tables((50, 32)), f"opaque {NORM}"),
    case("indices of 32 bits and a table in bfloat16",
         lambda i, t: norm(functional.embedding(i.int(), t.bfloat16()).float()),
         tables((50, 32)), f"opaque cast {NORM}"),
    case("a table cut out of a wider one", lambda i, t: norm(functional.embedding(i, t[:, :32])),
         tables((50, 40)), f"opaque {NORM}"),
    case("words, kinds, places and their norm", bert,
         tables((50, 32), (2, 32), (16, 32), (32,), (32,)),
         f"opaque opaque add opaque add {LAYER}"),
    case("a first layer, its input needed again", first_layer, tables((50, 32), (32, 32)),
         f"opaque {NORM}"),
    case("a lookup, dropped out and normed",
         lambda i, t: norm(functional.dropout(functional.embedding(i, t), 0.5)),
         tables((50, 32)), f"random gt opaque mul mul {NORM}"),
    case("a lookup that a product reads too", through_a_product, tables((50, 32), (32, 32)),
         f"add {NORM}", outside={"embedding": "a path leaves the group"}),
    case("a lookup of two groups, of which one waits for the other", waiting,
         tables((50, 32), (4, 16, 32), (32, 32)), f"add {NORM}", f"sigmoid add {SOFTMAX}",
         outside={"embedding": "a path leaves the group"}),
    case("a lookup read in two ways", in_two_ways, tables((50, 32)), f"add {NORM}",
         outside={"slice#1": "at other positions"}),
    case("one table by two indices", by_two_indices, tables((50, 32), rows=49),
         f"opaque add {NORM}", outside={"embedding#2": "read in another way as well"}),
    case("rows of a table cut into heads", in_heads, tables((50, 32)), NORM,
         outside={"embedding": "are not those of the table"}),
    case("places that are kept", smaller_and_kept, tables((50, 32), (4, 16, 32), ids=(16,)),
         f"add {NORM}", outside={"embedding": "smaller than the group's rows"}),
    case("a table that is written to", written_to, tables((50, 32)), NORM,
         outside={"embedding": "written to"}),
    case("an index that may count from the end", lambda i, t: norm(t[i]), tables((50, 32)), NORM,
         outside={"index": "not a row operation"}),
    case("a trained embedding and its norm",
         Model(lambda t, w, i: norm(functional.embedding(i, t)) * w, (50, 32), (32,)),
         tables(), f"opaque {NORM} mul", phase="forward"),
    case("the gradient of an embedding and its norm",
         Model(lambda t, w, i: norm(functional.embedding(i, t)) * w, (50, 32), (32,)),
         tables(), "mul mul mul sum mul mul sum mul mul mul mul div mul add add", phase="backward"),
)  # fmt: skip
