"""Reductions over the rows: gradients of norms and biases, statistics of channels."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.analyzers.planted.captured import XY, Case, Model, X, case, tensors

Tensor = torch.Tensor


def rms_norm(w: Tensor, x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def narrow_rms_norm(w: Tensor, x: Tensor) -> Tensor:
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * scaled.to(x.dtype)


def layer_norm(u: Tensor, w: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return functional.layer_norm(x @ u, (32,), w, b)


def norm_of_a_product(u: Tensor, w: Tensor, x: Tensor) -> Tensor:
    return rms_norm(w, x @ u)


def bias_gelu(u: Tensor, b: Tensor, x: Tensor) -> Tensor:
    return functional.gelu(x @ u + b)


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of a channels-last picture [N, H, W, C]."""
    variance, mean = torch.var_mean(x, (0, 1, 2), correction=0)
    return torch.rsqrt(variance + 1e-5), mean


def statistics_of_planes(x: Tensor) -> Tensor:
    """Of [N, C, H, W]: sums over the images and over their pixels, which are no rows together."""
    return (x * x).sum((0, 2, 3))


def penalised(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What follows from a sum over the rows joins another value per column."""
    total = (x * y).sum(0)
    return torch.tanh(total) * y[0] + 1, x * y


def over_part_of_the_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y.sum(-1), y.sum(1)


def narrow(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [value.bfloat16() for value in tensors(*shapes)()]


class NarrowModel(Model):
    """The same in bfloat16."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.bfloat16()


COLUMNS: tuple[Case, ...] = (
    case("the gradient of an RMS norm", Model(norm_of_a_product, (32, 32), (32,)), X,
         "mul mul mul sum mul mul sum mul mul mul mul div mul add add",
         phase="backward"),
    case("the gradient of an RMS norm in bfloat16",
         NarrowModel(lambda u, w, x: narrow_rms_norm(w, x @ u), (32, 32), (32,)),
         lambda: tuple(narrow((2, 8, 32))),
         "mul cast mul cast mul sum cast mul mul sum mul mul mul mul div mul mul add cast",
         phase="backward"),
    case("the gradient of a layer norm", Model(layer_norm, (32, 32), (32,), (32,)),
         tensors((2, 8, 32)), "mul mul sum sub mul mul sum mul sub sub div mul mul sum sum",
         phase="backward"),
    case("the gradient of a bias and a GELU", Model(bias_gelu, (32, 32), (32,)), X,
         "add mul erf add mul mul mul exp mul mul add mul sum",
         phase="backward"),
    case("a bias gradient alone", Model(lambda u, b, x: (x @ u + b).tanh(), (32, 32), (32,)), X,
         "mul sub mul sum",
         phase="backward"),
    case("statistics of channels", channel_statistics, tensors((2, 4, 4, 8)), "var mean add rsqrt"),
    case("statistics of planes", statistics_of_planes, tensors((2, 3, 4, 4)), "mul sum"),
    case("what follows from a sum over the rows", penalised, XY, "mul sum tanh mul add"),
    case("a sum over part of the rows", over_part_of_the_rows, tensors((4, 8, 32)), "exp sum",
         outside={"sum#2": "over other axes"}),
    case("a softmax over the batch", lambda x: x.softmax(0), tensors((16, 4, 8)), "sub exp sum",
         outside={"sub": "a second pass", "div": "a second pass"}),
    case("a position embedding's gradient", Model(lambda p, x: (x + p).exp(), (8, 32)),
         tensors((4, 8, 32)), "mul sum", phase="backward"),
    case("a sum over rows that lie apart", lambda x: (x[:, ::2].sin(), x[:, ::2].sin().sum(0)), X,
         "sin sum"),
    case("a transposed tensor summed", lambda x: x.t().exp().sum(0), X, "exp sum"),
    case("a library's layer norm and its weights", nn.Sequential(nn.LayerNorm(32), nn.ReLU(),
         nn.LayerNorm(32)), X,
         "mul mul sum sub mul mul add relu sub mul mul sum mul sub sub div mul mul sum sum le "
         "where mul sum sum", phase="backward"),
)  # fmt: skip
