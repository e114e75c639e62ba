"""The command shell: light start, one line for every failure, stable exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from advisor import __version__
from advisor.cli import main as shell
from advisor.errors import (
    AdvisorError,
    InvalidRecordError,
    RefusedError,
    UnreadableError,
    UsageError,
)
from tests.builders.child import interruptible, processor_time_of_children

HEAVY = ("torch", "triton", "pandas", "dash", "numpy", "plotly")
HELP_LIMIT_S = 0.4
COMMAND = [sys.executable, "-m", "advisor.cli.main"]


def imported_by(arguments: list[str]) -> set[str]:
    """Modules in a fresh interpreter after one command line has run."""
    code = (
        "import sys; from advisor.cli.main import run\n"
        f"status = run({arguments!r})\n"
        "print(*sorted(sys.modules), file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_help_imports_neither_sub_commands_nor_anything_heavy() -> None:
    modules = imported_by(["--help"])
    assert not modules.intersection(HEAVY)
    assert not [m for m in modules if m.startswith("advisor.cli.") and m != "advisor.cli.main"]
    assert "rich" not in modules


@pytest.mark.parametrize("command", ["show", "schema", "doctor"])
def test_light_commands_import_no_framework(command: str) -> None:
    assert not imported_by([command, "--help"]).intersection(HEAVY)


def test_show_reads_a_run_without_a_framework(run_directory: Path) -> None:
    assert not imported_by(["show", str(run_directory)]).intersection(HEAVY)


def test_help_is_quick() -> None:
    """Processor time, which other tests on the same cores do not change; the best of three."""
    times = []
    for _ in range(3):
        before = processor_time_of_children()
        subprocess.run([*COMMAND, "--help"], capture_output=True, check=True)
        times.append(processor_time_of_children() - before)
    assert min(times) < HELP_LIMIT_S


def test_every_command_of_the_table_exists_and_says_what_it_does() -> None:
    for name, target, help_line in shell.COMMANDS:
        module, _, attribute = target.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        assert command.name == name
        assert command.help
        assert help_line.endswith(".")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(help_line in out for _, _, help_line in shell.COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run(["--version"]) == 0
    assert capsys.readouterr().out == f"fusion-advisor {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["nothing"], ["show"], ["show", "--nothing"], ["schema", "nothing"]]
)
def test_wrong_usage_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("bad target", where="x", remedy="name a file"), 2),
        (RefusedError("read-only"), 2),
        (UnreadableError("cut short", where="trace.json:17"), 3),
        (InvalidRecordError("no plan\nin here"), 3),
        (AdvisorError("internal"), 3),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
    ],
)
def test_failures_become_one_line_and_a_status(
    error: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def fails() -> None:
        raise error

    monkeypatch.setattr(shell.cli, "get_command", lambda ctx, name: fails)
    assert shell.run(["fails"]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    if isinstance(error, AdvisorError):
        assert captured.err == f"error: {error.line()}\n"


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(shell.cli, "get_command", lambda ctx, name: broken)
    with pytest.raises(ZeroDivisionError):
        shell.run(["broken"])


def test_a_reader_that_goes_away_is_no_error() -> None:
    child = subprocess.Popen(
        [*COMMAND, "schema", "report"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.close()
    _, err = child.communicate(timeout=30)
    assert err == b""
    assert child.returncode == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")  # noqa: PTH110
def test_a_full_disk_is_one_line_and_no_failed_gate() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        child = subprocess.run(
            [*COMMAND, "schema", "report"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert child.returncode == 3
    assert child.stderr == (
        b"error: standard output: cannot write: No space left on device. make room there\n"
    )


def test_interrupt_ends_with_130() -> None:
    code = (
        "import time, click\n"
        "from advisor.cli import main as shell\n"
        "@click.command()\n"
        "def waits():\n"
        "    click.echo('ready')\n"
        "    time.sleep(60)\n"
        "shell.cli.get_command = lambda ctx, name: waits\n"
        "raise SystemExit(shell.run(['waits']))"
    )
    with interruptible():
        child = subprocess.Popen(
            [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    os.kill(child.pid, signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert err == b"interrupted\n"


@pytest.mark.parametrize("command", [name for name, _, _ in shell.COMMANDS])
@pytest.mark.parametrize("columns", [60, 80])
def test_usage_lines_break_between_words(
    command: str,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert shell.run([command, "--help"]) == 0
    usage = capsys.readouterr().out.split("\n\n")[0]
    with click.Context(shell.cli, info_name=shell.PROGRAM) as group:
        found = shell.cli.get_command(group, command)
        assert found is not None
        wide = click.Context(found, group, command, max_content_width=1000, terminal_width=1000)
        whole = found.get_usage(wide)
    assert usage.split() == whole.split()


def test_schema_prints_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.run(["schema", "plan"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "plans/ID.json"


def test_a_mistake_of_ours_is_no_failed_gate() -> None:
    """An exception that nobody expected ends Python with 1, which means a failed gate here."""
    code = (
        "import sys; sys.argv = ['fusion-advisor', 'rules']; import analyzers.rules as r; "
        "r.RULES = None; from advisor.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.splitlines()[0].startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("error: internal")
