"""The traces that ship: what the manifest promises, and three checks of each.

1. the expected figures, exactly; 2. the same result whatever the file is called and however it is
packed; 3. what is exported, read back and exported again is the same. A trace has no export; the
figures made from it have (report records), so these make the round trip.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from advisor.model.base import decode, encode
from advisor.model.report import KernelRow, Metric
from advisor.model.trace import Trace
from analyzers.metrics import kernel_rows, trace_metrics
from collectors import read_trace
from collectors.ranks import read_ranks

FOLDER = Path(__file__).parents[1] / "sample_traces"
MANIFEST: dict[str, Any] = json.loads((FOLDER / "MANIFEST.json").read_text())
SAMPLES = {row["file"]: row for row in MANIFEST["traces"]}
MOST_BYTES = 1_500_000


@functools.lru_cache(maxsize=2)
def read(name: str) -> Trace:
    return read_trace(FOLDER / name)


def test_manifest_and_folder_agree_and_stay_small() -> None:
    files = {path.name for path in FOLDER.iterdir() if path.is_file()}
    assert files == {*SAMPLES, "MANIFEST.json", "README.md"}
    assert sum((FOLDER / name).stat().st_size for name in files) < MOST_BYTES
    readme = (FOLDER / "README.md").read_text()
    for name, row in SAMPLES.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == row["sha256"]
        assert row["workload"]
        assert row["shows"]
        assert name in readme
    assert {"gpu", "driver", "cuda", "pytorch", "triton"} <= MANIFEST["versions"].keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_expected_figures(name: str) -> None:
    trace = read(name)
    metrics = {key: metric.value for key, metric in trace_metrics(trace).items()}
    launching = trace.launches[trace.launches["kind"].isin(["kernel", "graph"])]
    found = {
        "distinct_kernels": trace.kernels["name"].nunique(),
        "streams": trace.kernels["stream"].nunique(),
        "aten_ops": int(trace.ops["name"].astype(str).str.startswith("aten::").sum()),
        "max_registers_per_thread": int(trace.kernels["registers_per_thread"].max()),
        "launch_calls": dict(launching["name"].astype(str).value_counts()),
    }
    expected = SAMPLES[name]["expected"]
    assert {key: metrics.get(key, found.get(key)) for key in expected} == expected
    assert not trace.warnings
    assert trace.info.complete


@pytest.mark.parametrize("name", SAMPLES)
def test_same_result_without_its_file_name(name: str, tmp_path: Path) -> None:
    nameless = tmp_path / "x"
    nameless.write_bytes(gzip.decompress((FOLDER / name).read_bytes()))
    first, second = read(name), read_trace(nameless)
    assert trace_metrics(first) == trace_metrics(second)
    for table in ("kernels", "ops", "launches", "copies", "comms", "syncs", "ranges", "devices"):
        assert first.table(table).equals(second.table(table))


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_exported_comes_back_equal(name: str) -> None:
    trace = read(name)
    for metric in trace_metrics(trace).values():
        once = encode(metric)
        assert encode(decode(once, Metric)) == once
    for row in kernel_rows(trace, trace.steps()):
        once = encode(row)
        assert encode(decode(once, KernelRow)) == once


def test_the_two_ranks_of_one_job() -> None:
    names = [name for name in SAMPLES if name.startswith("ddp_")]
    traces = read_ranks([FOLDER / name for name in reversed(names)])
    assert [trace.info.rank for trace in traces] == [0, 1]
    assert [trace.info.world_size for trace in traces] == [2, 2]
