"""Child of `test_overfusion_cures`: cases cured as on a GPU, small, in Triton's interpreter.

Only the clock is not real. Prints {case: kinds of its cures that agree with the members}, and
{family: {change of the launch: largest error}} of launches with other tiles.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import overfusion_cures as script
import torch
from overfusion_corpus import family_of, frozen
from overfusion_corpus.model import Case
from overfusion_cures import Launched, Work

from advisor.pipeline.launch_cures import relaunches

CASES = ("norm_gate-4096-16384-bf16-num_warps2", "mix_tile-24-2097152-2-255-fp32-BLOCK2048",
         "offload-1048576-512-buckets1", "compiled_windows-16384-4096-bf16-1-taps9")  # fmt: skip


CPU = torch.device("cpu")
# Constants of a launch do not matter to the interpreter: warps are left out.
TILES = ("mix_tile", "transpose_add", "blend_tile", "add_norm_tile", "distance")


def clock(
    runs: Mapping[str, Callable[[], object]], rounds: int, before: object = None
) -> dict[str, list[int]]:
    """Every way run once; members take half as long as the case, cures a little longer."""
    for run in runs.values():
        run()
    times = {"fused": 2_000, "members": 1_000}
    return {name: [times.get(name, 1_100)] * rounds for name in runs}


def nothing(*_: object) -> None:
    """In place of what a GPU does."""


def small(case: Case) -> Case:
    """The case at sizes that an interpreter can do."""
    return msgspec.structs.replace(case, sizes=dict(family_of(case.family).small))


def errors(name: str) -> dict[str, float]:
    """What every change of tiles does to the results of a small case."""
    family = family_of(name)
    case = small(family.cases()[0])
    # First: ops are registered by name, and are those of the case that was built last.
    notes = script.cures.noted(case)
    scope = script.cures.Relaunching(CPU)
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


def main() -> None:
    script.gpu_recorder, script.flusher = clock, nothing
    torch.cuda.synchronize = nothing
    cured = []
    with tempfile.TemporaryDirectory() as folder:
        recording = frozen.unpack(script.MANIFEST, Path(folder))
        for name in CASES:
            case = small(recording.results[name].case)
            cause = recording.labels[name].cause
            assert cause is not None
            launches = [
                Launched(request=one.request, words=one.words, tiles=dict(one.tiles))
                for note in script.cures.noted(case)
                for one in relaunches(note.request, cause, note.known)
            ]
            work = Work(case=name, cause=cause, launches=tuple(launches))
            cured.append(script._cure(case, work, recording, 3, CPU))
    report = script.Report(gpu="none", causes="labels", cases=tuple(cured))
    text, won = script.summary(report)
    kinds = {one.case: [way.kind for way in one.ways] for one in cured}
    moved = {name: errors(name) for name in TILES}
    sys.stdout.write(json.dumps({"kinds": kinds, "text": text, "won": won, "errors": moved}))


if __name__ == "__main__":
    import tests.builders.quick_interpreter  # noqa: F401

    main()
