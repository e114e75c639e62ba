"""The fixed rows of `kernels.py`: patterns of memory-bound ops as people write them, bf16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as nnf

FLOAT8_LARGEST = 448.0
ROWS = ((16384, 4096), (4096, 8192), (65536, 1024), (2048, 32000))


@dataclass(frozen=True)
class Pattern:
    """A function with what it is called with: one tensor of the row's shape, then `others`.

    `others` make further tensors from the shape; "x" is another of that shape, "w" a vector. What
    quantises, or has the loss's own backward in it, is not `differentiable` as a row.
    """

    function: Callable[..., Any]
    others: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ROWS
    differentiable: bool = True

    def inputs(self, shape: tuple[int, ...], device: torch.device) -> list[torch.Tensor]:
        """Random arguments for one shape."""
        full, width = list(shape), shape[-1]
        made = {
            "x": lambda: torch.randn(full, device=device).bfloat16(),
            "w": lambda: torch.randn(width, device=device).bfloat16(),
            "mask": lambda: torch.randn(1, width, device=device).bfloat16(),
            "labels": lambda: torch.randint(0, width, full[:-1], device=device),
            "channels": lambda: torch.randn(shape[1], device=device).bfloat16(),
            "angles": lambda: torch.randn(full[-2:], device=device).bfloat16(),
        }
        return [made[kind]() for kind in ("x", *self.others)]


def _hf_rmsnorm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return w * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _add_rmsnorm(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
    h = x + r
    return nnf.rms_norm(h, (h.shape[-1],), w, 1e-6), h


def _add_layernorm_gelu(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    return nnf.gelu(nnf.layer_norm(x + r, (x.shape[-1],), w, b))


def _long_chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.tanh(x * 1.5 + y) * torch.sigmoid(x)
    return x


def _rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _groupnorm_silu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return nnf.silu(nnf.group_norm(x, 32, w, b))


def _dropout_add_layernorm(
    x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    return nnf.layer_norm(r + nnf.dropout(x, 0.1), (x.shape[-1],), w, b)


def _dropout_softmax(x: torch.Tensor) -> torch.Tensor:
    return nnf.dropout(torch.softmax(x.float() * 0.125, -1).to(x.dtype), 0.1)


def _quantised(x: torch.Tensor, peak: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x in eight bits by the largest magnitude of a row, of a block or of all, and the scale."""
    scale = peak.float().clamp(min=1e-12) / FLOAT8_LARGEST
    stored = (x.float() / scale).clamp(-FLOAT8_LARGEST, FLOAT8_LARGEST).to(torch.float8_e4m3fn)
    return stored, scale


def _fp8_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _quantised(x, x.abs().amax(-1, keepdim=True))


def _fp8_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _fp8_rows(x.unflatten(-1, (-1, 128)))


def _fp8_tensor(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _quantised(x, x.abs().max())


def _fp8_transposed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same and its transpose, which the product for a weight's gradient reads."""
    stored, scale = _fp8_tensor(x)
    return stored, scale, stored.t().contiguous()


# Those with a dropout are bound by arithmetic, by count: for every element ten rounds of Philox,
# some 60 integer instructions, beside the six bytes that a residual and its sum take.
PATTERNS: dict[str, Pattern] = {
    "softmax": Pattern(lambda x: torch.softmax(x, -1)),
    "scale_mask_softmax": Pattern(
        lambda x, m: torch.softmax(x.float() * 0.125 + m, -1).to(x.dtype), ("mask",)
    ),
    "log_softmax": Pattern(lambda x: torch.log_softmax(x.float(), -1)),
    "cross_entropy_fwd": Pattern(nnf.cross_entropy, ("labels",)),
    "layernorm": Pattern(lambda x, w, b: nnf.layer_norm(x, (x.shape[-1],), w, b), ("w", "w")),
    "add_layernorm_gelu": Pattern(_add_layernorm_gelu, ("x", "w", "w")),
    "rmsnorm": Pattern(lambda x, w: nnf.rms_norm(x, (x.shape[-1],), w, 1e-6), ("w",)),
    "hf_rmsnorm": Pattern(_hf_rmsnorm, ("w",)),
    "add_rmsnorm": Pattern(_add_rmsnorm, ("x", "w")),
    "softmax_few_rows": Pattern(
        lambda x: torch.softmax(x, -1), shapes=((8, 1 << 20), (64, 128_000))
    ),
    "softmax_short_rows": Pattern(
        lambda x: torch.softmax(x, -1), shapes=((1 << 20, 64), (1 << 22, 16))
    ),
    "groupnorm_silu": Pattern(_groupnorm_silu, ("channels", "channels"), ((32, 320, 64, 64),)),
    "dropout_add": Pattern(lambda x, r: r + nnf.dropout(x, 0.1), ("x",)),
    "dropout_add_layernorm": Pattern(_dropout_add_layernorm, ("x", "w", "w")),
    "softmax_dropout": Pattern(_dropout_softmax),
    "fp8_quantise_rows": Pattern(_fp8_rows, differentiable=False),
    "fp8_quantise_blocks": Pattern(_fp8_blocks, differentiable=False),
    "fp8_quantise_tensor": Pattern(_fp8_tensor, differentiable=False),
    "fp8_quantise_transposed": Pattern(
        _fp8_transposed, shapes=((16_384, 4096), (4096, 8192)), differentiable=False
    ),
    "silu_mul": Pattern(lambda x, y: nnf.silu(x) * y, ("x",)),
    "bias_gelu": Pattern(lambda x, b: nnf.gelu(x + b), ("w",)),
    "long_chain12": Pattern(_long_chain, ("x",)),
    "rope": Pattern(_rope, ("angles", "angles"), ((8, 32, 2048, 128),)),
}
