"""What the README shows of one's own model, and the commands on the bundled traces, hold."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from advisor.cli.main import cli, run
from advisor.report.gate_config import read_config
from advisor.store import RunDirectory

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def example() -> str:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found
    return found[1]


def test_the_output_of_the_bundled_block_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("the README shows the output of a machine without a GPU")
    block = re.search(
        r"<!-- output: demo without a GPU -->\n```text\n(.*?) *…\n```", README, re.DOTALL
    )
    assert block
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # What a pipe gets; test processes may have a width of their own.
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["profile", "sample:transformer_block", "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[: len(block[1].splitlines())] == block[1].splitlines()


@pytest.mark.parametrize(
    ("factory", "kind"), [("inference", "inference"), ("training", "training"), ("step", "step")]
)
def test_every_form_of_a_factory_is_a_workload(factory: str, kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from collectors.live.workload import load_workload

    (tmp_path / "readme_workload.py").write_text(example())
    target = f"readme_workload.py:{factory}"
    workload = load_workload(target, torch.device("cpu"), directory=tmp_path)
    assert workload.kind == kind
    assert workload.results_of()


def test_the_script_is_profiled_by_the_command_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    script = re.search(r"<!-- script: (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    line = re.search(r"^fusion-advisor (profile train\.py .*?) *#", README, re.MULTILINE)
    assert script
    assert line
    (tmp_path / script[1]).write_text(script[2])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run(line[1].split()) == 0
    report = RunDirectory.at(tmp_path / "runs" / "script").report()
    assert report.workload.shapes == ("float32[32, 128]",)
    assert {warning.code for warning in report.warnings} >= {"modules-only"}


def test_the_trace_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = r"^fusion-advisor (analyze .*|show report\.json|compare runs/eager .*)$"
    lines = re.findall(commands, README, re.MULTILINE)
    assert len(lines) == 5
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    for line in lines:
        assert run(line.split()) == 0
    printed = capsys.readouterr().out
    assert "Findings" in printed
    assert "What the change is made of" in printed


COMMANDS = re.findall(r"^fusion-advisor (.+?) *(?:#.*)?$", README, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_can_be_called_so(line: str) -> None:
    name, *arguments = shlex.split(line.partition(" > ")[0])
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, arguments)


def test_the_limits_that_are_printed_can_be_used() -> None:
    text = re.search(r"```toml\n(.*?)```", README, re.DOTALL)
    assert text
    config = read_config(text[1].encode(), "gates.toml")
    assert config.metric
    assert config.finding


def test_every_file_of_the_users_own_that_a_command_names_is_introduced() -> None:
    """Whoever follows the text has to know what to save under which name."""
    written = {"workload.py", "train.py", "gates.toml"}
    named = set(re.findall(r"(?<![\w/])[a-z]+\.(?:py|toml)\b", " ".join(COMMANDS)))
    assert named == written
    assert all(f"`{name}`" in README for name in written)
