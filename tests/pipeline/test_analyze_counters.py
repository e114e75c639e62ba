"""`analyze --ncu`: counters reach the report with their source, or the reason why they do not."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner

from advisor.cli.analyze import analyze as command
from advisor.model.base import load
from advisor.model.report import Report
from collectors import read_trace

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "bert.eager.json.gz"
REGISTERS = "launch__registers_per_thread"
METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__maximum_warps_per_active_cycle_pct",
)


def counters_of(trace: Path, path: Path, *, leave_out: str = "") -> Path:
    """A counter file with one row for each kernel of the first step: 1 kB read, 2 kB written."""
    kernels = read_trace(trace).kernels
    first = kernels.iloc[: len(kernels) // 2]
    with path.open("w", newline="") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL)
        rows.writerow(["ID", "Kernel Name", "Grid Size", "Block Size", *METRICS, REGISTERS])
        rows.writerow(["", "", "", "", "Kbyte", "byte", "%", "register/thread"])
        for number, kernel in enumerate(first.itertuples()):
            if leave_out and leave_out in str(kernel.name):
                continue
            grid = f"({kernel.grid_x}, {kernel.grid_y}, {kernel.grid_z})"
            block = f"({kernel.block_x}, {kernel.block_y}, {kernel.block_z})"
            figures = ["1.000", "2,000", "50", kernel.registers_per_thread]
            rows.writerow([number, kernel.name, grid, block, *figures])
    return path


def run(*arguments: str | Path) -> Report:
    output = Path(arguments[-1])
    result = CliRunner().invoke(command, [str(item) for item in ("-o", output, *arguments[:-1])])
    assert result.exit_code == 0, result.output
    return load(output, Report)


def test_counters_reach_metrics_kernels_and_sources(tmp_path: Path) -> None:
    ncu = counters_of(SAMPLE, tmp_path / "ncu.csv")
    report = run(SAMPLE, "--ncu", ncu, tmp_path / "report.json")
    kernels = report.metrics["kernels_per_step"].value
    assert kernels is not None
    assert report.metrics["dram_bytes"].value == 3_000 * kernels
    assert report.metrics["dram_bytes"].provenance == "measured"
    assert report.metrics["occupancy_theoretical"].value == pytest.approx(0.5)
    assert [source.kind for source in report.sources] == ["kineto trace", "ncu counters"]
    assert {row.dram_bytes for row in report.kernels} == {
        round(3_000 * row.count) for row in report.kernels
    }
    assert not [w for w in report.warnings if w.code.startswith("counters")]


def test_what_has_no_counters_is_counted(tmp_path: Path) -> None:
    ncu = counters_of(SAMPLE, tmp_path / "ncu.csv", leave_out="nvjet")
    report = run(SAMPLE, "--ncu", ncu, tmp_path / "report.json")
    (missing,) = [w for w in report.warnings if w.code == "counters-missing"]
    gemms = [row for row in report.kernels if "nvjet" in row.name]
    assert missing.count == round(2 * sum(row.count for row in gemms))
    assert all(row.dram_bytes is None for row in gemms)
    assert report.metrics["dram_bytes"].value is None
    assert "occupancy_theoretical" not in report.metrics
