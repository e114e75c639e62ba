"""`analyze` prints a report or writes it; failures are one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from advisor.cli.main import run
from advisor.model.base import decode
from advisor.model.report import Commit, Report
from tests.builders.trace import event, kineto


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A step of three kernels far apart: the host is late."""
    events = [event("user_annotation", "ProfilerStep#0", 1, 400)]
    for place in range(3):
        at = 10 + 100 * place
        events.append(event("cuda_runtime", "cudaLaunchKernel", at, 2, correlation=place + 1))
        events.append(event("kernel", "k", at + 5, 3, device=0, stream=7, correlation=place + 1))
    path = tmp_path / "t.json"
    path.write_bytes(kineto(events))
    return path


def test_the_report_on_the_terminal(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(trace)]) == 0
    out = capsys.readouterr().out
    assert "Host-bound: the GPU stands idle for 95.6 % of the profiled step" in out
    assert "CUDA graph" in out


@pytest.mark.parametrize(("name", "told"), [("first.run", True), ("first-run", False)])
def test_a_name_that_the_dashboard_cannot_show_is_told(
    trace: Path, name: str, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", str(trace), "--out", str(tmp_path / name)]) == 0
    assert (f"does not list '{name}'" in capsys.readouterr().err) is told


@pytest.mark.parametrize("target", ["-", "report.json"])
def test_the_report_as_json(
    trace: Path, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = target if target == "-" else str(tmp_path / target)
    assert run(["analyze", str(trace), "-o", output, "--gpu", "h200", "--commit", 20 * "Ab"]) == 0
    printed = capsys.readouterr()
    data = printed.out.encode() if target == "-" else (tmp_path / target).read_bytes()
    report = decode(data, Report)
    assert report.workload.gpu == "h200"
    assert report.workload.commit == Commit(id="abababababab")
    assert report.metrics["kernels"].value == 3
    assert [f.rule for f in report.findings] == ["launch-bound"]
    if target != "-":
        assert not printed.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "FILE"),
        (["TRACE", "--gpu", "abacus"], 2, "unknown GPU"),
        (["TRACE", "--step-range", "other"], 2, "no range"),
        (["TRACE", "--step-range", ""], 2, "is empty"),
        (["TRACE", "--commit", "main"], 2, "no hash"),
        (["TRACE", "TRACE"], 2, "named twice"),
        (["missing.json"], 3, "missing.json"),
        (["."], 3, "directory"),
    ],
)
def test_failures_are_one_line(
    trace: Path, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(trace) if word == "TRACE" else word for word in arguments]
    assert run(["analyze", *given]) == code
    assert words in capsys.readouterr().err


def test_a_directory_in_use_is_told_before_the_work(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = tmp_path / "run"
    used.mkdir()
    (used / "report.json").write_text("kept")
    assert run(["analyze", str(trace), "--out", str(used)]) == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.count("\n") == 1
    assert "the run directory is not empty" in printed.err
    assert [path.name for path in used.iterdir()] == ["report.json"]


def test_what_cannot_be_analysed_leaves_no_directory(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"
    assert run(["analyze", str(trace), "--step-range", "other", "--out", str(out)]) == 2
    assert not out.parent.exists()


def test_ranks_that_their_files_do_not_name_are_told_apart(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = trace.with_name("other.json")
    other.write_bytes(trace.read_bytes())
    assert run(["analyze", str(trace), str(other), "-o", "-"]) == 0
    report = decode(capsys.readouterr().out.encode(), Report)
    assert report.workload.world_size == 2
    assert len(report.sources) == 2


def test_it_needs_neither_torch_nor_dash(trace: Path) -> None:
    program = (
        "import sys; from advisor.cli.main import run;"
        f"assert run(['analyze', {str(trace)!r}, '-o', '-']) == 0;"
        "print({'torch', 'triton', 'dash', 'plotly'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "set()"


def test_help_does_not_import_tables() -> None:
    program = (
        "import sys; from advisor.cli.main import run; run(['analyze', '--help']);"
        "print({'pandas', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "set()"
