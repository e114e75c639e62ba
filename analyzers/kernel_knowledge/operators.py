"""What the operator around a kernel adds to its name.

A GEMM kernel serves convolutions too, a generic loop is whatever the operator is, and a kernel of
the user's own is at least what its operator is called. A name that says more is not overruled.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from analyzers.kernel_knowledge.rows import Role


class OpRow(NamedTuple):
    """Kernels whose role from the name is in `instead_of` get `role` under a matching operator."""

    pattern: str
    instead_of: tuple[Role, ...]
    role: Role
    source: str


_ANY: tuple[Role, ...] = ("other",)
_LOOSE: tuple[Role, ...] = ("other", "pointwise", "reduction", "copy", "scan", "sort")

OP_TABLE: tuple[OpRow, ...] = (
    OpRow(
        r"conv(olution|[123]d|_transpose)|miopen_convolution|cudnn_convolution",
        ("gemm", "other", "reduction"),
        "conv",
        "convolution libraries call GEMM kernels (seen: CUTLASS under aten::cudnn_convolution)",
    ),
    OpRow(
        r"scaled_dot_product|flash_attention|efficient_attention|fmha|memory_efficient",
        ("gemm", "other", "copy"),
        "attention",
        "one attention operator, several kernels",
    ),
    OpRow(r"(layer|group|batch|rms)_norm", _LOOSE, "norm", "norms of several kernels (seen)"),
    OpRow(r"embedding", _LOOSE, "embedding", "aten::embedding_dense_backward sorts (seen)"),
    OpRow(r"aten::(_index_put|index_put|index|gather|scatter)", _LOOSE, "embedding", "seen"),
    OpRow(r"(cross_entropy|nll_loss|mse_loss|bce)", _LOOSE, "loss", "losses of several kernels"),
    OpRow(r"_fused_adamw?_|_fused_sgd_|[Oo]ptimizer\.step", _ANY, "optimizer", "fused optimizers"),
    OpRow(
        r"aten::_foreach_(norm|max)",
        ("optimizer",),
        "reduction",
        "gradient clipping, no update",
    ),
    OpRow(r"aten::(_softmax|_log_softmax|softmax)", _LOOSE, "softmax", "seen"),
    OpRow(r"aten::(addmm|mm|bmm|baddbmm|linear|matmul|_scaled_mm)$", _ANY, "gemm", "seen"),
    OpRow(r"(?i)rotary|apply_rope|\brope\b", _LOOSE, "rotary", "custom operators"),
    OpRow(r"aten::(cumsum|cumprod|logcumsumexp)", _LOOSE, "scan", "seen"),
    OpRow(r"aten::(sort|topk|argsort|unique)", _LOOSE, "sort", "seen"),
    OpRow(r"record_param_comms|c10d::|nccl:", _ANY, "communication", "seen"),
    OpRow(
        r"aten::(normal_|uniform_|bernoulli_|native_dropout|rand|multinomial)",
        _LOOSE,
        "rng",
        "seen",
    ),
)
_LONGEST = 256
_ROWS = tuple((re.compile(row.pattern), row) for row in OP_TABLE)


def refined(role: Role, op: str) -> Role:
    """The role under the operator `op`."""
    for pattern, row in _ROWS:
        if role in row.instead_of and pattern.search(op[:_LONGEST]):
            return row.role
    return role
