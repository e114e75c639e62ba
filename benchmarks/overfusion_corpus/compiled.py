"""Families of Inductor's own kernels: one setting of the compiler changed, or its defaults.

Members are the same function eager, or compiled so that the producer is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from .model import DTYPES, Family, Pair, Run, Scope, Setting, size_of

STORED = {"realize_opcount_threshold": 0, "realize_reads_threshold": 0}
INLINED = {"realize_opcount_threshold": 1_000_000, "realize_reads_threshold": 1_000_000}


def _compiled(
    function: Callable[..., Any], given: list[torch.Tensor], options: dict[str, Any]
) -> Run:
    """The function compiled with these settings; where there is no GPU it runs as it is."""
    if given[0].is_cuda:
        function = torch.compile(function, dynamic=False, options=options)
    return _eager(function, given)


def _eager(function: Callable[..., Any], given: list[torch.Tensor]) -> Run:
    if given[0].is_meta:
        return tuple

    def run() -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            found = function(*given)
        return found if isinstance(found, tuple) else (found,)

    return run


def _gates(x: torch.Tensor, cost: int) -> torch.Tensor:
    """A pointwise function of `cost` gates.

    Each reads the one before once: inlined, a second reading would double the code every time.
    """
    for _ in range(cost):
        x = 3 * torch.sigmoid(x) - 1.2
    return x


def windows(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Sum over a window of an activation that lowering inlines into every one of its readers."""
    taps, cost = sizes["taps"], sizes["cost"]
    x = scope.random(sizes["rows"], sizes["columns"], dtype=DTYPES[sizes["dtype"]])
    width = sizes["columns"] - taps + 1

    def window(x: torch.Tensor) -> torch.Tensor:
        p = _gates(x, cost)
        total = p[:, :width]
        for i in range(1, taps):
            total = total + p[:, i : i + width]
        return total

    fused, members = (_compiled(window, [x], options) for options in (INLINED, STORED))
    return Pair(fused, members, 2 * size_of(x))


