"""`gate` as CI calls it: exit codes, files, speed, and what it may import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from msgspec.structs import replace

from advisor.cli.main import run
from advisor.model.base import Warning_, encode
from advisor.model.report import Report
from tests.builders.child import processor_time_of_children
from tests.model import builders

LIMIT_S = 0.4
OUTPUT = ("--junit", "--sarif", "--markdown")


def write(path: Path, report: Report) -> str:
    path.write_bytes(encode(report))
    return str(path)


@pytest.fixture
def good(tmp_path: Path) -> str:
    return write(tmp_path / "good.json", builders.report())


def config(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "gates.toml"
    path.write_text(text)
    return ["--config", str(path)]


def test_a_report_that_keeps_its_limits_passes(
    good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = config(tmp_path, '[[metric]]\nname = "step_ns"\nmax = 11_000_000\n')
    assert run(["gate", good, *limits]) == 0
    assert "Gate passed" in capsys.readouterr().out


def test_one_that_does_not_fails_in_every_output(
    good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = config(tmp_path, '[[metric]]\nname = "step_ns"\nmax = 10_000_000\n')
    files = {option: tmp_path / option[2:] for option in OUTPUT}
    arguments = [word for option, path in files.items() for word in (option, str(path))]
    assert run(["gate", good, *limits, *arguments]) == 1
    assert "10.4 ms: above 10 ms" in capsys.readouterr().out
    assert ET.parse(files["--junit"]).getroot().get("failures") == "1"
    assert json.loads(files["--sarif"].read_text())["runs"][0]["invocations"][0]["exitCode"] == 1
    assert files["--markdown"].read_text().startswith("# Gate failed")
    assert run(["gate", good, *limits, "--github"]) == 1
    assert capsys.readouterr().out == "::error title=Gate%3A step_ns::10.4 ms: above 10 ms\n"
    assert run(["gate", good, *limits, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["status"] == "failed"


def test_findings_without_a_price_exit_4_unless_something_is_said_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = write(tmp_path / "unpriced.json", builders.report(builders.finding()))
    limit = '[[finding]]\nkind = "opportunity"\nsaving_above_ns = 50_000\nmax = 0\n'
    limits = config(tmp_path, limit)
    assert run(["gate", report, *limits]) == 4
    assert "1 more may save as much, nobody can tell: RMSNorm" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run(["gate", report, *limits, "--allow-unknown"]) == 0
    assert "Gate passed as far as is known" in capsys.readouterr().out
    for word, status in (("count", 1), ("ignore", 0)):
        assert run(["gate", report, *config(tmp_path, f'{limit}unpriced = "{word}"\n')]) == status


def test_a_run_directory_passes_without_a_configuration(run_directory: Path) -> None:
    assert run(["gate", str(run_directory)]) == 0


def test_a_truncated_capture_fails(tmp_path: Path) -> None:
    cut = replace(builders.report(), warnings=(Warning_(code="truncated", message="cut"),))
    assert run(["gate", write(tmp_path / "cut.json", cut)]) == 1


def test_a_baseline_of_other_work_exits_3_and_still_writes(
    good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = builders.report()
    other = replace(report, workload=replace(report.workload, world_size=8))
    junit = tmp_path / "junit.xml"
    baseline = write(tmp_path / "other.json", other)
    assert run(["gate", good, "--baseline", baseline, "--junit", str(junit)]) == 3
    assert "world size: 8 before, 1 after" in capsys.readouterr().out
    assert ET.parse(junit).getroot().get("failures") == "1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[metric]]\nname = "step_ns"\nmax = nan\n', "max is nan"),
        ('[[metric]]\nname = "step_ns"\nmax_increase = 0.1\n', "--baseline"),
        ('[[metric]]\nname = "stepns"\nmax = 1\n', "did you mean step_ns"),
        ("[[[\n", "not a TOML file"),
    ],
)
def test_unusable_limits_exit_2(
    text: str, words: str, good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["gate", good, *config(tmp_path, text)]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_wrong_usage_exits_2(good: str, tmp_path: Path) -> None:
    assert run(["gate"]) == 2
    assert run(["gate", good, "--config", str(tmp_path / "none.toml")]) == 2
    assert run(["gate", good, "--github", "--json"]) == 2
    assert run(["gate", good, "--junit", str(tmp_path / "no" / "such.xml")]) == 2


@pytest.mark.parametrize("content", [b"", b"<html>", b"{}", b"[" * 100_000])
def test_an_unreadable_report_exits_3(
    content: bytes, tmp_path: Path, good: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    assert run(["gate", str(bad)]) == 3
    assert capsys.readouterr().err.count("\n") == 1
    assert run(["gate", good, "--baseline", str(bad)]) == 3


def test_it_starts_quickly_and_imports_no_tables(good: str, tmp_path: Path) -> None:
    """Processor time of the child, which other tests on the same cores do not change."""
    arguments = ["gate", good, *(w for o in OUTPUT for w in (o, str(tmp_path / o[2:])))]
    code = (
        "import sys; from advisor.cli.main import run\n"
        f"status = run({arguments!r})\n"
        "heavy = {'torch', 'triton', 'dash', 'plotly', 'pandas', 'numpy'} & set(sys.modules)\n"
        "sys.exit(9 if heavy else status)"
    )
    before = processor_time_of_children()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    taken = processor_time_of_children() - before
    assert done.returncode == 0, done.stderr
    assert taken < LIMIT_S
