"""Child of `test_overfusion_corpus`: every family small, in Triton's interpreter, against PyTorch.

Prints {family: largest error of fused against members, and of fused against the reference}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from overfusion_corpus import FAMILIES
from overfusion_corpus.compiled import PATTERNS
from overfusion_corpus.library import CALLS
from overfusion_corpus.model import DTYPES, Scope

Sizes = dict[str, Any]
CPU = torch.device("cpu")


def norm_gate(scope: Scope, s: Sizes) -> list[torch.Tensor]:
    x, residual, gate = (scope.random(s["rows"], s["columns"]) for _ in range(3))
    n = torch.nn.functional.rms_norm(x + residual, (s["columns"],), eps=1e-6)
    n = n * scope.random(s["columns"])
    return [n * torch.softmax(n * gate, -1)]


def norm(scope: Scope, s: Sizes) -> list[torch.Tensor]:
    x = scope.random(s["rows"], s["columns"])
    n = torch.nn.functional.rms_norm(x, (s["columns"],), eps=1e-6)
    return [n * scope.random(s["columns"])]


def mix(scope: Scope, s: Sizes) -> list[torch.Tensor]:
    x = scope.random(s["fields"], s["cells"])
    for _ in range(s["rounds"]):
        other = torch.roll(x, -1, 0)
        x = 0.9 * x + 0.1 * torch.exp(-other * other)
    return [x]


def solve(scope: Scope, s: Sizes) -> list[torch.Tensor]:
    x = scope.random(s["fields"], s["cells"])
    p = x.mean(0)
    found = p
    for _ in range(s["steps"]):
        found = 1 / (1 + torch.exp2(0.7 * found - p))
    return [x * found]


def blur(scope: Scope, s: Sizes) -> list[torch.Tensor]:
    f = torch.nn.functional.silu(scope.random(s["size"])) + 0.5
    padded = torch.nn.functional.pad(f[None], (s["radius"],) * 2, mode="replicate")
    return [torch.nn.functional.avg_pool1d(padded, 2 * s["radius"] + 1, 1)[0]]


def blend(scope: Scope, s: Sizes) -> list[torch.Tensor]:
    first = s.get("offset", 0)
    a, b = (scope.random(s["size"] + 16)[first : first + s["size"]] for _ in range(2))
    return [(255 - (0.3 * a + 0.7 * b)).trunc()]


def update(scope: Scope, s: Sizes) -> list[torch.Tensor]:
    unit = s["size"] // (s["skew"] + s["tensors"] - 1) // 16 * 16
    p, m, v = (scope.random(unit * (s["skew"] + s["tensors"] - 1)) for _ in range(3))
    return [p - 0.01 * m / (v.abs().sqrt() + 1e-8)]


def chains(scope: Scope, s: Sizes) -> list[torch.Tensor]:
    values = [scope.random(s["programs"] * 1_024) for _ in range(2 * (s["links"] + 1))]
    return [_iterated(x, s["links"] * s["steps"]) for x in values[:: s["links"] + 1]]


def offload(scope: Scope, s: Sizes) -> list[torch.Tensor]:
    return [_iterated(scope.random(16, s["size"]), s["steps"])]


def _iterated(x: torch.Tensor, steps: int) -> torch.Tensor:
    for _ in range(steps):
        x = 1 / (1 + torch.exp2(0.7 * x))
    return x


REFERENCES: dict[str, Callable[[Scope, Sizes], list[torch.Tensor]]] = {
    "norm_gate": norm_gate, "norm_pieces": norm, "norm_few_rows": norm, "mix_bound": mix,
    "mix_tile": mix, "solve_cells": solve, "blur": blur, "blend_offset": blend,
    "blend_tile": blend, "update_group": update, "two_chains": chains, "offload": offload,
}  # fmt: skip


def worst(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    """The largest difference relative to the largest value of each result."""
    assert [t.shape for t in got] == [t.shape for t in want]
    return max(
        float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-6))
        for a, b in zip(got, want, strict=True)
    )


def main() -> None:
    found: dict[str, float] = {}
    for family in FAMILIES:
        several = {"library": ("call", CALLS), "compiled_defaults": ("pattern", PATTERNS)}
        knob, values = several.get(family.name, (family.knob, [family.small.get(family.knob, 2)]))
        for value in values:
            sizes = {**family.small, knob: value}
            pair = family.build(Scope(CPU), sizes)
            fused = [t.clone() for t in pair.fused()]
            name = f"{family.name} {value}"
            found[name] = worst(fused, list(pair.members()))
            if family.name in REFERENCES:
                assert DTYPES[sizes.get("dtype", "fp32")] is torch.float32
                reference = REFERENCES[family.name](Scope(CPU), sizes)
                found[f"{name} reference"] = worst(fused, reference)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    import tests.builders.quick_interpreter  # noqa: F401

    main()
