"""Nsight Compute's raw CSV: recorded files in exact units, damage, what is no such file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from advisor.errors import UnreadableError
from collectors.ncu import read_ncu
from tests.builders.trace import SHARED

MODEL = SHARED / "traces/h200/ncu_model_raw.csv.gz"
PROBE = SHARED / "traces/h200/ncu_probe_raw.csv.gz"
needs_files = pytest.mark.skipif(not MODEL.is_file(), reason="no recorded counter files here")

HEAD = '"ID","Kernel Name","Block Size","Grid Size","dram__bytes_read.sum","gpu__time_duration.sum"'


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@needs_files
def test_sums_of_the_model_file_are_exact() -> None:
    found = read_ncu(MODEL)
    assert len(found.kernels) == 161
    assert sum(k.dram_read_bytes or 0 for k in found.kernels) == 1_012_688_384
    assert sum(k.dram_write_bytes or 0 for k in found.kernels) == 160_178_176
    assert sum(k.duration_ns or 0 for k in found.kernels) == 1_525_696
    assert found.local_bytes == "estimated"
    assert found.warnings == ()


@needs_files
def test_a_spill_that_hurts_is_told_from_a_slow_path() -> None:
    rows = [k for k in read_ncu(PROBE).kernels if k.name == "rows"]
    assert [k.occupancy_theoretical for k in rows] == [0.125, 0.125, 0.125, 0.25, 0.5]
    assert [k.registers_per_thread for k in rows] == [255, 255, 156, 101, 56]
    assert [k.block for k in rows] == [(64 << i, 1, 1) for i in range(5)]
    assert {k.occupancy_limiter for k in rows} == {"registers"}
    spilled, *others = rows
    assert (spilled.local_store_bytes or 0) > 10**9
    assert (spilled.dram_write_bytes or 0) > 1.2e9
    assert all(k.local_store_bytes == k.local_load_bytes == 0 for k in others)
    assert spilled.compute_capability == "9.0"


def test_units_are_those_of_the_second_row(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv",
        "==PROF== Connected to process 1",
        "the program printed this",
        HEAD,
        '"","","","","Gbyte","ms"',
        '"0","f<int>(T1 *)","(1,024, 1, 1)","(8, 2, 1)","1.5","0.25"',
        '"1","g","(64, 1, 1)","(8,192, 1, 1)","n/a","1,000.5"',
        '"2","cut","(64, 1',
    )
    found = read_ncu(path)
    first, second = found.kernels
    assert (first.dram_read_bytes, first.duration_ns) == (1_500_000_000, 250_000)
    assert (first.block, first.grid) == ((1024, 1, 1), (8, 2, 1))
    assert (second.dram_read_bytes, second.duration_ns) == (None, 1_000_500_000)
    assert second.dram_write_bytes is None
    assert second.occupancy_limiter is None
    assert [w.count for w in found.warnings] == [1]


def test_a_figure_that_is_cut_is_no_smaller_one(tmp_path: Path) -> None:
    row = '"0","f","(64, 1, 1)","(8, 2, 1)","1,500","'
    for rest, kernels in (('1,000"', 1), ("1,0", 0), ("", 0)):
        path = write(tmp_path / "a.csv", HEAD, '"","","","","byte","ns"', row + rest)
        path.write_bytes(path.read_bytes()[:-1])  # the last line has no end
        found = read_ncu(path)
        assert len(found.kernels) == kernels
        assert sum(warning.count for warning in found.warnings) == 1 - kernels


def test_a_unit_that_is_not_known_leaves_the_figure_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", HEAD, ",,,,furlong,ns", "0,f,,,3,5")
    (kernel,) = read_ncu(path).kernels
    assert (kernel.dram_read_bytes, kernel.duration_ns) == (None, 5)


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        (["==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"], "administrators"),
        (["a,b", "1,2"], "no table"),
        ([HEAD, "0,f,,,3,5"], "row of units"),
        (['"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'], "details page"),
    ],
)
def test_what_is_no_raw_page_says_what_to_do(tmp_path: Path, lines: list[str], word: str) -> None:
    with pytest.raises(UnreadableError) as raised:
        read_ncu(write(tmp_path / "a.csv", *lines))
    assert word in raised.value.line()


def test_a_compressed_file_is_read_alike(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(f"{HEAD}\n,,,,byte,ns\n0,f,,,7,5\n".encode()))
    assert read_ncu(path).kernels[0].dram_read_bytes == 7
