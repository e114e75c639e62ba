"""`fusion-advisor calibration` over the recorded runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.cli.main import run as command

RUNS = Path(__file__).resolve().parents[2] / "sample_traces" / "runs"


def test_recorded_runs_are_scored(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["calibration", str(RUNS)]) == 0
    shown = capsys.readouterr().out
    assert "9 plans measured, 6 of them kept" in shown
    assert "a0b8f1c4" in shown


def test_one_run_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["calibration", str(RUNS / "llama_prefill_eager"), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert len(scores["plans"]) == 4
    assert scores["median_error"] < 0.1


def test_too_few_plans_teach_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert command(["calibration", str(RUNS), "--learn"]) == 2
    assert "9 plans are too few to learn from" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_what_is_no_run_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command(["calibration", str(tmp_path / "absent")]) == 2
    assert "no run and no folder of runs" in capsys.readouterr().err
    assert command(["calibration", str(tmp_path)]) == 0
    assert "`fusion-advisor apply` a run" in capsys.readouterr().out
