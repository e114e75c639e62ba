"""`compare`: exit codes, forms, and what it may import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.cli.main import run
from advisor.model.base import encode
from advisor.model.report import Metric, Report
from tests.model import builders


def write(path: Path, report: Report) -> str:
    path.write_bytes(encode(report))
    return str(path)


def step(value: int) -> Metric:
    steps = tuple(value + n for n in (-2, -1, 0, 1, 2))
    return Metric(value=value, unit="ns", provenance="measured", definition="d", per_step=steps)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    before, after = builders.report(), builders.report()
    return (
        write(tmp_path / "a.json", replace(before, metrics={"step_ns": step(1000)})),
        write(tmp_path / "b.json", replace(after, metrics={"step_ns": step(500)})),
    )


def test_the_same_work_is_compared(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", *pair]) == 0
    out = capsys.readouterr().out
    # Nothing in these reports says what was computed: the name alone proves nothing.
    unknown = "Comparable as far as is known, but not of both: graph hash, work. "
    assert unknown in " ".join(out.split())
    assert "-50.0 % (-50.3 % … -49.7 %)" in out


def test_a_run_directory_will_do(
    run_directory: Path, pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", str(run_directory), pair[1]]) == 0
    assert f"{run_directory} → {pair[1]}" in capsys.readouterr().out.replace("\n", " ")


def test_other_work_is_refused_with_every_reason(
    tmp_path: Path, pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    report = builders.report()
    other = write(
        tmp_path / "c.json",
        replace(report, workload=replace(report.workload, rank=3, world_size=8, shapes=("1x1",))),
    )
    assert run(["compare", pair[0], other]) == 3
    out = capsys.readouterr().out
    assert "Not comparable. Comparability 0." in out
    for reason in (
        "shapes: 2x512x1024 before, 1x1 after",
        "world size: 1 before, 8 after",
        "rank: ",
    ):
        assert reason in out
    assert "step_ns" not in out
    accepted = ["--accept", "shapes", "--accept", "world_size", "--accept", "rank"]
    assert run(["compare", pair[0], other, *accepted]) == 0


def test_forms(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for form, start in (("markdown", "# `"), ("html", "<!doctype"), ("json", "{")):
        assert run(["compare", *pair, "--format", form]) == 0
        assert capsys.readouterr().out.startswith(start)
    assert run(["compare", *pair, "--format", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["comparability"]["comparable"] is True


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--accept", "colour"], 2), (["--format", "pdf"], 2), (["--nothing"], 2)],
)
def test_wrong_usage(arguments: list[str], status: int, pair: tuple[str, str]) -> None:
    assert run(["compare", *pair, *arguments]) == status


def test_an_unreadable_side_is_one_line(
    tmp_path: Path, pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("<html>")
    assert run(["compare", pair[0], str(bad)]) == 3
    err = capsys.readouterr().err
    assert str(bad) in err
    assert err.count("\n") == 1


def test_no_framework_and_no_tables_are_imported(pair: tuple[str, str]) -> None:
    code = (
        "import sys; from advisor.cli.main import run\n"
        f"status = run(['compare', *{pair!r}])\n"
        "heavy = {'torch', 'triton', 'dash', 'plotly', 'pandas', 'numpy'} & set(sys.modules)\n"
        "sys.exit(9 if heavy else status)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode
        == 0
    )
