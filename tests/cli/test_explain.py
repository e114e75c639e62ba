"""`fusion-advisor explain` on a recorded run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.cli.main import run as command

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
        "no kernel takes less than 70.7 µs at 4.27 TB/s",
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


def test_a_number_and_a_plan_name_the_same_finding(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads((RUN / "report.json").read_text())
    number = [f["id"] for f in report["findings"]].index(norm_id()) + 1
    plan = report["findings"][number - 1]["plan_id"]
    by_number = explained(capsys, str(RUN), str(number))
    assert by_number == explained(capsys, str(RUN), plan)


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
