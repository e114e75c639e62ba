"""Child of `test_overfusion_cures`: small cases launched otherwise, in Triton's interpreter.

Prints {family: {change of the launch: largest error}}.
"""

from __future__ import annotations

import json
import sys

import torch
from overfusion_corpus import FAMILIES
from overfusion_corpus.cures import Relaunching, noted

from advisor.pipeline.launch_cures import relaunches

CPU = torch.device("cpu")
# Constants of a launch do not matter to the interpreter: warps are left out.
TILES = ("mix_tile", "transpose_add", "blend_tile", "add_norm_tile", "distance")


def errors(name: str) -> dict[str, float]:
    """What every change of tiles does to the results of a small case."""
    family = next(one for one in FAMILIES if one.name == name)
    case = family.cases()[0]
    small = type(case)(**{**{f: getattr(case, f) for f in case.__struct_fields__},
                          "sizes": dict(family.small)})  # fmt: skip
    # First: ops are registered by name, and are those of the case that was built last.
    notes = noted(small)
    scope = Relaunching(CPU)
    pair = family.build(scope, family.small)
    wanted = [t.float().clone() for t in pair.fused()]
    found = {}
    for note in notes:
        assert case.cause is not None
        for one in relaunches(note.request, case.cause, note.known):
            if not one.tiles:
                continue
            scope.override = {one.request.kernel: one}
            got = [t.float() for t in pair.fused()]
            found[one.words] = max(
                float((mine - other).abs().max()) for mine, other in zip(got, wanted, strict=True)
            )
            for tensor in got:
                tensor.zero_()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: errors(name) for name in TILES}))
