"""The whole line without a GPU: profile, apply, revert, and everything that must be refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from advisor.cli.main import run as command
from advisor.codegen import render
from advisor.errors import InvalidRecordError, RefusedError, UsageError
from advisor.model import base
from advisor.model.actions import facts_of
from advisor.model.configs import default_config
from advisor.model.plan import FusionPlan
from advisor.pipeline.apply import apply_run
from advisor.pipeline.backend import fusion_advisor
from advisor.pipeline.candidates import SHOWN_GPUS
from advisor.pipeline.verdicts import ACTION_NOT_TRIED
from advisor.store import RunDirectory, sign
from advisor.store.progress import read_progress
from collectors.live.workload import load_workload
from tests.builders.child import interruptible

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("started")

Copied = Callable[[str], RunDirectory]


def norm_of(run: RunDirectory) -> FusionPlan:
    return next(plan for plan in map(run.plan, run.plan_ids()) if len(plan.sites) == 2)


def leftovers(run: RunDirectory) -> list[str]:
    return [path.name for path in run.path.rglob("*") if path.name.endswith(".tmp")]


def quiet(*_: object, **__: object) -> None:
    """Progress nobody reads."""


def test_profile_finds_both_programs_and_says_what_it_rests_on(profiled: RunDirectory) -> None:
    report = profiled.report()
    assert report.workload.target.endswith("workload.py:block")
    assert report.workload.mode == "eager"
    assert not report.hardware.present
    assert {warning.code for warning in report.warnings} >= {"no-gpu", "gpu-assumed"}
    assert "step_ns" not in report.metrics, "nothing was timed"
    assert sorted(plan.sites for plan in report.plans)[-2:] == [1, 2]
    assert len(report.findings) == 2
    listed = {i for finding in report.findings for a in finding.alternatives for i in a.plan_ids}
    assert listed == set(profiled.plan_ids()) == {plan.id for plan in report.plans}
    assert all(finding.exposed_saving_ns is None for finding in report.findings)
    assert not profiled.trace_path.exists()
    norm = norm_of(profiled)
    assert [site.location.module for site in norm.sites] == ["first", "second"]
    assert all((site.location.file or "").endswith("workload.py") for site in norm.sites)
    assert norm.prediction is not None
    assert norm.prediction.saving_ns.mid > 0
    for plan_id in profiled.plan_ids():
        plan = profiled.plan(plan_id)
        scheme = default_config(plan, plan.sites[0]).scheme
        assert profiled.kernel(plan_id) == render(plan, scheme).text
    assert leftovers(profiled) == []


def test_apply_proves_everything_but_time(applied: RunDirectory) -> None:
    record = applied.applied()
    assert record is not None
    record.check()
    assert record.device == "no GPU"
    assert (record.set.verdict, record.set.plans) == ("not_measured", ())
    assert "needs a GPU" in record.set.reason
    assert {verdict.plan_id for verdict in record.plans} == set(applied.plan_ids())
    for verdict in record.plans:
        assert verdict.verdict == "not_measured"
        assert verdict.sites_swapped == verdict.sites_expected
        assert verdict.numerics is not None
        assert verdict.numerics.passed
        assert verdict.numerics.executed_on == "interpreter"
        assert len(verdict.numerics.cases) >= 10
        assert [row.gpu for row in verdict.resources] == list(SHOWN_GPUS)
        assert all(row.error is None and row.registers for row in verdict.resources)
        assert verdict.measured is None
        assert verdict.region is None
        assert verdict.predicted_ns is not None
    events, _ = read_progress(applied.progress_path)
    assert events[-1].stage == "done"
    assert events[-1].state == "done"
    assert {"load", "generate", "resources", "verify", "rewrite"} <= {e.stage for e in events}
    assert leftovers(applied) == []


def test_revert_forgets_what_was_applied(
    applied: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(applied.path, tmp_path / "run")
    run = RunDirectory.at(tmp_path / "run")
    capsys.readouterr()
    assert command(["revert", str(run.path)]) == 2, "a copy keeps the record it came with"
    assert "the run cannot be reverted: " in capsys.readouterr().err
    assert run.applied() is not None
    sign(run)
    capsys.readouterr()
    assert command(["revert", str(run.path)]) == 0
    assert run.applied() is None
    assert "reverted" in capsys.readouterr().out
    assert command(["revert", str(run.path)]) == 0
    assert "nothing was applied" in capsys.readouterr().out


def test_a_planted_wrong_constant_takes_out_that_plan_alone(copied: Copied) -> None:
    run = copied("planted")
    norm = norm_of(run)
    ops = tuple(
        msgspec.structs.replace(op, args=tuple(1.01e-6 if a == 1e-6 else a for a in op.args))
        for op in norm.ops
    )
    assert ops != norm.ops
    run.write_plan(msgspec.structs.replace(norm, ops=ops))
    sign(run)
    record = apply_run(run, (), quiet)
    assert run.applied() == record
    verdicts = {verdict.plan_id: verdict for verdict in record.plans}
    planted = verdicts.pop(norm.id)
    assert planted.verdict == "refused"
    assert "differs from the region it replaces" in planted.reason
    assert planted.numerics is None
    assert planted.sites_swapped is None
    for verdict in verdicts.values():
        assert verdict.verdict == "not_measured"
        assert verdict.numerics is not None
        assert verdict.numerics.passed


def test_a_copied_run_is_refused(
    profiled: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(profiled.path, tmp_path / "copy")
    run = RunDirectory.at(tmp_path / "copy")
    with pytest.raises(RefusedError, match="copied, moved or edited"):
        apply_run(run, (), quiet)
    assert command(["apply", str(run.path)]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert run.applied() is None


def test_an_edited_plan_is_refused(copied: Copied) -> None:
    run = copied("edited")
    run.write_plan(msgspec.structs.replace(norm_of(run), title="edited"))
    with pytest.raises(RefusedError, match="was edited since it was signed"):
        apply_run(run, (), quiet)


HOSTILE = {
    "unknown op": lambda plan: plan["ops"][0].update(op="__import__"),
    "code as a name": lambda plan: plan["ops"][0].update(name="v0 = exec('x')"),
    "code as a literal": lambda plan: plan["ops"][0].update(args=["__import__('os')"]),
    "unknown dtype": lambda plan: plan["inputs"][0].update(dtype="float32); exec("),
    "code as an attribute": lambda plan: plan["ops"][0].update(attributes={"dtype": "x); exec("}),
    "unknown field": lambda plan: plan.update(source="import os"),
    "another id": lambda plan: plan.update(id="f" * 16),
    "path as an id": lambda plan: plan.update(id="../../../../x"),
    "endless size": lambda plan: plan["sites"][0].update(columns=2**62),
    "negative size": lambda plan: plan["sites"][0].update(row_sizes=[-1]),
    "no number": lambda plan: plan["ops"][0].update(args=[None]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_plan_writes_nothing(what: str, copied: Copied) -> None:
    run = planted(copied, what)
    before = {p: p.read_bytes() for p in (run.path / "kernels").iterdir()}
    with pytest.raises(InvalidRecordError):
        apply_run(run, (), quiet)
    assert run.applied() is None
    assert {p: p.read_bytes() for p in (run.path / "kernels").iterdir()} == before
    assert not (ROOT / "x").exists()


def test_a_hostile_plan_is_one_line(copied: Copied, capsys: pytest.CaptureFixture[str]) -> None:
    run = planted(copied, "code as a name")
    assert command(["apply", str(run.path)]) == 3
    assert len(capsys.readouterr().err.strip().splitlines()[-1]) < 400


def planted(copied: Copied, what: str) -> RunDirectory:
    """A signed run, one plan of which is hostile."""
    run = copied("hostile")
    plan_id = norm_of(run).id
    path = run.plans_path / f"{plan_id}.json"
    data = json.loads(path.read_bytes())
    HOSTILE[what](data)  # type: ignore[no-untyped-call]
    path.write_text(json.dumps(data))
    sign(run)
    return run


def test_only_takes_findings_and_plans_and_nothing_else(
    profiled: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="no finding or plan"):
        apply_run(profiled, ("no_such_finding",), quiet)
    assert command(["apply", str(profiled.path), "--only", "no_such"]) == 2
    assert "'no_such' is no finding or plan of this run" in capsys.readouterr().err


def test_only_one_finding_leaves_the_others_alone(copied: Copied) -> None:
    run = copied("only")
    finding = next(f for f in run.report().findings if f.plan_id == norm_of(run).id)
    stages: list[str] = []
    record = apply_run(run, (finding.id,), lambda stage, *_, **__: stages.append(stage))
    assert [verdict.plan_id for verdict in record.plans] == [finding.plan_id]
    assert stages[0] == "load"
    assert stages[-1] == "done"


@pytest.mark.parametrize(
    ("factory", "words"),
    [("wrong", "the factory returned something else"), ("absent", "has no factory 'absent'")],
)
def test_what_makes_no_workload_is_a_mistake_of_the_user(
    factory: str, words: str, places: Path
) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match=words) as caught:
        load_workload(f"{places / 'workload.py'}:{factory}", torch.device("cpu"))
    assert caught.value.exit_code == 2
    assert "\n" not in caught.value.line()


def test_a_workload_that_fails_is_one_line(
    places: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert command(["profile", f"{places / 'workload.py'}:broken", "--out", str(out)]) == 3
    lines = capsys.readouterr().err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert errors == lines[-1:]
    assert "the factory failed: ValueError: no weights" in errors[0]
    assert not out.exists(), "the directory that it made is gone"


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is a POSIX signal here")
def test_ctrl_c_leaves_whole_files(copied: Copied) -> None:
    run = copied("interrupted")
    argv = [sys.executable, "-m", "advisor.cli.main", "apply", str(run.path), "--progress", "json"]
    with interruptible():
        child = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
    assert child.stdout is not None
    for line in child.stdout:
        if json.loads(line)["stage"] == "verify":
            child.send_signal(signal.SIGINT)
            break
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert errors.strip().splitlines()[-1] == "interrupted"
    assert run.applied() is None
    assert leftovers(run) == []
    events, _ = read_progress(run.progress_path)
    assert (events[-1].stage, events[-1].state) == ("done", "cancelled")
    for path in run.plans_path.iterdir():
        base.load(path, FusionPlan)
    with run.lock():
        pass


def test_a_relative_target_is_found_from_any_directory(
    places: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(places / "workload.py", home / "moved_workload.py")
    monkeypatch.chdir(home)
    assert command(["profile", "moved_workload.py:block", "--out", "run"]) == 0
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.at(home / "run")
    before = run.progress_path.read_bytes()
    assert command(["apply", "home/run", "--only", "row-program-nope"]) == 2
    assert run.progress_path.read_bytes() == before, "nothing was begun"
    assert command(["apply", "home/run", "--budget", "1s"]) == 0, "its workload was loaded"
    before = run.progress_path.read_bytes()
    capsys.readouterr()
    (home / "moved_workload.py").unlink()
    assert command(["apply", "home/run"]) == 2
    errors = capsys.readouterr().err
    assert f"{home / 'moved_workload.py'}: the file of the workload is missing" in errors
    assert errors.count("\n") == 1
    assert run.progress_path.read_bytes() == before


def test_a_failed_apply_says_so_once(
    copied: Copied, places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied("broken")
    run.write_info(msgspec.structs.replace(run.info(), target=f"{places / 'workload.py'}:broken"))
    sign(run)
    assert command(["apply", str(run.path)]) == 3
    assert capsys.readouterr().err.count("no weights") == 1
    events, _ = read_progress(run.progress_path)
    assert (events[-1].stage, events[-1].state) == ("done", "failed")
    assert "no weights" in events[-1].message


def test_the_backend_needs_a_run_with_plans_kept(applied: RunDirectory, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    with pytest.raises(UsageError, match="needs a run"):
        fusion_advisor(graph, [])
    with pytest.raises(UsageError, match="needs a run"):
        fusion_advisor(graph, [], mode="reduce-overhead", options={"max_autotune": True})
    with pytest.raises(UsageError, match="not a run directory"):
        fusion_advisor(graph, [], options={"run": str(tmp_path / "none")})
    with pytest.raises(UsageError, match="nothing is kept in this run"):
        fusion_advisor(graph, [], options={"run": str(applied.path)})
    compiled = torch.compile(torch.nn.Linear(2, 2), backend="fusion_advisor")
    with pytest.raises(Exception, match="needs a run"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("asked", ["cuda_graph", "autotune", "unfuse"])
def test_what_only_a_gpu_can_try_is_refused_for_that_reason_without_one(
    asked: str, copied: Copied, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied("asked")
    assert command(["apply", str(run.path), "--only", asked]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"cannot be tried here: {facts_of(asked).title}: " in error
    assert "on a GPU only, and there is none" in error
    assert run.report().hardware.name in error
    assert "nothing to apply" not in error
    assert run.applied() is None


def test_what_can_be_looked_for_without_a_gpu_is_looked_for_when_it_is_asked_for(
    copied: Copied, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied("asked")
    assert command(["apply", str(run.path), "--only", "chunked_loss", "--only", "cuda_graph"]) == 0
    record = run.applied()
    assert record is not None
    found = {verdict.kind: verdict for verdict in record.actions}
    assert found["chunked_loss"].verdict == "refused"
    assert found["chunked_loss"].reason.startswith("no loss of a projection is in the graphs")
    assert (found["cuda_graph"].verdict, found["cuda_graph"].reason) == (
        "not_measured", ACTION_NOT_TRIED,
    )  # fmt: skip
    assert (record.set.verdict, record.set.reason) == ("not_measured", ACTION_NOT_TRIED)
    norm = norm_of(run)
    assert command(["apply", str(run.path), "--only", norm.id]) == 0
    again = run.applied()
    assert again is not None
    assert {verdict.kind for verdict in again.actions} == {"chunked_loss", "cuda_graph"}
    assert again.plans[0].numerics is not None
