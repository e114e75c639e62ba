"""Planted bad kernels through the real `apply` on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="kernels need triton")

from advisor.cli.main import run as command
from advisor.store import RunDirectory
from tests.builders import bad_kernels

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
ROOT = Path(__file__).parents[2]
FACTORY = f"{ROOT / 'tests' / 'builders' / 'bad_workload.py'}:large"
# For one launch of the kernel without an end: any other takes milliseconds.
LIMIT_S = 10
# What is planted in the nine programs, in the order of the model's lines.
PLANTED = (
    "wrong",
    "overwriting",
    "illegal",
    "looping",
    "spilling",
    "model:slow",
    "model:illegal",
    "model:drifting",
    "model:drifting",
)


def plans_of(run: RunDirectory) -> list[str]:
    """The largest row program of each line, in the order of the model's lines."""
    plans = sorted(map(run.plan, run.plan_ids()), key=lambda plan: len(plan.ops))
    programs = [plan for plan in plans if plan.family == "row_program" and len(plan.ops) > 2]
    of_line = {plan.sites[0].location.line or 0: plan.id for plan in programs}
    assert len(of_line) == len(PLANTED), of_line
    return [of_line[line] for line in sorted(of_line)]


def test_every_bad_plan_is_taken_out_for_its_true_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One profile and one `apply` of nine plans; two of them crash the process they run in."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = tmp_path / "run"
    assert command(["profile", FACTORY, "--steps", "5", "--out", str(out)]) == 0
    run = RunDirectory.at(out)
    plans = plans_of(run)
    text = ",".join(f"{kind}={plan}" for kind, plan in zip(PLANTED, plans, strict=True))
    monkeypatch.setenv(bad_kernels.VARIABLE, text)
    monkeypatch.setenv(bad_kernels.LIMIT_VARIABLE, str(LIMIT_S))
    asked = [part for plan in plans for part in ("--only", plan)]
    assert command(["apply", str(out), *asked]) == 0
    applied = run.applied()
    assert applied is not None
    found = {v.plan_id: (v.verdict, v.reason) for v in applied.plans}
    wrong, alias, illegal, looping, spilling, slow, crash, first, second = (found[p] for p in plans)
    refused = (wrong, alias, illegal, looping, spilling, crash)
    assert {verdict for verdict, _ in refused} == {"refused"}, [found[plan] for plan in plans]
    assert "ulps, at most" in wrong[1]
    assert "an input was overwritten" in alias[1]
    assert "illegal memory access" in illegal[1]
    # It is met where kernels are timed, before they are verified.
    assert looping[1] == f"timed alone, it has no end within {LIMIT_S} s"
    assert "every configuration spills registers" in spilling[1]
    # In the model; what was asked for after the crash was judged in a new process.
    assert slow[0] == "reverted"
    assert "more on the GPU" in slow[1]
    assert "illegal memory access" in crash[1]
    # Each of the last two wins alone; together their results are too far off.
    assert sorted((first[0], second[0])) == ["kept", "reverted"]
    assert "the set kept is without it" in (first if first[0] == "reverted" else second)[1]
    assert applied.set.verdict == "kept"
    assert applied.set.outputs_agree
    assert run.attempt() is None
