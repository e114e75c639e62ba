"""The roofline of arithmetic: where kernels stand, under which roofs, and what is not drawn."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from advisor.model.report import Hardware, KernelRow, KernelWork
from advisor.pipeline.analyze import analyze
from advisor.store import RunStore
from dashboard import arithmetic
from dashboard.arithmetic import achieved, roofline, roofs, share
from dashboard.context import Context
from dashboard.page import run_path
from tests.builders.run import sample_run
from tests.dashboard.conftest import ROOT
from tests.dashboard.test_pages import HOSTILE, page, words

GPU = Hardware(
    name="G", dram_bandwidth_bytes_per_s=1_000_000_000_000,
    peak_flops={"float32": 10 * 10**12, "tfloat32": 50 * 10**12, "bfloat16": 100 * 10**12},
)  # fmt: skip


def row(
    flops: int, moved: int, *, name: str = "k", kind: str = "bfloat16", matrix: bool = True
) -> KernelRow:
    """A kernel of a microsecond."""
    work = KernelWork(flops=flops, bytes=moved, arithmetic=kind, matrix=matrix)
    return KernelRow(name=name, role="gemm", library="l", count=1, time_ns=1_000, work=work)


def test_a_kernel_stands_at_its_intensity_and_rate() -> None:
    (point,) = achieved([row(50_000_000, 100_000)])
    assert point.intensity == 500
    assert point.rate == 50e12
    assert share(point, GPU) == 0.5, "of the flat roof"
    (slow,) = achieved([row(5_000_000, 500_000)])
    assert share(slow, GPU) == 0.5, "of the slope"
    figure = roofline([point, slow], GPU)
    markers, roof = figure.data
    assert list(markers.x) == [500, 10]
    assert list(markers.y) == pytest.approx([50e12, 5e12])
    assert list(roof.x) == [5, 100, 1000], "it bends where memory and arithmetic take as long"
    assert list(roof.y) == pytest.approx([5e12, 100e12, 100e12])


def test_counted_bytes_stand_for_the_least() -> None:
    (point,) = achieved([replace(row(1_000, 10), dram_bytes=100)])
    assert (point.intensity, point.counted) == (10, True)


def test_each_unit_has_its_roof_and_float32_matrices_have_two() -> None:
    assert roofs(achieved([row(1, 1)]), GPU) == {"bfloat16 matrices": 100 * 10**12}
    vector = achieved([row(1, 1, kind="float32", matrix=False)])
    assert list(roofs(vector, GPU)) == ["float32"]
    unsure = achieved([row(1, 1, kind="float32")])
    assert set(roofs(unsure, GPU)) == {"float32", "tfloat32 matrices"}
    assert share(unsure[0], GPU) is None
    assert share(achieved([row(1, 1)])[0], Hardware(name="?")) is None
    assert len(roofline(vector, Hardware(name="?")).data) == 1, "no roof is made up"


def test_what_is_unknown_or_nothing_is_never_zero_on_the_chart() -> None:
    unknown = replace(row(1, 1), work=None)
    assert achieved([unknown, row(0, 10), row(-5, 10), row(5, 0)]) == []


def test_the_page_says_what_is_known_and_what_is_not(context: Context, store: RunStore) -> None:
    run = sample_run(store, applied=False)
    assert "No kernel's operations are known" in page(context, run_path(run.id))
    report = run.report()
    found = (row(2_000_000, 1_000), replace(row(1, 1), work=None, time_ns=3_000), row(0, 9))
    run.write_report(replace(report, kernels=found, hardware=GPU))
    text = page(context, run_path(run.id))
    assert "Operations of 40.0 % of the kernel time are known" in text
    assert "1 of them compute nothing" in text


def test_names_stay_text() -> None:
    figure = roofline(achieved([row(5, 5, name=HOSTILE, kind=HOSTILE)]), GPU)
    assert "<script" not in figure.data[0].text[0]
    assert len(figure.data[0].text[0]) < 300


def test_a_recorded_model_is_on_it() -> None:
    report = analyze([ROOT / "sample_traces" / "llama_prefill.eager.json.gz"])
    assert re.search(r"Operations of 8\d\.\d % of the kernel time", words(arithmetic.panel(report)))
    names = {line.name for line in roofline(achieved(report.kernels), report.hardware).data}
    assert {"bfloat16 matrices: 989 TFLOP/s", "float32: 66.9 TFLOP/s"} <= names
    shares = [s for p in achieved(report.kernels) if (s := share(p, report.hardware)) is not None]
    assert max(shares[:5]) == pytest.approx(0.78, abs=0.05), "the products of the large layers"
