"""Whatever is typed wrong, for every command: one line that says what, where and what to do."""

from __future__ import annotations

import errno
import importlib.util
import sys
from pathlib import Path

import click
import pytest

from advisor.cli import main as shell
from advisor.cli.usage import impossible_path, usage_error

NAMES = [name for name, _, _ in shell.COMMANDS]


def command_of(name: str) -> click.Command:
    found = shell.cli.get_command(click.Context(shell.cli), name)
    assert found is not None
    return found


def needed(command: click.Command) -> list[str]:
    """One word for every argument that must be given."""
    return ["x" for p in command.params if isinstance(p, click.Argument) and p.required]


def options(kind: type[click.ParamType]) -> list[tuple[str, str]]:
    """Every option of a type, as (command, option)."""
    return [
        (name, max(option.opts, key=len))
        for name in NAMES
        for option in command_of(name).params
        if isinstance(option, click.Option) and isinstance(option.type, kind)
    ]


def said(arguments: list[str], capsys: pytest.CaptureFixture[str], status: int = 2) -> str:
    """The one line of a failure."""
    assert shell.run(arguments) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.parametrize("name", [n for n in NAMES if needed(command_of(n))])
def test_what_is_missing_is_named_with_how_to_call_the_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [p for p in command_of(name).params if isinstance(p, click.Argument) and p.required]
    for given, argument in enumerate(arguments):
        line = said([name, *["x"] * given], capsys)
        assert f"fusion-advisor {name}: {argument.metavar} is missing" in line
        assert f"usage: fusion-advisor {name} [OPTIONS]" in line


def test_the_finding_that_is_missing_is_said_to_be_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "`fusion-advisor show RUN` lists them" in said(["explain", "runs/x"], capsys)
    assert "TARGET is missing. name file.py:factory" in said(["profile"], capsys)


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_there_is_not(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [name, *needed(command_of(name))]
    line = said([*words, "--nothing"], capsys)
    assert f"fusion-advisor {name}: there is no option '--nothing'" in line
    assert f"`fusion-advisor {name} --help` says more" in line


TAKE_MANY = ("profile", "analyze", "calibration")


@pytest.mark.parametrize("name", [n for n in NAMES if n not in TAKE_MANY])
def test_an_argument_too_many(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = "plan" if name == "schema" else "x"
    line = said([name, first, *["x"] * 3], capsys)
    assert f"usage: fusion-advisor {name} [OPTIONS]" in line


@pytest.mark.parametrize(("name", "option"), options(click.Choice))
def test_a_choice_that_there_is_not(
    name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said([name, *needed(command_of(name)), option, "nothing"], capsys)
    assert f"fusion-advisor {name}: {option} cannot be 'nothing': it is one of " in line


@pytest.mark.parametrize("value", ["x", "-99999999999999999999999"])
@pytest.mark.parametrize(("name", "option"), options(click.IntRange))
def test_a_number_that_does_not_do(
    name: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said([name, *needed(command_of(name)), option, value], capsys)
    assert f"{option} cannot be '{value}': it is a whole number " in line


@pytest.mark.parametrize(("name", "option"), options(click.types.FloatParamType))
def test_a_time_limit_that_is_none(
    name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [name, *needed(command_of(name)), option]
    assert f"{option} cannot be 'x': it is a number" in said([*words, "x"], capsys)
    assert "nan is no time of 1 to 86400 seconds" in said([*words, "nan"], capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["schema", "plans"], "NAME cannot be 'plans': it is one of report, plan,"),
        (["schema", "plans"], ". did you mean plan?"),
        (["profil"], "there is no command 'profil'. did you mean profile?"),
        (["--bad"], "fusion-advisor: there is no option '--bad'"),
        (["profile", "x", "--step", "3"], "did you mean --steps?"),
        (["gate", "x", "--config"], "fusion-advisor gate: option '--config' requires an argument"),
        (["gate", "x", "--json=3"], "fusion-advisor gate: option '--json' does not take a value"),
        (["apply", "x", "--budget", "soon"], "--budget: 'soon' is no duration: write 90s"),
        (["profile", "x", "--again", "y"], "TARGET cannot be given with --again"),
        (["rules", "gated-mpl"], "did you mean gated-mlp?"),
        (["schema", "a\nb" * 100], r"NAME cannot be 'a\nba"),
    ],
)
def test_one_line_says_what_to_do(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in said(arguments, capsys)


@pytest.mark.parametrize(
    ("name", "status"),
    [("show", 3), ("gate", 3), ("generate", 3), ("resources", 3), ("cliff", 3), ("analyze", 3),
     ("apply", 2), ("unfuse", 2), ("patch", 2), ("revert", 2), ("serve", 2), ("calibration", 2)],
)  # fmt: skip
def test_a_file_that_is_not_there(
    name: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = said([name, str(tmp_path / "nothing")], capsys, status)
    assert str(tmp_path / "nothing") in line
    assert any(word in line for word in ("give ", "name the directory")), line


def test_without_a_command_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run([]) == 2
    assert "profile" in capsys.readouterr().err


def test_an_error_of_click_that_nobody_foresaw_is_one_line() -> None:
    error = usage_error(click.ClickException("Could not\nopen."), "fusion-advisor x")
    assert error.line() == (
        r"fusion-advisor x: could not\nopen. `fusion-advisor x --help` says more"
    )


TAKE_A_PATH = ("show", "gate", "generate", "resources", "cliff", "analyze", "apply", "unfuse",
               "patch", "revert", "serve", "calibration")  # fmt: skip


@pytest.mark.parametrize("name", TAKE_A_PATH)
def test_a_name_that_no_file_can_have(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too long, or a link that leads back to itself: one line, not a mistake of ours."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in ("a" * 5000, str(loop), str(loop / "x")):
        assert shell.run([name, path]) in (2, 3)
        line = capsys.readouterr().err
        assert line.startswith("error: ")
        assert line.count("\n") == 1
        assert len(line) < 800


def test_what_nobody_expected_of_the_system_stays_a_mistake_of_ours() -> None:
    assert impossible_path(OSError(errno.EIO, "input/output error")) is None
    assert impossible_path(RuntimeError("of ours")) is None


def test_what_was_typed_is_not_repeated_without_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(said(["doctor", "a" * 5000], capsys)) < 500
    assert len(said(["schema", "a" * 5000], capsys)) < 500


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("profile", ["sample:dlrm"]), ("apply", ["x"]), ("unfuse", ["x"]), ("calibrate", [])],
)
def test_without_torch_the_command_says_what_to_install_and_where(
    name: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    line = said([name, *arguments], capsys)
    assert f"error: `{name}` needs torch and triton. {sys.executable} -m pip install torch" in line
