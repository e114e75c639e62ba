"""A counter file by itself: kernels with counters, and nothing said of what was not recorded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from advisor.pipeline.analyze import analyze
from collectors import read_trace

CSV = """==PROF== Connected
"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum","dram__bytes_write.sum"
"","","","","ns","byte"
"0","rows","(64, 1, 1)","(8192, 1, 1)","1772352","1250221000"
"1","rows","(512, 1, 1)","(8192, 1, 1)","274016","47813000"
"""
SHARED = Path(os.environ.get("FUSION_ADVISOR_SHARED", Path(__file__).parents[3] / "shared"))
PROBE = SHARED / "traces" / "h200" / "ncu_probe_raw.csv.gz"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "probe.csv"
    found.write_text(CSV)
    return found


def test_kernels_follow_each_other_with_their_counters(path: Path) -> None:
    kernels = read_trace(path).kernels
    assert kernels["dram_write_bytes"].tolist() == [1_250_221_000, 47_813_000]
    assert kernels["start_ns"].tolist() == [0, 1_772_352]
    assert kernels["block_x"].tolist() == [64, 512]
    assert kernels["registers_per_thread"].isna().all()


def test_a_spill_is_named_with_its_cure_and_no_gap_is_made_up(path: Path) -> None:
    report = analyze([path], gpu="h200")
    (finding,) = report.findings
    assert (finding.rule, finding.kind) == ("over-fusion", "regression")
    assert finding.action.startswith("launch it with 16 warps")
    assert not [name for name in report.metrics if "idle" in name or "starved" in name]
    assert "counters-only" in {warning.code for warning in report.warnings}


@pytest.mark.skipif(not PROBE.exists(), reason=f"no {PROBE}")
def test_the_recorded_probe_has_one_regression() -> None:
    found = [f for f in analyze([PROBE], gpu="h200").findings if f.kind == "regression"]
    assert [f.evidence[0].values["cause"] for f in found] == ["register_spill"]
    # 64 MiB of results, of which the cache still held a part when the fastest launch ended.
    told = [e.text for e in found[0].evidence if "written" in e.text]
    assert told == ["1.16 GiB written where the launch that writes least writes 45.6 MiB"]
