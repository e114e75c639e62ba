"""Patches of recorded runs: what they hold, that they work without the run, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="kernels need triton")

import advisor
from advisor.cli.main import run as command
from advisor.errors import InvalidRecordError, UsageError
from advisor.model.actions import ActionKind, facts_of
from advisor.model.applied import ActionVerdict, Applied, SetVerdict
from advisor.pipeline.patch import patch_files, write_folder
from advisor.store import RunDirectory, RunStore
from tests.builders.run import sample_run
from tests.pipeline.test_api import network

RUNS = Path(__file__).resolve().parents[2] / "sample_traces" / "runs"
TRAIN, PREFILL = RUNS / "llama_train_compile", RUNS / "llama_prefill_compile"
LOSS = "4f22758d06fc156e"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    torch.compiler.reset()


@pytest.fixture
def run_with(tmp_path: Path) -> Callable[..., RunDirectory]:
    """A run in which some actions were kept and no kernel."""

    def make(*kinds: ActionKind) -> RunDirectory:
        run = sample_run(RunStore(tmp_path / "runs"), applied=False)
        verdicts = tuple(
            ActionVerdict(
                kind=kind, title=facts_of(kind).title, verdict="kept", reason="measured",
                by_hand=facts_of(kind).by_hand,
            )
            for kind in kinds
        )  # fmt: skip
        result = SetVerdict(verdict="kept", reason="measured", plans=(), actions=kinds)
        run.write_applied(
            Applied(
                created="now", device="a GPU", versions={}, plans=(), actions=verdicts, set=result
            )
        )
        return run

    return make


def test_a_folder_and_an_archive_hold_the_same_and_always_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, archive = tmp_path / "fusion_patch", tmp_path / "p.zip"
    assert command(["patch", str(TRAIN), "-o", str(folder)]) == 0
    assert "1 kernel" in capsys.readouterr().out
    assert command(["patch", str(TRAIN), "-o", str(archive)]) == 0
    first = archive.read_bytes()
    assert command(["patch", str(TRAIN), "-o", str(archive)]) == 0
    assert archive.read_bytes() == first
    with zipfile.ZipFile(archive) as opened:
        packed = {name: opened.read(name) for name in opened.namelist()}
    written = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert packed == written
    assert sorted(packed) == [
        "fusion_patch/README.md", "fusion_patch/__init__.py", "fusion_patch/applied.json",
        f"fusion_patch/kernels/{LOSS}.py", f"fusion_patch/plans/{LOSS}.json",
    ]  # fmt: skip


def test_the_readme_says_what_was_measured_on_what() -> None:
    text = patch_files(RunDirectory.at(TRAIN))["README.md"].decode()
    assert "On NVIDIA H200, 2026-11-29" in text
    assert "torch 2.11.0" in text
    assert "| step, against eager | 17.8 ms | 11.9 ms | 1.502× |" in text
    assert "its figures are as it states" in text, "this machine did not make it"
    assert "no source diff: it is part of the backward pass" in text


def test_another_folder_is_imported_by_its_own_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["patch", str(TRAIN), "-o", str(tmp_path / "ours")]) == 0
    assert "used by `import ours`" in " ".join(capsys.readouterr().out.split())
    for name in ("README.md", "__init__.py"):
        text = (tmp_path / "ours" / name).read_text()
        assert "ours.apply(model)" in text
        assert "fusion_patch" not in text
    assert command(["patch", str(TRAIN), "-o", str(tmp_path / "my-patch")]) == 2
    assert "Python cannot import a folder of that name" in capsys.readouterr().err


def test_it_needs_no_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(TRAIN, run)
    write_folder(patch_files(RunDirectory.at(run)), tmp_path / "fusion_patch")
    shutil.rmtree(run)
    code = """
import fusion_patch, torch
step = fusion_patch.apply(torch.nn.Linear(4, 4))
print(step.recipe.actions, [kernel.plan.id for kernel in step.recipe.kernels])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"() ['{LOSS}']"), done.stderr


def test_what_kept_actions_alone_has_no_kernel_and_runs_as_the_run_does(
    run_with: Callable[..., RunDirectory], tmp_path: Path
) -> None:
    run = run_with("fold_batch_norm", "channels_last")
    files = patch_files(run)
    assert sorted(files) == ["README.md", "__init__.py", "applied.json"]
    text = files["README.md"].decode()
    assert "No kernel is in it" in text
    assert "By hand: torch.nn.utils.fusion.fuse_conv_bn_eval" in text
    write_folder(files, tmp_path / "fusion_patch")
    shutil.rmtree(run.path)
    module, x = network().eval(), torch.randn(2, 3, 16, 16)
    expected = module(x)
    with torch.no_grad():
        ours = advisor.load(tmp_path / "fusion_patch").apply(module)
        torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-5)
    assert not any(isinstance(item, nn.BatchNorm2d) for item in module.modules())


def test_a_part_of_it_makes_no_claim_for_the_whole() -> None:
    run = RunDirectory.at(PREFILL)
    applied = run.applied()
    assert applied is not None
    one = applied.set.plans[1]
    files = patch_files(run, [one])
    assert [name for name in files if name.startswith("kernels/")] == [f"kernels/{one}.py"]
    text = files["README.md"].decode()
    assert "this part alone was not measured" in text
    assert "against eager" not in text
    assert patch_files(run, applied.set.plans) == patch_files(run)
    with pytest.raises(UsageError, match="nothing of nonsense is kept") as refused:
        patch_files(run, ["nonsense"])
    assert one in refused.value.remedy


def test_a_finding_names_what_was_kept_for_it() -> None:
    run = RunDirectory.at(PREFILL)
    named = {f.id: f.plan_id for f in run.report().findings}
    applied = run.applied()
    assert applied is not None
    finding = next(name for name, plan in named.items() if plan in applied.set.plans)
    assert f"plans/{named[finding]}.json" in patch_files(run, [finding])


def test_where_nothing_was_kept_there_is_no_patch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["patch", str(RUNS / "llama_train_eager"), "-o", str(tmp_path / "p")]) == 2
    assert "nothing is kept in this run, so there is no patch" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match="the folder is not empty"):
        write_folder(patch_files(RunDirectory.at(TRAIN)), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_an_edited_patch_is_refused(tmp_path: Path) -> None:
    write_folder(patch_files(RunDirectory.at(TRAIN)), tmp_path / "p")
    plan = tmp_path / "p" / "plans" / f"{LOSS}.json"
    plan.write_text(plan.read_text().replace('"op": "mul"', '"op": "__import__"'))
    with pytest.raises(InvalidRecordError):
        advisor.load(tmp_path / "p")


def test_the_readme_aligns_its_comments_and_installs_from_a_checkout() -> None:
    """No index serves the tool; the comments were apart under any name but the usual one."""
    text = patch_files(RunDirectory.at(PREFILL), package="sp")["README.md"].decode()
    uses = [line for line in text.splitlines() if "  # " in line]
    assert len(uses) == 3
    assert len({line.index("  # ") for line in uses}) == 1
    assert "pip install -e '.[gpu]'` in its checkout" in text
