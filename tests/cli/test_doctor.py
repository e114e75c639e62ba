"""`doctor` never fails: it says what is there, what is not, and what follows."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.cli import probes
from advisor.cli.doctor import ABILITIES, diagnose, render_diagnosis
from advisor.cli.main import run
from advisor.cli.probes import Check
from advisor.report.text import render

NAMES = {
    "Python", "pandas", "dash", "torch", "triton", "ptxas", "C compiler", "C++ compiler",
    "Python headers", "GPU", "NVML", "Nsight Compute",
}  # fmt: skip


def test_json_lists_every_part_and_says_what_the_missing_ones_disable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["doctor", "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert {check["name"] for check in checks} == NAMES
    for check in checks:
        assert check["detail"]
        if check["state"] == "missing":
            assert check["disables"]
            assert check["remedy"]


def test_every_ability_needs_parts_that_are_checked() -> None:
    assert {part for _, needs in ABILITIES for part in needs} <= NAMES


def test_without_torch_reading_still_works(tmp_path: Path) -> None:
    """A real interpreter that cannot find torch, triton or dash: a site folder without them."""
    site = tmp_path / "site"
    site.mkdir()
    keep = ("click", "msgspec", "rich", "pygments", "markdown_it", "mdurl", "filelock", "pandas")
    for package in keep:
        for path in Path(sys.modules["click"].__path__[0]).parent.glob(f"{package}*"):
            (site / path.name).symlink_to(path)
    project = Path(probes.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "advisor.cli.main", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{project}{os.pathsep}{site}", "PATH": "", "HOME": str(tmp_path)},
    )
    found = json.loads(done.stdout)
    states = {check["name"]: check["state"] for check in found["checks"]}
    missing = ("torch", "triton", "dash", "ptxas", "C compiler", "GPU", "NVML", "Nsight Compute")
    assert {name: states[name] for name in missing} == dict.fromkeys(missing, "missing")
    lacks = {ability["name"]: ability["lacks"] for ability in found["abilities"]}
    assert lacks["read traces, print reports"] == []
    assert lacks["open the dashboard"] == ["dash"]
    assert lacks["record a workload"] == ["torch"]


def test_a_child_that_fails_hangs_or_babbles_is_a_sentence() -> None:
    assert probes.ask("raise SystemError('no driver')") == "SystemError: no driver"
    assert probes.ask("import os; os._exit(7)") == "exit status 7"
    assert probes.ask("while True: pass", timeout_s=1) == "no answer within 1 s"
    assert probes.ask("print('hello')") == "the answer could not be read"
    assert probes.ask("pass") == "the answer could not be read"
    assert probes.ask("print('warning'); print('{\"a\": 1}')") == {"a": 1}


def fake_ncu(folder: Path, script: str) -> None:
    path = folder / "ncu"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("script", "gpu", "state", "words"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM' >&2; exit 1", True, "limited", "ERR_NVGPUCTRPERM"),
        ("echo 'dram__bytes_read.sum Mbyte 4.2'", True, "ok", "counters readable"),
        ("echo 'no kernels were profiled' >&2", True, "limited", "no kernels were profiled"),
        ("exit 1", False, "limited", "without a GPU"),
    ],
)
def test_counter_permission_is_tried_where_it_can_be(
    script: str, gpu: bool, state: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_ncu(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    check = probes.counter_check(gpu)
    assert check.state == state
    assert words in check.detail


def test_a_compiler_named_by_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", sys.executable)
    assert probes.compiler_check("C compiler", "CC", ("gcc",), "x").detail == sys.executable
    monkeypatch.setenv("CC", "no-such-compiler")
    assert probes.compiler_check("C compiler", "CC", ("gcc",), "x").state == "missing"


def test_rendering_names_the_disabled_and_the_cure() -> None:
    missing = Check(
        name="torch", state="missing", detail="not installed", disables="profile", remedy="pip it"
    )
    text = render(render_diagnosis(diagnose((missing,))), width=80)
    assert "torch: profile → pip it" in text
    assert "✗ record a workload, needs torch" in text
