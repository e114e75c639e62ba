"""The corpus's recorder without a GPU: lost cases, the order of work, ended early, resumed.

Its processes, limits, files, labels and archive are real; what needs a GPU is not.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the corpus is of Triton kernels")

ROOT = Path(__file__).parents[2]
LIGHT = Path(__file__).with_name("overfusion_child.py")
STUBBED = Path(__file__).with_name("overfusion_stubbed.py")


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    names = ("crew", "frozen")
    corpus: dict[str, Any] = {"corpus": importlib.import_module("overfusion_corpus")}
    return corpus | {n: importlib.import_module(f"overfusion_corpus.{n}") for n in names}


def run_crew(
    parts: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, faults: dict[str, str]
) -> tuple[list[str], Any, list[Any]]:
    """(ids of the cases, the board afterwards, what the children were asked) for two GPUs."""
    monkeypatch.setattr(sys, "argv", [str(LIGHT)])
    monkeypatch.setattr(parts["crew"], "CASE_LIMIT_S", 1.0)
    monkeypatch.setattr(parts["crew"], "WARM_LIMIT_S", 1.0)
    monkeypatch.setenv("FAULTS", json.dumps(faults))
    cases = parts["corpus"].all_cases()[:20]
    now = time.monotonic()
    board = parts["crew"].Board(cases, cases[:5], now + 15, now + 20)
    crew = parts["crew"].Crew(parts["crew"].workers(["a", "b"], 4), board, folder)
    assert crew.wait(25)
    assert not board.stopped
    notes = [json.loads(line) for line in (folder / "notes").read_text().splitlines()]
    return [case.id for case in cases], board, notes


def test_one_gpu_warms_and_none_is_shared(
    parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, board, notes = run_crew(parts, tmp_path, monkeypatch, {})
    by_role = {role: [n for n in notes if n["role"] == role] for role in ("warm", "measure")}
    assert sorted(n["id"] for n in by_role["warm"]) == sorted(ids)
    assert sorted(n["id"] for n in by_role["measure"]) == sorted(ids)
    assert {n["gpu"] for n in by_role["warm"]} == {"b"}
    last_warm = max(n["at"] for n in by_role["warm"])
    assert all(n["at"] > last_warm for n in by_role["measure"] if n["gpu"] == "b")
    assert any(n["at"] < last_warm for n in by_role["measure"] if n["gpu"] == "a")
    warmed = {n["id"]: n["at"] for n in by_role["warm"]}
    assert all(n["at"] > warmed[n["id"]] for n in by_role["measure"])
    assert board.rows.keys() == set(ids[:5])


def test_a_case_that_ends_its_process_or_never_ends_costs_itself_alone(
    parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [case.id for case in parts["corpus"].all_cases()[:20]]
    faults = {
        f"measure {ids[1]}": "hangs", f"measure {ids[3]}": "ends", f"size {ids[2]}": "ends",
        f"warm {ids[5]}": "hangs", f"warm {ids[7]}": "ends",
    }  # fmt: skip
    _, board, notes = run_crew(parts, tmp_path, monkeypatch, faults)
    reasons = {path.stem: path.read_text() for path in (tmp_path / "failed").iterdir()}
    assert reasons == {ids[1]: "took longer than 1 s\n", ids[3]: "ended its process: 7\n"}
    measured = [note["id"] for note in notes if note["role"] == "measure"]
    assert sorted(measured) == sorted(ids)
    assert board.rows.keys() == {ids[i] for i in (0, 1, 3, 4)}


def test_what_was_recorded_is_packed_when_the_recorder_is_ended(
    parts: dict[str, Any], tmp_path: Path
) -> None:
    out, archive = tmp_path / "out", tmp_path / "kept" / "corpus.tgz"
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "benchmarks"))),
        "CUDA_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    line = [sys.executable, str(STUBBED), "--workers", "2"]
    recorder = subprocess.Popen(
        [*line, "--out", str(out), "--pack", str(archive), "blend_offset"],
        env=environment, start_new_session=True,
    )  # fmt: skip
    while len(list((out / "cases").glob("*.json"))) < 2:
        assert recorder.poll() is None
        time.sleep(0.05)
    # As `timeout` does it: the children get the signal too.
    os.killpg(recorder.pid, signal.SIGTERM)
    asked = time.monotonic()
    assert recorder.wait(30) == 1
    assert time.monotonic() - asked < 5
    found = parts["frozen"].unpack(archive.with_name("MANIFEST.json"), tmp_path / "back")
    assert len(found.results) >= 2
    assert found.labels.keys() == found.results.keys()
    assert all(found.trace(n, way).exists() for n in found.results for way in ("fused", "members"))
    assert not (out / "failed").exists()
    resumed = tmp_path / "resumed"
    done = subprocess.run(
        [*line, "--out", str(resumed), "--resume", str(archive), "--seconds", "0", "blend_offset"],
        env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert parts["frozen"].read(resumed).results == found.results
