"""The frozen corpus: what the page of scores says, and a handful of its cases judged anew."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "sample_traces" / "overfusion"
BENCHMARKS = str(ROOT / "benchmarks")
# Of the development half: one of each way to lose, and look-alikes.
CASES = (
    "norm_gate-8192-8192-fp32-num_warps1",
    "product_branches-4096-4096-512-bf16-branches1",
    "product_stages-32768-4096-128-bf16-1-64-64-64-4-num_stages4",
    "compiled_windows-16384-4096-bf16-1-taps5",
    "transpose_add-8192-8192-bf16-4096-HIGH1",
    "blend_offset-67108864-fp16-offset1",
    "grad_atomic-65536-256-fp32-rows_each1",
    "add_norm_wide-65536-1024-fp16-wide2",
    "two_chains-6-256-programs66",
    "compiled_windows-16384-4096-bf16-1-taps2",
    "grad_sums-16384-4096-bf16-programs264",
    "library-8192-4096-bf16-callqkv",
)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The corpus with the traces of `CASES` only: all of them take half a minute to read."""
    folder = tmp_path_factory.mktemp("overfusion")
    with tarfile.open(ARCHIVE / "overfusion.tgz") as packed:
        for item in packed:
            place = Path(item.name)
            wanted = place.parent.name not in ("traces", "code", "cases")
            if wanted or place.name.split(".")[0] in CASES:
                content = packed.extractfile(item)
                assert content is not None
                (folder / place).parent.mkdir(parents=True, exist_ok=True)
                (folder / place).write_bytes(content.read())
    sys.path.insert(0, BENCHMARKS)
    try:
        from overfusion_corpus import frozen

        yield frozen.read(folder)
    finally:
        sys.path.remove(BENCHMARKS)


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_judged_as_its_label_says(recording: Any, case: str) -> None:
    from overfusion_cases import facts_of, is_development

    from analyzers.overfusion.alone import judge_alone
    from analyzers.overfusion.judge import judge_pair

    label = recording.labels[case]
    assert is_development(recording.results[case].case)
    fused, members = (facts_of(recording, case, way) for way in ("fused", "members"))
    found = judge_pair(members, fused)
    assert bool(found.regressions) == (label.verdict == "regression")
    if found.regressions:
        assert found.regressions[0].cause in (label.cause, *label.also)
        assert found.bisection.unexplained <= 0.1
    # Without the pair it may be silent, but tells no other story.
    for alone in (judge_alone(fused), judge_alone(replace(fused, codes=()))):
        raised = [verdict for verdict in alone if verdict.outcome == "regression"]
        assert not raised or label.verdict == "regression"
        assert {v.cause for v in raised} <= {label.cause, *label.also, None}


def test_the_scores_keep_to_the_bars() -> None:
    """With a pair on both halves; without, what is raised must be right at least."""
    page = json.loads((ROOT / "benchmarks" / "overfusion.json").read_text())
    for half, figures in page["tiers"]["pair"].items():
        for name, bar in page["bars"].items():
            assert figures[name] >= bar, (half, name)
    for tier in ("binary", "trace"):
        for half, figures in page["tiers"][tier].items():
            assert figures["cause_of_told"] >= page["bars"]["cause"], (tier, half)
            assert figures["precision"] >= page["bars"]["precision"], (tier, half)
            assert sum(page["silent"][tier][half].values()) == figures["missed"]
