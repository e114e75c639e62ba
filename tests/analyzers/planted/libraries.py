"""Library calls, random numbers, scans, gathers, higher-order ops, communication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from tests.analyzers.planted.captured import SOFTMAX, XY, XYZ, Case, Model, X, case, tensors

Tensor = torch.Tensor
NORM = "mul mean add rsqrt mul"


@torch.library.custom_op("planted::twist", mutates_args=())
def twist(x: Tensor) -> Tensor:
    """Some op of the user's own."""
    return x.flip(-1).clone()


@twist.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def through_a_matmul(x: Tensor, w: Tensor) -> Tensor:
    scale = x.mean(-1, keepdim=True)
    return (x * scale) @ w + scale


def reduced_and_added(x: Tensor, y: Tensor) -> Tensor:
    """Tensor parallelism: the sum over ranks joins the residual in front of the norm."""
    total = torch.ops._c10d_functional.all_reduce(x, "sum", "0")
    return norm(y + torch.ops._c10d_functional.wait_tensor(total))


def beside_communication(x: Tensor, y: Tensor) -> Tensor:
    """The softmax needs nothing of the other ranks: it may run while they are waited for."""
    total = torch.ops._c10d_functional.all_reduce(x, "sum", "0")
    return y.softmax(-1) + torch.ops._c10d_functional.wait_tensor(total)


def conditional(x: Tensor) -> Tensor:
    chosen: Tensor = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a * 2, (x,))
    return chosen.softmax(-1)


def conv_bn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()


def dropped(x: Tensor, y: Tensor) -> Tensor:
    return norm(functional.dropout(x, 0.1, True) + y)


def two_draws(x: Tensor) -> tuple[Tensor, Tensor]:
    p = x.softmax(-1)
    return p * torch.rand_like(x), p + torch.rand_like(x)


def rotary(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    turned = torch.cat([-x[..., 16:], x[..., :16]], -1)
    return (x * c + turned * s).softmax(-1)


def checkpointed(w: Tensor, x: Tensor) -> Any:
    return checkpoint(lambda a: (a * w).softmax(-1).exp(), x, use_reentrant=False)


LIBRARIES: tuple[Case, ...] = (
    case("a path through a matmul", through_a_matmul, tensors((32, 32), (32, 32)), "mean mul",
         outside={"addmm": "not a row operation"}),
    case("a norm read by a matmul and a sum",
         lambda x, w: ((n := norm(x)) @ w, n.sum(-1)), tensors((16, 32), (32, 8)), f"{NORM} sum",
         outside={"mm": "not a row operation"}),
    case("a matmul, its activation and a norm",
         lambda x, w, b: functional.layer_norm(functional.gelu(functional.linear(x, w, b)), (8,)),
         tensors((16, 32), (8, 32), (8,)), "add mul mul erf add mul var mean sub add rsqrt mul",
         outside={"mm": "not a row operation"}),
    case("a convolution and its batch norm", conv_bn(), tensors((2, 3, 8, 8))),
    case("attention of a library",
         lambda q: functional.scaled_dot_product_attention(q, q, q).softmax(-1),
         tensors((2, 4, 8, 16)), SOFTMAX,
         outside={"_scaled_dot_product_flash_attention_for_cpu": "not a row operation"}),
    case("flex attention", lambda q: flex_attention(q, q, q).softmax(-1),
         tensors((2, 4, 128, 16)), SOFTMAX, outside={"flex_attention": "not a row operation"}),
    case("dropout behind a softmax", lambda x: functional.dropout(x.softmax(-1), 0.1, True), X,
         f"random gt {SOFTMAX} mul mul", outside={"inductor_lookup_seed": "not a row operation"}),
    case("dropout and residual in front of a norm", dropped, XY, f"random gt mul mul add {NORM}",
         outside={"inductor_lookup_seed": "not a row operation"}),
    case("two draws have a seed each", two_draws, X, f"{SOFTMAX} random mul random add",
         outside={"inductor_lookup_seed#1": "not a row operation"}),
    case("dropout and residual", lambda x, y: y + functional.dropout(x, 0.1, True), XY,
         "random gt mul mul add"),
    case("random numbers by themselves", lambda x: torch.rand_like(x).mean(-1) + x[:, 0], X,
         "mean add", outside={"random": "nothing as large is read"}),
    case("a tensor scaled by its largest value", lambda x: x / x.abs().max(), X, "abs amax div"),
    case("a tensor by a sum of deviations", lambda x: x / (x - x.mean()).abs().sum(), X,
         outside={"mean": "a single row", "sum": "a single row"}),
    case("rows picked by index", lambda x, i: x[i].softmax(-1),
         lambda: (torch.randn(16, 32), torch.arange(4)), SOFTMAX,
         outside={"index": "not a row operation"}),
    case("an element picked from every row", lambda x, i: x.log_softmax(-1).gather(-1, i),
         lambda: (torch.randn(16, 32), torch.zeros(16, 1, dtype=torch.long)),
         "amax sub exp sum log sub", outside={"gather": "not a row operation"}),
    case("scattered rows", lambda x, i, v: torch.zeros_like(x).scatter(-1, i, v).softmax(-1),
         lambda: (torch.randn(16, 32), torch.zeros(16, 1, dtype=torch.long), torch.randn(16, 1)),
         SOFTMAX, outside={"scatter": "not a row operation"}),
    case("a running sum", lambda x: x.cumsum(-1).softmax(-1), X, SOFTMAX,
         outside={"cumsum": "not a row operation"}),
    case("the largest of a softmax", lambda x: x.softmax(-1).topk(3), X, SOFTMAX,
         outside={"topk": "not a row operation"}),
    case("sorted rows", lambda x: x.sort(-1)[0].mean(-1, keepdim=True) - x.mean(-1, keepdim=True),
         X, "mean mean sub", outside={"sort": "not a row operation"}),
    case("the place of the largest", lambda x: x.softmax(-1).argmax(-1), X, SOFTMAX,
         outside={"argmax": "not a row operation"}),
    case("an op of the user's own", lambda x: twist(x.exp()).softmax(-1), X, SOFTMAX,
         outside={"twist": "not a row operation"}),
    case("a conditional", conditional, X, SOFTMAX, outside={"cond": "not a row operation",
                                                          "sum#1": "a single row"}),
    case("an optimizer's list of tensors",
         lambda a, b, c, d: torch._foreach_add([a, b], [c, d], alpha=-0.1)[0].softmax(-1),
         tensors((16, 32), (16, 32), (16, 32), (16, 32)), SOFTMAX,
         outside={"_foreach_add": "not a row operation"}),
    case("a rotary embedding", rotary, XYZ, f"mul mul add {SOFTMAX}",
         outside={"cat": "not a row operation"}),
    case("a checkpoint computes again in the backward pass", Model(checkpointed, (32,)), X,
         f"mul {SOFTMAX} exp mul mul sum neg fma mul sum", phase="backward"),
    case("a sum over ranks in front of a norm", reduced_and_added, XY, f"add {NORM}",
         outside={"wait_tensor": "boundary of communication"}),
    case("a softmax beside communication", beside_communication, XY, SOFTMAX,
         outside={"add": "would wait for communication"}),
    case("a kl divergence", lambda x, y: (x.log_softmax(-1) * y.softmax(-1)).sum(-1), XY,
         "amax sub exp sum log sub amax sub exp sum div mul sum"),
)  # fmt: skip


@contextmanager
def one_process_group() -> Iterator[None]:
    """Ops of functional collectives look their group up by name when they are traced."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
