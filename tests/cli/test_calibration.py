"""`fusion-advisor calibration` over the recorded runs."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from advisor.cli.main import run as command
from advisor.hardware.gpus import gpu_by_key
from advisor.hardware.learned import learned_residuals
from advisor.model.applied import Applied, Comparison, PlanVerdict, SetVerdict, Timing
from advisor.model.base import Range
from advisor.store import RunStore
from tests.builders.run import sample_run

LEARNED = """\
45 plans measured, 45 of them kept
median error: 9.0 % of what plans replace
80 % intervals held: 55.6 % (20 plans saved less, 0 more)
residuals of the new kernels' times: +0.90 half-widths in the median, -0.10 to +1.85 for 80 %
each run as the others teach it: 82.2 % of the intervals hold, median error 5.3 %
"""
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


def plan(number: int) -> PlanVerdict:
    """Its kernel was to take 500 ns of 1,000 (450 to 600) and takes 480 to 700."""
    gain = 520 - number * 5
    before, after = (
        Timing(median_ns=ns, low_ns=ns, high_ns=ns, samples=9) for ns in (1_000, 1_000 - gain)
    )
    return PlanVerdict(
        plan_id=f"{number:016x}", title="norm", verdict="kept", reason="", sites_expected=1,
        predicted_ns=Range(low=400, mid=500, high=550), replaced_ns=1_000,
        measured=Comparison(
            before=before, after=after, clock="kernel",
            gain_low_ns=gain, gain_mid_ns=gain, gain_high_ns=gain,
        ),
    )  # fmt: skip


def test_predictions_learn_from_enough_plans(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs of fifteen plans: what is printed, what is stored, and what is predicted then."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    result = SetVerdict(verdict="reverted", reason="", plans=())
    store = RunStore(tmp_path / "runs")
    for count in range(3):
        run = sample_run(store, applied=False, when=datetime(2026, 11, 29, 9, count))
        plans = tuple(plan(number) for number in range(count, 45, 3))
        run.write_applied(
            Applied(created="now", device="NVIDIA H200", versions={}, plans=plans, set=result)
        )
    assert command(["calibration", str(store.root), "--learn"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1:6] == LEARNED.splitlines()
    assert str(tmp_path) in shown.err
    found = learned_residuals(gpu_by_key("h200"))
    assert (found.low, found.mid, found.high) == pytest.approx((-0.1, 0.9, 1.85))
    again = [str(store.root), str(store.runs()[0].path), str(store.root)]
    assert command(["calibration", *again]) == 0
    assert capsys.readouterr().out == shown.out
