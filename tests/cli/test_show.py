"""`show` reads a run or a bare report and prints it, or hands it over as data."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from advisor.cli.main import run
from advisor.model.base import encode
from advisor.report.terminal import render_next
from advisor.report.text import render
from tests.model import builders

COMMAND = [sys.executable, "-m", "advisor.cli.main", "show"]


def test_a_run_shows_findings_proof_and_next_step(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", str(run_directory)]) == 0
    out = capsys.readouterr().out
    assert out.index("Fuse first: ") < out.index("Findings") < out.index("Applied")
    assert f"fusion-advisor revert {run_directory}" in out


def test_a_run_that_was_not_applied_says_how_to(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_directory / "applied.json").unlink()
    assert run(["show", str(run_directory)]) == 0
    out = capsys.readouterr().out
    assert f"fusion-advisor apply {run_directory}" in out
    assert "Applied" not in out


@pytest.mark.parametrize(
    ("target", "present", "purpose", "line"),
    [
        ("m.py:f", True, "prove the kernels, keep those that pay", "fusion-advisor apply run"),
        ("m.py:f", False, "to be timed and kept on a GPU", "fusion-advisor apply run"),
        ("train.py", False, "the kernels as files, to call from it", "fusion-advisor generate run"),
    ],
)
def test_what_comes_next_is_possible_there(
    target: str, present: bool, purpose: str, line: str
) -> None:
    report = builders.report()
    report = msgspec.structs.replace(
        report,
        workload=msgspec.structs.replace(report.workload, target=target),
        hardware=msgspec.structs.replace(report.hardware, present=present),
    )
    out = render(render_next(report, "run", None), width=100, colour=False)
    assert purpose in out
    assert line in out


def test_a_bare_report_has_no_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(encode(builders.report()))
    assert run(["show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Fuse first: " in out
    assert "Next" not in out


def test_json_is_the_records(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(run_directory), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["report"] == json.loads(encode(builders.report()))
    assert body["applied"] == json.loads(encode(builders.applied()))


def test_json_says_the_same_but_moves_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C1 controls, marks of direction and separators are spelled out; letters stay."""
    hostile = "é ✓ \x7f \x9b31m \u202egnp.exe \u2028 \U000e0041"
    report = msgspec.structs.replace(
        builders.report(),
        workload=msgspec.structs.replace(builders.report().workload, target=hostile),
    )
    path = tmp_path / "report.json"
    path.write_bytes(encode(report))
    assert run(["show", str(path), "--json"]) == 0
    out = capsys.readouterr().out
    assert "é ✓ " in out
    assert all(c == "\n" or c.isprintable() for c in out)
    assert json.loads(out)["report"]["workload"]["target"] == hostile


@pytest.mark.parametrize(
    ("form", "start", "words"),
    [
        ("markdown", "# sample:transformer_block", "| `step_ns` | 10.4 ms |"),
        ("html", "<!doctype html>", "Content-Security-Policy"),
        ("json", "{", '"report"'),
        ("text", "sample:transformer_block", "Fuse first: "),
    ],
)
def test_forms(
    form: str, start: str, words: str, run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", str(run_directory), "--format", form]) == 0
    out = capsys.readouterr().out
    assert out.startswith(start)
    assert words in out


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (None, 3, "No such file"),
        (b"{}", 3, "not a valid Report"),
        (b"\x1b[2J not json", 3, "not a valid Report"),
    ],
)
def test_an_unusable_file_is_one_line(
    content: bytes | None,
    status: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content)
    assert run(["show", str(path)]) == status
    err = capsys.readouterr().err
    assert words in err
    assert str(path) in err
    assert err.count("\n") == 1


def test_an_empty_directory_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(tmp_path)]) == 2
    assert "fusion-advisor profile" in capsys.readouterr().err


def on_a_terminal(run_directory: Path, **variables: str) -> str:
    """What `show` writes to a pseudo-terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm", **variables}
    with subprocess.Popen([*COMMAND, str(run_directory)], stdout=theirs, env=environment) as child:
        os.close(theirs)
        chunks = []
        while chunk := _read(ours):
            chunks.append(chunk)
    os.close(ours)
    assert child.returncode == 0
    return b"".join(chunks).decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux reports the closed other end of a terminal as EIO
        return b""


def test_colour_on_a_terminal_only_and_not_against_the_users_wish(run_directory: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    piped = subprocess.run(
        [*COMMAND, str(run_directory)], capture_output=True, check=True, env=environment
    )
    assert b"\x1b" not in piped.stdout
    assert "\x1b[" in on_a_terminal(run_directory, NO_COLOR="")
    assert "\x1b" not in on_a_terminal(run_directory, NO_COLOR="1")
