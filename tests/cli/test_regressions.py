"""What lost between two runs, as `compare` prints it and `gate` fails on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from advisor.cli.main import run
from advisor.model.base import encode
from advisor.model.overfusion import KernelCode
from advisor.model.step_record import Launch, StepRecord, Tensor
from advisor.store import RunDirectory
from tests.builders.trace import SHARED
from tests.model import builders

H200 = SHARED / "traces" / "h200"

TENSOR = Tensor(shape=(4_096, 4_096), dtype="float")
TIMES = (99_000, 99_500, 100_000, 100_500, 101_000)
LIMITS = '[[finding]]\nkind = "regression"\nmax = 0\n'


def kernel(name: str, times: int) -> Launch:
    """A kernel that takes so many times 100 us."""
    own = tuple(times * time for time in TIMES)
    return Launch(
        name=name, role="pointwise", library="unknown", op=f"my::{name}", operands=(TENSOR,) * 2,
        stream=7, grid=(4_096, 1, 1), threads=128, registers=40, time_ns=own[2], times_ns=own,
    )  # fmt: skip


def made(path: Path, *kernels: Launch, codes: tuple[KernelCode, ...] = ()) -> str:
    """A run whose step runs these kernels in turn."""
    whole = tuple(map(sum, zip(*(one.times_ns for one in kernels), strict=True)))
    starts = [sum(x.time_ns for x in kernels[:place]) for place in range(len(kernels))]
    placed = [replace(x, start_ns=start) for x, start in zip(kernels, starts, strict=True)]
    stored = RunDirectory.create_at(path)
    stored.write_report(builders.captured())
    stored.write_step(
        StepRecord(launches=tuple(placed), busy_ns=whole, span_ns=whole, gpu="h200", codes=codes)
    )
    return str(path)


@pytest.fixture
def limits(tmp_path: Path) -> Path:
    """A gate that allows no regression."""
    path = tmp_path / "gates.toml"
    path.write_text(LIMITS)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """Two kernels of 100 us, and one of 500 us in their place."""
    before = made(tmp_path / "before", kernel("first", 1), kernel("second", 1))
    return before, made(tmp_path / "after", kernel("fused", 5))


@pytest.mark.skipif(not H200.exists(), reason=f"no {H200}")
def test_gaps_that_the_profiler_stretched_are_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiled, the UNet's step takes 1.91 ms instead of 2.29; profiled, 3.57 instead of 2.51."""
    for kind in ("eager", "inductor"):
        trace = H200 / f"unet.{kind}.json.gz"
        assert run(["analyze", str(trace), "--out", str(tmp_path / kind)]) == 0
    capsys.readouterr()
    assert run(["compare", str(tmp_path / "eager"), str(tmp_path / "inductor")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "While profiled, from the first activity of a step to its last: 2.51 ms before" in text
    assert "without a profiler they may have changed the other way" in text


def test_compare_says_what_lost_and_what_the_change_is_made_of(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", *runs]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "fused takes 2.50 times as long as what it replaced (measured)" in text
    assert "cannot tell the cause" in text
    assert "What the change is made of" in text
    assert run(["compare", *runs, "--format", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    shares = [share["change_ns"] for share in body["bisection"]["shares"]]
    assert sum(shares) == body["bisection"]["after_ns"] - body["bisection"]["before_ns"] == 300_000


def test_gate_fails_on_what_lost_against_the_baseline(
    runs: tuple[str, str], limits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = runs
    assert run(["gate", before, "--config", str(limits)]) == 0
    assert run(["gate", after, "--config", str(limits), "--baseline", before]) == 1
    assert "1 found, at most 0 allowed" in " ".join(capsys.readouterr().out.split())
    assert run(["gate", before, "--config", str(limits), "--baseline", after]) == 0


def test_gate_says_where_nobody_can_tell_what_lost(
    runs: tuple[str, str], limits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A baseline whose step is gone: none found is not none there."""
    before, after = runs
    (Path(before) / "step.json").unlink()
    gate = ["gate", after, "--config", str(limits), "--baseline", before]
    assert run(gate) == 4
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("Gate undecided")
    assert "of 4 checks 1 unknown" in text
    assert "0 found, at most 0 allowed; whether fused kernels lost against the baseline" in text
    assert "cannot be told" in text
    assert "--allow-unknown" in text
    assert run([*gate, "--allow-unknown"]) == 0
    assert capsys.readouterr().out.startswith("Gate passed as far as is known")
    limits.write_text(LIMITS + "[comparison]\nallow_unknown = true\n")
    assert run(gate) == 0
    # What is known to fail fails, whatever else is unknown.
    limits.write_text(LIMITS + '[[metric]]\nname = "step_ns"\nmax = 1\n')
    assert run(gate) == run([*gate, "--allow-unknown"]) == 1


def test_on_another_gpu_a_longer_time_is_no_regression(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = RunDirectory.at(Path(runs[1]))
    other = stored.report()
    stored.write_report(replace(other, hardware=replace(other.hardware, key="a100")))
    assert run(["compare", *runs, "--accept", "gpu", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["regressions"] == []
    assert "the two differ in gpu" in found["unpaired"]
    assert run(["gate", runs[1], "--baseline", runs[0], "--json"]) == 3
    assert "over-fusion" not in capsys.readouterr().out


def test_reports_by_themselves_say_why_nothing_is_paired(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"{path}/report.json" for path in runs]
    assert run(["compare", *files]) == 0
    assert "no step of its launches is kept" in " ".join(capsys.readouterr().out.split())
    # A run without a GPU has no launches to keep.
    Path(runs[0], "step.json").unlink()
    assert run(["compare", *runs]) == 0
    assert "no launches of a GPU were recorded in it" in " ".join(capsys.readouterr().out.split())
    # A run that was copied without its trace has had them.
    stored = RunDirectory.at(Path(runs[0]))
    report = stored.report()
    launches = replace(report.metrics["step_ns"], value=3, unit="count")
    metrics = {**report.metrics, "kernel_launches_per_step": launches}
    stored.write_report(replace(report, metrics=metrics))
    assert run(["compare", *runs]) == 0
    assert "the trace is not in the directory" in " ".join(capsys.readouterr().out.split())


def test_compare_says_where_no_fused_kernel_lost(
    runs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", *reversed(runs)]) == 0
    assert "No fused kernel is found to have lost" in " ".join(capsys.readouterr().out.split())
    assert run(["compare", *runs]) == 0
    assert "No fused kernel is found to have lost" not in capsys.readouterr().out


@pytest.mark.parametrize(("slower", "raised"), [(1.2, True), (1.02, False), (0.7, False)])
def test_without_launches_the_compiled_step_is_judged_as_a_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], slower: float, raised: bool
) -> None:
    """As on a CPU: a compiler's fusions against eager, by the clean steps alone."""
    report = builders.report()
    step_ns = report.metrics["step_ns"]
    for mode, times in (("eager", 1.0), ("compile", slower)):
        own = replace(
            step_ns,
            value=round(times * 10**7),
            per_step=tuple(round(times * t * 100) for t in TIMES),
        )
        changed = replace(
            report,
            workload=replace(report.workload, mode=mode),
            metrics={**report.metrics, "step_ns": own},
        )
        (tmp_path / f"{mode}.json").write_bytes(encode(changed))
    files = [str(tmp_path / f"{mode}.json") for mode in ("eager", "compile")]
    assert run(["compare", *files, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["regressions"]
    assert [finding["kind"] for finding in found] == ["regression"] * raised
