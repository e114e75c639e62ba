"""Writes, aliases, views of views, layouts, storage: what may be read when, and where."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.analyzers.planted.captured import SOFTMAX, XY, Case, X, case, tensors

Tensor = torch.Tensor


@torch.library.custom_op("planted::bump_", mutates_args=("x",))
def bump_(x: Tensor) -> None:
    """Adds one in place, opaque to the compiler."""
    x.add_(1)


def written_between_two_readers(x: Tensor) -> tuple[Tensor, Tensor]:
    row = x.mean(-1, keepdim=True)
    before = row.exp()
    x.add_(1.0)
    return before, x - row


def local_in_place(x: Tensor) -> Tensor:
    y = x * 2
    row = y.mean(-1, keepdim=True)
    y.add_(1.0)
    return y * row


def write_through_a_slice(x: Tensor) -> Tensor:
    x[:, :16].mul_(2.0)
    return x.softmax(-1)


def result_copied_into_a_buffer(buffer: Tensor, x: Tensor) -> Tensor:
    buffer.copy_(x.softmax(-1))
    return buffer.sum(-1)


def opaque_write_to_a_result(x: Tensor) -> Tensor:
    y = x.softmax(-1)
    bump_(y)
    return y * y.sum(-1, keepdim=True)


def opaque_write_to_an_input(x: Tensor) -> Tensor:
    row = x.mean(-1, keepdim=True)
    bump_(x)
    return x - row


def cache_update(cache: Tensor, x: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(0, at, x)
    return cache.softmax(-1)


def read_transposed(x: Tensor) -> Tensor:
    y = x.exp()
    return y.t().softmax(-1) + y


def rolled(x: Tensor) -> Tensor:
    y = x.exp()
    return y.roll(1, -1) / y.sum(-1, keepdim=True)


def flipped(x: Tensor) -> Tensor:
    y = x.exp()
    return y.flip(-1) / y.sum(-1, keepdim=True)


def view_of_a_view(x: Tensor) -> Tensor:
    return x.view(4, 4, 32).transpose(0, 1).reshape(16, 32).softmax(-1)


def views_that_only_rename(x: Tensor) -> Tensor:
    return (x.view(2, 8, 32).unsqueeze(1).flatten(0, 2).softmax(-1)).view(4, 4, 32) * x.view(
        4, 4, 32
    )


def as_strided_window(x: Tensor) -> Tensor:
    y = x.exp()
    return y.as_strided((15, 32), (32, 1), 32) / y[1:].sum(-1, keepdim=True)


def memory_used_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """The allocator gives `first` the memory that `early` had: nothing to do with each other."""
    early = x.exp()
    first = early.softmax(-1).view(32, 16).amax(-1)
    del early
    late = x.cos()
    return first, late.view(8, 64).softmax(-1)


def two_shapes_of_one_input(x: Tensor) -> Tensor:
    return x.view(-1, 32).softmax(-1).view(2, 8, 32) + x


def escapes(x: Tensor) -> tuple[Tensor, ...]:
    y = x.exp()
    row = y.sum(-1, keepdim=True)
    return y, row, y / row


def view_escapes(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.softmax(-1)
    return y.view(-1), y * 2


def slice_escapes(x: Tensor) -> Tensor:
    return x.softmax(-1)[:, :5]


def transposed_result(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.softmax(-1)
    return y.t().contiguous(), y.exp()


def padded(y: Tensor) -> tuple[Tensor, Tensor]:
    p = y.softmax(-1)
    return functional.pad(p, (0, 1)), p * 2


MEMORY: tuple[Case, ...] = (
    case("a write between two readers becomes a new value", written_between_two_readers, X,
         "mean exp add sub", outside={"copy_": "writes to one of its inputs"}),
    case("in place on a temporary", local_in_place, X, "mul add mean mul"),
    case("a write through a slice", write_through_a_slice, X, SOFTMAX,
         outside={"slice_scatter": "not a row operation"}),
    case("a result copied into a buffer", result_copied_into_a_buffer, XY, f"{SOFTMAX} sum",
         outside={"copy_": "writes to one of its inputs"}),
    case("an opaque op writes a result", opaque_write_to_a_result, X, SOFTMAX, "sum mul",
         outside={"auto_functionalized_v2": "not a row operation"}),
    case("an opaque op writes an input", opaque_write_to_an_input, X, "mean sub",
         outside={"auto_functionalized_v2": "not a row operation"}),
    case("a cache updated in place", cache_update,
         lambda: (torch.randn(16, 32), torch.randn(4, 32), torch.arange(4)), SOFTMAX,
         outside={"index_put": "not a row operation"}),
    case("read transposed", read_transposed, tensors((16, 16)), f"{SOFTMAX} add",
         outside={"permute": "other positions", "exp#1": "leaves the group and comes back"}),
    case("read rolled", rolled, X, "exp sum",
         outside={"index": "not a row operation", "div": "leaves the group and comes back"}),
    case("read backwards", flipped, X, "exp sum",
         outside={"rev": "not a row operation", "div": "leaves the group and comes back"}),
    case("a view of a view that moves rows", view_of_a_view, X, SOFTMAX,
         outside={"permute": "other positions"}),
    case("views that only rename", views_that_only_rename, X, f"{SOFTMAX} mul"),
    case("a window of a tensor", as_strided_window, X, "sum div",
         outside={"as_strided": "other positions", "slice": "other positions"}),
    case("memory that is used twice", memory_used_twice, X, f"exp {SOFTMAX}", f"cos {SOFTMAX}",
         outside={"amax#2": "over other axes"}),
    case("two shapes of one input are one read", two_shapes_of_one_input, tensors((2, 8, 32)),
         f"{SOFTMAX} add"),
    case("everything is needed outside", escapes, X, "exp sum div"),
    case("a view of a result leaves", view_escapes, X, f"{SOFTMAX} mul"),
    case("a part of a result leaves", slice_escapes, X, SOFTMAX,
         outside={"slice": "other positions"}),
    case("a transposed copy of a result", transposed_result, X, f"{SOFTMAX} exp",
         outside={"permute": "other positions"}),
    case("a column slice as input", lambda x: x[:, ::2].softmax(-1), X, SOFTMAX,
         outside={"slice": "other positions"}),
    case("an expanded input", lambda x: x.expand(16, 32).softmax(-1), tensors((1, 32)), SOFTMAX),
    case("a transposed input", lambda x: x.softmax(-1),
         lambda: (torch.randn(32, 16).t(),), SOFTMAX),
    case("rows of a larger tensor", lambda x: x.softmax(-1),
         lambda: (torch.randn(16, 40)[:, :32],), SOFTMAX),
    case("heads turned in front of tokens", lambda x: x.softmax(-1),
         lambda: (torch.randn(2, 8, 4, 32).transpose(1, 2),), SOFTMAX),
    case("a row of pieces", lambda x: x.exp().softmax(-1),
         lambda: (torch.randn(16, 8, 8)[:, :, ::2].reshape(16, 32),), f"exp {SOFTMAX}"),
    case("chunks of one tensor", lambda x: (c := x.chunk(2, -1))[0].softmax(-1) + c[1], X,
         f"{SOFTMAX} add", outside={"split": "other positions"}),
    case("cat reads a result", lambda x, y: (torch.cat([x.softmax(-1), y]) * 2, x + 1)[0], XY,
         SOFTMAX, outside={"cat": "not a row operation"}),
    case("cat beside another consumer",
         lambda x, y: ((p := x.softmax(-1)) * 3, torch.cat([p, y])), XY, f"{SOFTMAX} mul",
         outside={"cat": "not a row operation"}),
    case("pad beside another consumer", padded, X, f"{SOFTMAX} mul",
         outside={"constant_pad_nd": "not a row operation"}),
    case("one tensor read twice by one op", lambda x: (x * x).sum(-1, keepdim=True) * x, X,
         "mul sum mul"),
    case("a stack of results", lambda x, y: torch.stack([x.softmax(-1), y.softmax(-1)]), XY,
         SOFTMAX, SOFTMAX, outside={"cat": "not a row operation"}),
)  # fmt: skip
