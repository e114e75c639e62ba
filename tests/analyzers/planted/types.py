"""Casts that round, integers, flags, complex numbers, and arithmetic that rounds once."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.analyzers.planted.captured import SOFTMAX, XY, XYZ, Case, Model, X, case

Tensor = torch.Tensor


def half(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127.0
    return scale, (x / scale).round().clamp(-128, 127).to(torch.int8)


def quantised_to_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 448.0
    return scale, (x / scale).to(torch.float8_e4m3fn)


def masked_mean(x: Tensor, keep: Tensor) -> Tensor:
    return torch.where(keep, x, 0.0).sum(-1) / keep.sum(-1)


def norm_of_half(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def whole(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(-5, 6, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


TYPES: tuple[Case, ...] = (
    case("a cast that rounds on the way", lambda x: half(x).float().softmax(-1), X,
         f"cast cast {SOFTMAX}"),
    case("a cast through integers", lambda x: x.to(torch.int32).float().softmax(-1), X,
         f"cast cast {SOFTMAX}"),
    case("a norm in halves around floats", norm_of_half,
         lambda: (half(torch.randn(16, 32)), half(torch.rand(32))),
         "cast mul mean add rsqrt mul cast mul"),
    case("a softmax of halves", lambda x: x.softmax(-1), lambda: (half(torch.randn(16, 32)),),
         f"cast {SOFTMAX} cast"),
    case("double precision", lambda x: x.double().softmax(-1), X,
         outside={"amax": "float64"}),
    case("a cast to double stays out", lambda x: x.softmax(-1).double(), X, SOFTMAX,
         outside={"cast": "float64"}),
    case("sums of integers", lambda x: x.sum(-1, keepdim=True) * x, lambda: (whole(16, 32),)),
    case("integers beside a softmax", lambda x, i: x.softmax(-1) * i,
         lambda: (torch.randn(16, 32), whole(16, 32)), f"{SOFTMAX} mul"),
    case("integers made into rows", lambda i: (i + 2).float().softmax(-1),
         lambda: (whole(16, 32, dtype=torch.int32),), f"add cast {SOFTMAX}"),
    case("bits of integers are no row operation", lambda x, i: x.softmax(-1) * (i & 3),
         lambda: (torch.randn(16, 32), whole(16, 32)), f"{SOFTMAX} mul",
         outside={"bitwise_and": "not a row operation"}),
    case("flags counted", masked_mean, lambda: (torch.randn(16, 32), torch.randn(16, 32) > 0),
         "where sum cast sum cast div"),
    case("any of a row", lambda x: (x > 1).any(-1), X, "gt cast abs amax ne"),
    case("flags chosen by", lambda x, y: torch.where(x > y, x, y).softmax(-1), XY,
         f"gt where {SOFTMAX}"),
    case("complex numbers", lambda x: x * x.sum(-1, keepdim=True),
         lambda: (torch.randn(16, 32, dtype=torch.complex64),)),
    case("the real part of complex numbers", lambda x: torch.view_as_real(x).sum(-1).softmax(-1),
         lambda: (torch.randn(16, 32, dtype=torch.complex64),), f"{SOFTMAX}",
         outside={"sum#1": ""}),
    case("quantised rows", quantised, X, "abs amax div div round maximum minimum cast"),
    case("rows quantised to fp8", quantised_to_fp8, X, "abs amax div div cast"),
    case("multiplied and added at once", lambda x, y, z: torch.addcmul(x, y, z, value=0.5)
         .softmax(-1), XYZ, f"mul fma {SOFTMAX}"),
    case("divided and added at once", lambda x, y, z: torch.addcdiv(x, y, z).softmax(-1), XYZ,
         f"div add {SOFTMAX}"),
    case("interpolated", lambda x, y: torch.lerp(x, y, 0.3).softmax(-1), XY, f"sub fma {SOFTMAX}"),
    case("a power of a row", lambda x: x.pow(3).mean(-1, keepdim=True) * x.pow(1), X,
         "mul mul mean mul"),
    case("a function that the table lacks", lambda x: torch.erfc(x).softmax(-1), X, SOFTMAX,
         outside={"erfc": "not a row operation"}),
    case("activations in front of a norm",
         lambda g, u: functional.rms_norm(functional.silu(g) * u, (32,)), XY,
         "neg exp add div mul mul mean add rsqrt mul"),
    case("a softmax gradient rounds once", Model(lambda w, x: (x * w).softmax(-1), (32,)), X,
         "mul sum neg fma mul sum", phase="backward"),
    case("a log-softmax gradient", Model(lambda w, x: (x * w).log_softmax(-1), (32,)), X,
         "sum exp mul sub mul sum", phase="backward"),
)  # fmt: skip
