"""Reductions over one axis and another, broadcasts, sizes that are zero, one, or not yet known."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tests.analyzers.planted.captured import SOFTMAX, XY, Case, Model, X, case, tensors

Tensor = torch.Tensor
NORM = "mul mean add rsqrt mul"


def unknown(*dims: int, shape: tuple[int, ...] = (16, 32)) -> Any:
    """An input of which some sizes are only known at run time."""

    def made() -> tuple[Tensor, ...]:
        x = torch.randn(shape)
        for dim in dims:
            torch._dynamo.mark_dynamic(x, dim)
        return (x,)

    return made


def norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def of_rows_and_of_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y.sum(-1), y.sum(0)


def softmax_down_the_rows(x: Tensor) -> Tensor:
    return x.softmax(0)


def both_ways(x: Tensor) -> Tensor:
    return x.softmax(-1) + x.softmax(0)


def two_widths(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y.softmax(-1), y.view(32, 16).softmax(-1)


def unequal_widths(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The long chain is worth more to the second group, which is found later."""
    y = (x * z).exp() + z
    narrow = y.view(64, 8)
    return y.sum(-1), narrow.softmax(-1) * z.view(64, 8)


def fan_out_of_a_cast(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float()
    return wide.softmax(-1).bfloat16(), wide.view(64, 8).softmax(-1).bfloat16()


def fan_out_beyond_a_matmul(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide @ w).softmax(-1) + wide


def one_row_value_for_two(x: Tensor) -> tuple[Tensor, Tensor]:
    row = x.amax(-1, keepdim=True)
    return (x - row).exp(), (x + row).sin()


def siblings(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(-1), x.amax(-1)


def sibling_chains(x: Tensor) -> tuple[Tensor, Tensor]:
    return norm(x), x.softmax(-1)


def unrelated_with_a_scalar(x: Tensor, y: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    t = s.exp()
    return (x + t).softmax(-1), (y + t).softmax(-1)


def unrelated_with_a_weight(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return norm(x) * w, norm(y) * w


def mask_of_rows(x: Tensor, m: Tensor) -> Tensor:
    return (x + m * -1e4).softmax(-1)


def causal(x: Tensor) -> Tensor:
    keep = torch.ones(16, 16).tril().bool()
    return x.masked_fill(~keep, float("-inf")).softmax(-1)


def norm_backward_weights(w: Tensor, x: Tensor) -> Tensor:
    return norm(x.tanh()) * w


SPACES: tuple[Case, ...] = (
    case("rows and columns summed", of_rows_and_of_columns, X, "exp sum sum"),
    case("a softmax down the rows", softmax_down_the_rows, X, "sub exp sum",
         outside={"sub": "a second pass", "div": "a second pass"}),
    case("softmaxes along both axes", both_ways, X, f"{SOFTMAX} div add", "sub exp sum",
         outside={"sub#2": "a second pass", "exp#2": "a second pass"}),
    case("two widths of one value", two_widths, X, f"exp {SOFTMAX}", f"exp {SOFTMAX}",
         again=("exp",), outside={"amax#2": "over other axes"}),
    case("the wider gain decides", unequal_widths, XY, f"mul exp add {SOFTMAX} mul",
         outside={"sum#1": "over other axes"}),
    case("a cast in each of two kernels", fan_out_of_a_cast,
         lambda: (torch.randn(16, 32).bfloat16(),),
         f"cast {SOFTMAX} cast", f"cast {SOFTMAX} cast", again=("cast",)),
    case("a cast beyond a matmul", fan_out_beyond_a_matmul,
         lambda: (torch.randn(16, 32).bfloat16(), torch.randn(32, 32)), f"cast {SOFTMAX} add",
         again=("cast",), outside={"mm": "not a row operation"}),
    case("one row value for two results", one_row_value_for_two, X, "amax sub exp add sin"),
    case("siblings that read one input", siblings, X, "mean amax"),
    case("chains that read one input", sibling_chains, X, f"{NORM} {SOFTMAX}"),
    case("unrelated chains that share a scalar", unrelated_with_a_scalar,
         tensors((16, 32), (8, 64), ()), f"add {SOFTMAX}", f"add {SOFTMAX}",
         outside={"exp#1": "smaller than the group's rows"}),
    case("unrelated chains that share a weight", unrelated_with_a_weight,
         tensors((16, 32), (16, 32), (32,)), f"{NORM} mul", f"{NORM} mul"),
    case("a mask smaller than the rows", mask_of_rows, tensors((2, 4, 8, 8), (2, 1, 8, 8)),
         f"add {SOFTMAX}", outside={"mul": "smaller than the group's rows"}),
    case("a causal mask from numbers", causal, tensors((2, 16, 16)), f"where {SOFTMAX}"),
    case("a result larger than the rows", lambda x, b: x.softmax(-1) * b,
         tensors((16, 32), (4, 16, 32)), SOFTMAX, outside={"mul": "larger than the group"}),
    case("a row broadcast over columns", lambda x, r: (x + r).softmax(-1),
         tensors((16, 32), (16, 1)), f"add {SOFTMAX}"),
    case("a column broadcast over rows", lambda x, w, b: functional.layer_norm(x, (32,), w, b),
         tensors((16, 32), (32,), (32,)), "var mean sub add rsqrt mul mul add"),
    case("rows in three axes", norm, tensors((2, 8, 32)), NORM),
    case("an axis of size one beside the columns", lambda x: x.unsqueeze(-1).sum((-1, -2)) * 2,
         X, "sum mul"),
    case("an instance norm has an axis of size one", functional.instance_norm,
         tensors((2, 4, 8, 8)), "var mean sub add rsqrt mul"),
    case("a group norm", lambda x, w, b: functional.group_norm(x, 2, w, b),
         tensors((2, 4, 8, 8), (4,), (4,)), "var mean sub add rsqrt mul mul add"),
    case("a whole tensor summed", lambda x: (x * x).sum(), X, outside={"sum": "a single row"}),
    case("a single row", lambda x: x.softmax(-1), tensors((1, 32)),
         outside={"amax": "a single row"}),
    case("rows of one element", lambda x: x.softmax(-1), tensors((16, 1)),
         outside={"amax": "single element"}),
    case("no rows", lambda x: x.softmax(-1), tensors((0, 32)),
         outside={"amax": "a tensor of the group is empty"}),
    case("rows longer than registers", lambda x: x.softmax(-1) * 2, tensors((2, 40_000)),
         f"{SOFTMAX} mul"),
    case("rows known at run time", lambda x: x.softmax(-1) * 2, unknown(0), f"{SOFTMAX} mul"),
    case("columns known at run time", lambda x: x.softmax(-1) * 2, unknown(1), f"{SOFTMAX} mul"),
    case("flattened sizes known at run time",
         lambda x: x.flatten(0, 1).softmax(-1).view(x.shape) + x, unknown(0, 1, shape=(3, 5, 32)),
         f"{SOFTMAX} add"),
    case("a reshape across rows", lambda x: (y := x.exp(), y.sum(-1), -y.view(8, 4, 15))[1:],
         tensors((8, 6, 10)), "exp sum", outside={"neg": "incompatible ways"}),
    case("the gradient of a weight is summed down the rows",
         Model(norm_backward_weights, (32,)), X, "tanh mul mul sum", phase="backward"),
)  # fmt: skip
