"""A path that is not there, or leads to another kind of file: one line with the path as it was
written, and with what to give instead, whatever the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.cli.main import run
from advisor.store import RunDirectory
from advisor.store.signing import sign
from tests.model import builders

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
TRACE = SAMPLES / "llama_decode.eager.json.gz"
REPORT = SAMPLES / "runs" / "llama_prefill_eager"
READING = (
    ("show", "X"),
    ("explain", "X", "1"),
    ("compare", "X", "X"),
    ("gate", "X"),
    ("gate", str(REPORT), "--baseline", "X"),
    ("gate", str(REPORT), "--config", "X"),
    ("generate", "X"),
    ("resources", "X"),
    ("cliff", "X"),
    ("apply", "X"),
    ("revert", "X"),
    ("patch", "X"),
    ("unfuse", "X"),
    ("analyze", "X"),
    ("calibration", "X"),
    ("serve", "X"),
    ("profile", "--again", "X"),
    ("profile", "X.py:factory"),
    ("profile", "X.py"),
)


def said(arguments: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run([a.replace("X", name) for a in arguments]) in (2, 3)
    line = capsys.readouterr().err
    assert line.startswith(f"error: {name}")
    assert line.count("\n") == 1
    # Behind what and why stands what to do.
    assert ". " in line.partition(": ")[2], line
    return line


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_path_that_is_not_there(
    arguments: tuple[str, ...],
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert str(here) not in said(arguments, "nope", capsys)


@pytest.mark.parametrize("content", ["hello", '{"a": 1}', "import torch\n"])
@pytest.mark.parametrize("arguments", READING[:-3], ids=" ".join)
def test_a_file_of_another_kind(
    arguments: tuple[str, ...],
    content: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "file").write_text(content)
    said(arguments, "file", capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", str(TRACE), "-o", "X"),
        ("gate", str(REPORT), "--junit", "X"),
        ("gate", str(REPORT), "--sarif", "X"),
        ("gate", str(REPORT), "--markdown", "X"),
    ],
    ids=lambda arguments: " ".join((arguments[0], arguments[2])),
)
@pytest.mark.usefixtures("here")
def test_a_result_in_a_folder_that_is_not_there_is_told_before_the_work(
    arguments: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = said(arguments, "none/file", capsys)
    assert "cannot write: its folder is not there. name a file in a folder" in line


def test_a_run_where_a_file_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["analyze", str(TRACE), "--out", str(tmp_path / "file")]) == 2
    assert "cannot create the run directory: File exists. choose another" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "max = \n",
        "",
        '[[metric]]\nname = "step_ns"\n',
        '[[metric]]\nname = "step_ns"\nmax = 1\nmin = 2\n',
        '[[metric]]\nname = "step_ns"\nmax = "10 ms"\n',
        '[[finding]]\nmax = 1\nunpriced = "ignore"\n',
        '[[metric]]\nname = "stepns"\nmax = 1\n',
        '[[finding]]\nmax = 1\nrule = "pointwise-chains"\n',
        "[[finding]]\nmax = 1\nnew = true\n",
        '[[finding]]\nmax = 1\n[capture]\nallow_warnings = ["lost"]\n',
    ],
)
def test_limits_that_cannot_be_used(
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("limits.toml").write_text(text)
    said(("gate", str(REPORT), "--config", "X"), "limits.toml", capsys)


@pytest.mark.parametrize(
    "arguments", [a for a in READING if a[:2] == (a[0], "X")][:11], ids=" ".join
)
def test_a_folder_of_runs_is_answered_with_a_run_of_it(
    arguments: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(SAMPLES)
    line = said(arguments, "runs", capsys)
    assert line.endswith("give one of the runs in it, such as runs/llama_prefill_compile\n")


@pytest.mark.parametrize("command", ["apply", "revert", "patch", "unfuse"])
def test_a_file_of_a_run_is_answered_with_the_run(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(SAMPLES)
    line = said((command, "X"), "runs/llama_prefill_eager/report.json", capsys)
    assert line.endswith("give the directory that it is in: runs/llama_prefill_eager\n")


@pytest.mark.parametrize(
    ("arguments", "what", "remedy"),
    [
        (
            (),
            "there/workload.py: the file of the workload is missing",
            "put it back, or profile again",
        ),
        (("--depth=3",), "run: cannot be profiled again", "profile workload.py:step itself"),
    ],
)
def test_what_cannot_be_profiled_again_says_why(
    arguments: tuple[str, ...],
    what: str,
    remedy: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file was said to be looked for in the directory that one is in."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    stored = RunDirectory.create_at(tmp_path / "run")
    kept = {"working_directory": str(tmp_path / "there"), "arguments": arguments, "plans": {}}
    stored.write_report(builders.report())
    stored.write_info(replace(builders.run_info(), target="workload.py:step", **kept))
    sign(stored)
    assert run(["profile", "--again", str(tmp_path / "run")]) in (2, 3)
    line = capsys.readouterr().err
    assert f"{tmp_path}/{what}" in line
    assert line.endswith(f"{remedy}\n")