def consumers(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """An activation with column sums and largest values of rows, computed anew for each."""
    x = scope.random(sizes["rows"], sizes["columns"], dtype=DTYPES[sizes["dtype"]])

    def both(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = _gates(x, sizes["cost"])
        return p.sum(0, dtype=torch.float32), p.amax(1)

    fused, members = (_compiled(both, [x], options) for options in (INLINED, STORED))
    return Pair(fused, members, size_of(x))


def tiles(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """A transposed operand, with and without two-dimensional tiles."""
    dtype = DTYPES[sizes["dtype"]]
    x = scope.random(sizes["columns"], sizes["rows"], dtype=dtype)
    z = scope.random(sizes["rows"], sizes["columns"], dtype=dtype)

    def add(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return F.silu(x).t() + z

    def plain(y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return y.t() + z

    fused = _compiled(add, [x, z], {"triton.max_tiles": sizes["max_tiles"]})
    if scope.dry:
        return Pair(fused, fused, size_of(x, z, z))
    # The activation first, then the transposed read in two-dimensional tiles.
    active = torch.empty_like(x)
    second = _compiled(plain, [active, z], {"triton.max_tiles": 2})

    def members() -> tuple[torch.Tensor, ...]:
        torch.ops.aten.silu.out(x, out=active)
        return second()

    return Pair(fused, members, size_of(x, z, z))


def masked_softmax(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Scale, mask and softmax with rows in registers, or walked along more than once."""
    dtype = DTYPES[sizes["dtype"]]
    x = scope.random(sizes["rows"], sizes["columns"], dtype=dtype)
    mask = scope.random(sizes["columns"], dtype=dtype)

    def soft(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 0.125 + mask, -1)

    def apart(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.add(mask, x, alpha=0.125), -1)

    fused = _compiled(soft, [x, mask], {"triton.persistent_reductions": sizes["persistent"]})
    return Pair(fused, _eager(apart, [x, mask]), 2 * size_of(x))


def total(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """A squared distance summed to one value, with and without splitting the sum."""
    dtype = DTYPES[sizes["dtype"]]
    x, y = scope.random(sizes["size"], dtype=dtype), scope.random(sizes["size"], dtype=dtype)

    def distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x - y).square().sum(dtype=torch.float32)

    fused = _compiled(distance, [x, y], {"split_reductions": sizes["split"]})
    return Pair(fused, _eager(distance, [x, y]), size_of(x, y))


def column_total(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """An activation's gradient summed over rows, with and without splitting the sum."""
    dtype = DTYPES[sizes["dtype"]]
    dy, x = (scope.random(sizes["rows"], sizes["columns"], dtype=dtype) for _ in range(2))

    def sums(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        s = torch.sigmoid(x)
        return (dy * s * (1 + x * (1 - s))).sum(0, dtype=torch.float32)

    def apart(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.silu_backward(dy, x).sum(0, dtype=torch.float32)

    fused = _compiled(sums, [dy, x], {"split_reductions": sizes["split"]})
    return Pair(fused, _eager(apart, [dy, x]), size_of(dy, x))


def combined(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """Independent updates of tensors of unequal size in one combined kernel."""
    count, skew = sizes["tensors"], sizes["skew"]
    unit = sizes["size"] // (skew + count - 1) // 16 * 16
    given = [scope.random(unit * (skew if i == 0 else 1)) for i in range(count)]

    def updates(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x * 0.9 + torch.tanh(x) for x in given)

    fused, members = (_compiled(updates, given, {"combo_kernels": on}) for on in (True, False))
    return Pair(fused, members, 2 * size_of(*given))


def unaligned(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """A short chain compiled without what is known of alignment."""
    dtype = DTYPES[sizes["dtype"]]
    given = [scope.random(sizes["rows"], sizes["columns"], dtype=dtype) for _ in range(2)]

    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.silu(x) + y

    fused = _compiled(chain, given, {"triton.divisible_by_16": sizes["aligned"]})
    return Pair(fused, _eager(chain, given), size_of(*given, given[0]))


# --- the compiler's defaults ----------------------------------------------------------------------


def defaults(scope: Scope, sizes: Mapping[str, Any]) -> Pair:
    """A pattern compiled with the defaults, beside eager."""
    function, weights = PATTERNS[sizes["pattern"]]
    dtype, rows, columns = DTYPES[sizes["dtype"]], sizes["rows"], sizes["columns"]
    given = [scope.random(rows, columns, dtype=dtype) for _ in range(2)]
    given += [scope.random(columns, dtype=dtype) for _ in range(weights)]
    return Pair(_compiled(function, given, {}), _eager(function, given), size_of(*given, given[0]))


def _residual_norm(x: Any, y: Any, w: Any) -> Any:
    total = x + y
    return total, F.rms_norm(total, (x.shape[-1],), w, 1e-6)


def _norm_gelu(x: Any, y: Any, w: Any, b: Any) -> Any:
    return F.gelu(F.layer_norm(x + y, (x.shape[-1],), w, b))


def _rotary(x: Any, y: Any) -> Any:
    one, two = x.chunk(2, -1)
    return x * torch.cos(y) + torch.cat((-two, one), -1) * torch.sin(y)


def _norm_backward(dy: Any, x: Any, w: Any) -> Any:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    n, g = wide * scale, dy.float() * w
    dx = scale * (g - n * (g * n).mean(-1, keepdim=True))
    return dx.to(x.dtype), (dy.float() * n).sum(0)


def _quantise(x: Any, y: Any) -> Any:
    top = x.abs().amax()
    return (x / top * 127).round().clamp(-127, 127).to(torch.int8), top


def _entropy(x: Any, y: Any) -> Any:
    return -(torch.log_softmax(x, -1) * torch.softmax(y, -1)).sum(-1).mean()


def _running(x: Any, y: Any) -> Any:
    return torch.cumsum(x.float() * torch.sigmoid(y.float()), -1)


PATTERNS: dict[str, tuple[Callable[..., Any], int]] = {
    "residual_norm": (_residual_norm, 1),
    "norm_gelu": (_norm_gelu, 2),
    "swiglu": (lambda x, y: F.silu(x) * y, 0),
    "bias_gelu": (lambda x, y, b: F.gelu(x + b) + y, 1),
    "rotary": (_rotary, 0),
    "norm_backward": (_norm_backward, 1),
    "quantise": (_quantise, 0),
    "entropy": (_entropy, 0),
    "softmax": (lambda x, y: torch.softmax(x, -1), 0),
    "running_sum": (_running, 0),
}


def _at(rows: int, columns: int, dtype: str) -> dict[str, Setting]:
    return {"rows": rows, "columns": columns, "dtype": dtype}


_SMALL = {"rows": 6, "columns": 64, "dtype": "fp32"}
FAMILIES = (
    Family(
        name="compiled_windows", engine="inductor", cause="recompute", knob="taps", neutral=1,
        build=windows,
        sweep=(
            ({**_at(16_384, 4_096, "bf16"), "cost": 1}, (9, 2, 5, 1)),
            ({**_at(16_384, 4_096, "bf16"), "cost": 4}, (5, 2, 1)),
        ),
        why="a producer with many readers, inlined into all of them",
        small={**_SMALL, "cost": 1, "taps": 3},
    ),
    Family(
        name="compiled_consumers", engine="inductor", cause="recompute", knob="cost", neutral=1,
        build=consumers,
        sweep=((_at(16_384, 4_096, "bf16"), (16, 4, 8, 1)),),
        why="a producer of two consumers that share no kernel, computed in each",
        small={**_SMALL, "cost": 1},
    ),
    Family(
        name="compiled_tiles", engine="inductor", cause="uncoalesced_access", knob="max_tiles",
        neutral=2, build=tiles,
        sweep=((_at(8_192, 8_192, "bf16"), (1, 2)), (_at(4_096, 8_192, "fp32"), (1, 2))),
        why="a transposed read in a kernel without two-dimensional tiles",
        small={**_SMALL, "max_tiles": 1},
    ),
    Family(
        name="compiled_softmax", engine="inductor", cause="reread_inputs", knob="persistent",
        neutral=True, build=masked_softmax,
        sweep=tuple(
            (at, (False, True))
            for at in (
                _at(65_536, 1_024, "bf16"), _at(16_384, 4_096, "bf16"), _at(8_192, 16_384, "fp16"),
            )
        ),
        why="rows walked along several times in place of being kept",
        small={**_SMALL, "persistent": True},
    ),
    Family(
        name="compiled_total", engine="inductor", cause="too_few_programs", knob="split",
        neutral=True, build=total,
        sweep=(({"size": 1 << 22, "dtype": "fp32"}, (False, True)),
               ({"size": 1 << 24, "dtype": "bf16"}, (False, True))),
        why="a sum to one value that is not split: one program",
        small={"size": 500, "dtype": "fp32", "split": True},
    ),
    Family(
        name="compiled_columns", engine="inductor", cause="too_few_programs", knob="split",
        neutral=True, build=column_total,
        sweep=(
            (_at(65_536, 256, "bf16"), (False, True)),
            (_at(16_384, 4_096, "bf16"), (False, True)),
        ),
        why="column sums that are not split: as many programs as columns allow",
        small={**_SMALL, "split": True},
    ),
    Family(
        name="compiled_combined", engine="inductor", cause="unequal_horizontal", knob="skew",
        neutral=1, build=combined,
        sweep=(
            ({"tensors": 8, "size": 1 << 24}, (256, 1)),
        ),
        why="one combined kernel for tensors of unequal size",
        small={"tensors": 2, "size": 600, "skew": 2},
    ),
    Family(
        name="compiled_unaligned", engine="inductor", cause="lost_vectorisation", knob="aligned",
        neutral=True, build=unaligned,
        sweep=(
            (_at(16_384, 4_096, "bf16"), (False, True)),
        ),
        why="sizes not known to divide by 16: narrow accesses",
        small={**_SMALL, "aligned": True},
    ),
    Family(
        name="compiled_defaults", engine="inductor", cause=None, knob="pattern", neutral=None,
        build=defaults,
        sweep=(
            (_at(8_192, 4_096, "bf16"),
             ("residual_norm", "norm_gelu", "swiglu", "bias_gelu", "rotary", "norm_backward",
              "quantise", "running_sum")),
            (_at(32, 131_072, "fp16"), ("softmax", "entropy")),
            (_at(16, 2_048, "bf16"), ("residual_norm", "swiglu")),
            (_at(2_048, 16_384, "fp32"), ("norm_gelu", "softmax")),
        ),
        why="what the compiler fuses by itself",
        small={**_SMALL, "pattern": "residual_norm"},
    ),
)  # fmt: skip
