"""`fusion-advisor explain` on a recorded run."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from advisor.cli.main import run as command
from advisor.hardware.gpus import gpu_by_key
from advisor.model.base import Location
from advisor.pipeline.facts import hardware_of
from advisor.report.explain import render_explanation
from advisor.report.words import ranked
from advisor.store import RunDirectory
from advisor.units import format_ns
from analyzers.dataflow import dataflow
from analyzers.gemm_programs import gemm_programs
from analyzers.row_plans import plan_of
from tests.builders.graph import Sketch
from tests.model.builders import finding, report
from tests.model.builders import plan as fusion_plan

RUN = Path(__file__).resolve().parents[2] / "sample_traces" / "runs" / "llama_prefill_eager"


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command(["explain", *arguments]) == 0
    return capsys.readouterr().out


def norm_id() -> str:
    report = json.loads((RUN / "report.json").read_text())
    return next(f["id"] for f in report["findings"] if f["title"].startswith("RMS norm"))


def test_a_finding_is_told_from_what_runs_to_where_it_stands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    text = explained(capsys, str(RUN), norm_id())
    for words in (
        "RMS norm in 9 separate ops, 9 sites",
        "aten::mul",
        "v4 = rsqrt(v3)",
        "1.50 FLOP a byte",
        "memory: 70.7 µs at least, at 4.27 TB/s (estimated); less where L2 still holds",
        "model.layers.3.input_layernorm",
        "4,096 rows × 2,048 columns",
        "generated kernel",
    ):
        assert words in text, words
    assert "v8 = in0 * v7" in text, "the other ways are told too"


def test_a_mask_is_not_told_as_one_value_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    """It has a value for every column too, repeated along the axes that share it."""
    text = explained(capsys, str(RUN.with_name("llama_prefill_compile")), "48be783b39502163")
    assert "in0: bfloat16 for every element" in text
    assert "in1: bfloat16 for every column and 2 of 3 row axes" in text


def test_a_product_takes_its_arithmetic_at_least() -> None:
    """1,024 × 1,024 × 4,096: 14 MiB are read faster than 8.6 GFLOP are done."""
    s = Sketch()
    x, w = s.input(1024, 4096, dtype="bfloat16"), s.input(4096, 1024, dtype="bfloat16")
    product = s.op("opaque", x, w, shape=(1024, 1024), target="aten.mm.default")
    graph = s.build(s.op("add", product, s.input(1024, 1024, dtype="bfloat16")))
    (program,) = [item.program for item in gemm_programs(dataflow(graph), frozenset())]
    assert program is not None
    plan = plan_of([program], "inference", "product")
    gpu = gpu_by_key("h200")
    hardware = hardware_of(gpu, gpu.name)
    made = replace(report(replace(finding(), plan_id=plan.id)), hardware=hardware)
    console = Console(width=160, file=io.StringIO())
    console.print(render_explanation(made, made.findings[0], (plan,), lambda place: None))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    bandwidth = hardware.dram_bandwidth_bytes_per_s
    assert bandwidth is not None
    memory = format_ns(round(20 * 2**20 * 1e9 / bandwidth))
    assert f"memory: {memory} at least" in text
    assert "arithmetic: 8.68 µs at least, at 989 TFLOP/s of bfloat16 (data sheet)" in text


def test_a_number_and_a_plan_name_the_same_finding(capsys: pytest.CaptureFixture[str]) -> None:
    report = RunDirectory.at(RUN).report()
    shown = ranked(report)
    assert [f.id for f in shown] != [f.id for f in report.findings], "the order tells them apart"
    number = [f.id for f in shown].index(norm_id()) + 1
    by_number = explained(capsys, str(RUN), str(number))
    assert by_number == explained(capsys, str(RUN), shown[number - 1].plan_id or "")
    assert command(["show", str(RUN)]) == 0
    assert re.search(rf"^{number} +RMS norm", capsys.readouterr().out, re.MULTILINE)


def test_the_places_of_all_kernels_of_a_finding_are_told() -> None:
    """Two kernels that differ in what they write take the place of one norm at three places."""
    whole = finding("norms")
    plan = fusion_plan()
    site = plan.sites[0]
    first = replace(plan, id="1" * 16, sites=(replace(site, nodes=("a", "b")),))
    second = replace(plan, id="2" * 16, sites=(replace(site, nodes=("c",), columns=77),))
    softer = replace(plan, id="3" * 16, sites=(replace(site, nodes=("b",), columns=88),))
    way = replace(whole.alternatives[0], plan_ids=(first.id, second.id))
    elsewhere = Location(module="only.known.to.the.finding")
    told = replace(
        whole, plan_id=first.id, alternatives=(way,), locations=(site.location, elsewhere)
    )
    console = Console(width=160, file=io.StringIO())
    made = report(told)
    console.print(render_explanation(made, told, (first, second, softer), lambda place: None))
    assert isinstance(console.file, io.StringIO)
    places = console.file.getvalue().split("Where")[1].split("What stays out")[0].split("Ways")[0]
    assert "77 columns" in places
    assert "88 columns" not in places
    assert elsewhere.module is not None
    assert f"module {elsewhere.module}" in places


def test_a_report_by_itself_has_no_plans_but_all_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = explained(capsys, str(RUN / "report.json"), norm_id())
    assert "Fused:" not in text
    assert "model.layers.3.input_layernorm" in text


def test_a_finding_without_a_kernel_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, str(RUN), "launch-bound")
    assert "capture the step as a CUDA graph" in text


def test_another_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["explain", str(RUN), "nope"]) == 2
    assert "'nope' is no finding of this run" in capsys.readouterr().err
