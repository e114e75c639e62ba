"""Benign look-alikes: the library's fused calls beside the calls that they replace.

Nothing is planted. Products at 255 registers, attention at low occupancy, tiny grids and what fits
into L2 look bad by one figure or another and are mostly faster; time says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from .model import DTYPES, Family, Pair, Scope, Setting, size_of

Make = Callable[
    [Scope, int, int, torch.dtype], tuple[Callable[..., Any], Callable[..., Any], list[Any]]
]


def call(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """The call named by `call` and its pieces, on the same inputs."""
    make = CALLS[sizes["call"]]
    fused, members, given = make(scope, sizes["rows"], sizes["columns"], DTYPES[sizes["dtype"]])
    moved = size_of(*(t for t in given if isinstance(t, torch.Tensor)))
    return Pair(lambda: _tuple(fused(*given)), lambda: _tuple(members(*given)), moved)


def _tuple(found: Any) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def _linear(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """x [rows, columns], weight [columns, columns], bias [columns]."""
    weight = scope.random(columns, columns, dtype=dtype) * columns**-0.5
    return [scope.random(rows, columns, dtype=dtype), weight, scope.random(columns, dtype=dtype)]


def _addmm(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    given = _linear(scope, rows, columns, dtype)
    return lambda x, w, b: torch.addmm(b, x, w), lambda x, w, b: torch.mm(x, w) + b, given


def _addmm_gelu(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    given = _linear(scope, rows, columns, dtype)
    return (
        lambda x, w, b: torch.ops.aten._addmm_activation(b, x, w, use_gelu=True),
        lambda x, w, b: F.gelu(torch.mm(x, w) + b, approximate="tanh"),
        given,
    )


def _qkv(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    x, *_ = _linear(scope, rows, columns, dtype)
    w = scope.random(columns, 3 * columns, dtype=dtype) * columns**-0.5
    parts = [part.contiguous() for part in w.chunk(3, 1)]
    return (
        lambda x, w, *_: torch.mm(x, w).chunk(3, 1),
        lambda x, w, *parts: tuple(torch.mm(x, part) for part in parts),
        [x, w, *parts],
    )


def _attention(causal: bool) -> Make:
    def make(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
        heads = columns // 128
        q, k, v = (scope.random(2, heads, rows, 128, dtype=dtype) for _ in range(3))

        def written(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(128)
            if causal:
                hidden = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            return torch.matmul(torch.softmax(scores, -1), v)

        return (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal),
            written,
            [q, k, v],
        )

    return make


def _rms_norm(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    x, w = scope.random(rows, columns, dtype=dtype), scope.random(columns, dtype=dtype)

    def written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

    return lambda x, w: F.rms_norm(x, (columns,), w, 1e-6), written, [x, w]


def _layer_norm(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    x, w, b = (scope.random(*s, dtype=dtype) for s in ((rows, columns), (columns,), (columns,)))

    def written(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        apart = x - x.mean(-1, keepdim=True)
        return apart * torch.rsqrt(apart.square().mean(-1, keepdim=True) + 1e-5) * w + b

    return lambda x, w, b: F.layer_norm(x, (columns,), w, b), written, [x, w, b]


def _softmax(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    x = scope.random(rows, columns, dtype=dtype)

    def written(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    return lambda x: torch.softmax(x, -1), written, [x]


def _cross_entropy(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    x = scope.random(rows, columns, dtype=dtype)
    target = scope.random(rows, dtype=torch.int64)

    def written(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (torch.logsumexp(x, -1) - x.gather(1, target[:, None])[:, 0]).mean()

    return F.cross_entropy, written, [x, target]


def _gelu(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    x = scope.random(rows, columns, dtype=dtype)
    return (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x))),
        [x],
    )


def _glu(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    x = scope.random(rows, 2 * columns, dtype=dtype)
    return F.glu, lambda x: x[:, :columns] * torch.sigmoid(x[:, columns:]), [x]


def _group_norm(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    side = math.isqrt(columns)
    x = scope.random(rows, 64, side, side, dtype=dtype)

    def written(x: torch.Tensor) -> torch.Tensor:
        y = x.reshape(rows, 8, -1)
        apart = y - y.mean(-1, keepdim=True)
        return (apart * torch.rsqrt(apart.square().mean(-1, keepdim=True) + 1e-5)).reshape(x.shape)

    return lambda x: F.group_norm(x, 8), written, [x]


def _conv_relu(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    side = math.isqrt(columns)
    x = scope.random(rows, 128, side, side, dtype=dtype)
    w, b = scope.random(128, 128, 3, 3, dtype=dtype) * 0.03, scope.random(128, dtype=dtype)
    if x.is_cuda:
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))

    def library(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if not x.is_cuda:
            return F.relu(F.conv2d(x, w, b, padding=1))
        return torch.cudnn_convolution_relu(x, w, b, (1, 1), (1, 1), (1, 1), 1)

    return (
        library,
        lambda x, w, b: F.relu(F.conv2d(x, w, None, padding=1) + b[:, None, None]),
        [x, w, b],
    )


def _adamw(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    """One step for `rows` parameters of `columns` elements: the fused kernel, or ops on lists."""
    p, g, m, v = ([scope.random(columns, dtype=dtype) for _ in range(rows)] for _ in range(4))
    v = [t.abs() for t in v]
    steps = [scope.empty().fill_(1.0) for _ in range(rows)]

    def fused(*_: torch.Tensor) -> torch.Tensor:
        torch._fused_adamw_(
            p, g, m, v, [], steps, lr=0.0, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8,
            amsgrad=False, maximize=False,
        )  # fmt: skip
        return p[0]

    def lists(*_: torch.Tensor) -> torch.Tensor:
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_mul_(v, 0.99)
        torch._foreach_addcmul_(v, g, g, 0.01)
        root = torch._foreach_sqrt(v)
        torch._foreach_add_(root, 1e-8)
        torch._foreach_addcdiv_(p, m, root, 0.0)
        return p[0]

    return fused, lists, [*p, *g, *m, *v]


def _bag(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    table = scope.random(20_000, columns, dtype=dtype)
    index = scope.random(rows, 32, dtype=torch.int64)
    return (
        lambda t, i: F.embedding_bag(i, t, mode="sum"),
        lambda t, i: F.embedding(i, t).sum(1),
        [table, index],
    )


def _addcmul(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    given = [scope.random(rows, columns, dtype=dtype) for _ in range(3)]
    return torch.addcmul, lambda x, y, z: x + y * z, given


def _baddbmm(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    given = [scope.random(16, rows, columns, dtype=dtype) for _ in range(2)]
    given.append(scope.random(16, columns, columns, dtype=dtype) * columns**-0.5)
    return torch.baddbmm, lambda c, x, w: torch.bmm(x, w) + c, given


def _shifted(scope: Scope, rows: int, columns: int, dtype: torch.dtype) -> Any:
    """logsumexp against the stable log of sums of exponentials written out."""
    x = scope.random(rows, columns, dtype=dtype)

    def written(x: torch.Tensor) -> torch.Tensor:
        top = x.amax(-1, keepdim=True)
        return torch.exp(x - top).sum(-1).log() + top[:, 0]

    return lambda x: torch.logsumexp(x, -1), written, [x]


CALLS: dict[str, Make] = {
    "addmm": _addmm, "addmm_gelu": _addmm_gelu, "qkv": _qkv, "attention": _attention(causal=False),
    "attention_causal": _attention(causal=True), "rms_norm": _rms_norm, "layer_norm": _layer_norm,
    "softmax": _softmax, "cross_entropy": _cross_entropy, "gelu": _gelu, "glu": _glu,
    "group_norm": _group_norm, "conv_relu": _conv_relu, "adamw": _adamw, "embedding_bag": _bag,
    "addcmul": _addcmul, "baddbmm": _baddbmm, "logsumexp": _shifted,
}  # fmt: skip


def _at(rows: int, columns: int, dtype: str) -> dict[str, Setting]:
    return {"rows": rows, "columns": columns, "dtype": dtype}


FAMILIES = (
    Family(
        name="library", engine="library", cause=None, knob="call", neutral=None, build=call,
        sweep=(
            (_at(8_192, 4_096, "bf16"),
             ("addmm", "addmm_gelu", "qkv", "rms_norm", "layer_norm", "softmax", "glu")),
            (_at(64, 4_096, "bf16"), ("addmm", "qkv", "rms_norm", "softmax")),
            (_at(2_048, 2_048, "bf16"), ("attention", "attention_causal", "addcmul", "baddbmm")),
            (_at(64, 131_072, "fp16"), ("softmax", "cross_entropy", "layer_norm")),
            (_at(4_096, 32_768, "bf16"), ("cross_entropy", "logsumexp")),
            (_at(32, 4_096, "fp16"), ("group_norm", "conv_relu")),
            (_at(64, 1_048_576, "fp32"), ("adamw",)),
            (_at(1_000, 4_096, "fp32"), ("adamw",)),
            (_at(16_384, 128, "fp32"), ("embedding_bag", "layer_norm")),
        ),
        why="the library's own fusion, beside its pieces",
        small={"rows": 4, "columns": 256, "dtype": "fp32", "call": "rms_norm"},
    ),
)  # fmt: skip
