"""`generate`, `resources` and `cliff` on recorded plans: files, tables, JSON, errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("triton", reason="compiling needs triton")

from advisor.cli.main import run as command
from advisor.cli.sized import launch_of
from advisor.errors import UsageError
from advisor.hardware.gpus import gpu_by_key
from advisor.model.applied import KernelResources
from advisor.model.base import decode, load
from advisor.model.launch import LaunchConfig
from advisor.model.plan import FusionPlan
from advisor.model.resources import Cliff, ResourceTable
from advisor.pipeline.cliff import _suited
from advisor.pipeline.sizing import in_flight_bytes, judged
from advisor.report.words import named
from advisor.store import RunDirectory
from tests.builders.plan import rms_norm

RUNS = Path(__file__).resolve().parents[2] / "sample_traces" / "runs"
EAGER, TRAIN = RUNS / "llama_prefill_eager", RUNS / "llama_train_compile"
NORM = EAGER / "plans" / "3fe649bf68e9e1d6.json"
LOSS = TRAIN / "plans" / "9828151915a0ecfc.json"
KERNELS = Path(__file__).resolve().parents[1] / "verify" / "kernels.txt"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def output(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert command([str(argument) for argument in arguments]) == status
    found = capsys.readouterr()
    return found.out if status == 0 else found.err


# --- generate -------------------------------------------------------------------------------------


def test_a_run_gives_a_file_for_each_kernel(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = output(capsys, "generate", EAGER, "-o", tmp_path / "out")
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == sorted(
        RunDirectory.at(EAGER).plan_ids()
    )
    assert "fastest of those timed on NVIDIA H200" in " ".join(text.split())
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    output(capsys, "generate", EAGER, "-o", tmp_path / "again")
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}


def test_one_plan_by_itself_by_its_finding_and_for_a_gpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output(capsys, "generate", NORM, "-o", tmp_path, "--gpu", "h200", "--custom-op")
    text = (tmp_path / "3fe649bf68e9e1d6.py").read_text()
    assert "Launched as rows=2 warps=8: fastest of those timed on NVIDIA H200" in text
    assert "torch.library.triton_op" in text
    softmax = "attention-written-out-03f39030"
    output(capsys, "generate", EAGER, "--only", softmax, "-o", tmp_path / "two")
    assert [path.stem for path in (tmp_path / "two").iterdir()] == ["a0b8f1c45a543ba4"]


def test_a_finding_is_named_by_its_number_as_for_apply_and_explain(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    numbers = {
        found.id: name
        for name, found in named(RunDirectory.at(EAGER).report()).items()
        if name.isdecimal()
    }
    softmax = "attention-written-out-03f39030"
    output(capsys, "generate", EAGER, "--only", numbers[softmax], "-o", tmp_path / "files")
    assert [path.stem for path in (tmp_path / "files").iterdir()] == ["a0b8f1c45a543ba4"]
    output(capsys, "patch", EAGER, "--only", numbers[softmax], "-o", tmp_path / "patch")
    assert [path.stem for path in (tmp_path / "patch").glob("plans/*")] == ["a0b8f1c45a543ba4"]
    none = output(capsys, "resources", EAGER, "--only", numbers["launch-bound"], status=2)
    assert "launch-bound has no plan: no kernel answers it. what to do: " in none


def test_a_plan_of_a_run_is_launched_as_the_run_measured_it_however_it_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """By its file it was the model's first choice, "not timed"."""
    by_run = output(capsys, "generate", EAGER, "--only", NORM.stem, "-o", tmp_path / "one")
    by_file = output(capsys, "generate", NORM, "-o", tmp_path / "two")
    assert "fastest of those timed on" in by_file
    assert by_file.replace("two", "one") == by_run
    name = f"{NORM.stem}.py"
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    (tmp_path / "alone.json").write_bytes(NORM.read_bytes())
    alone = output(capsys, "generate", tmp_path / "alone.json", "-o", tmp_path / "three")
    assert "not timed" in alone


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((EAGER, "--only", "3fe649bf68e9e1d0"), 2, "near: 3fe649bf68e9e1d6"),
        ((NORM, "--gpu", "h2000"), 2, "near: h200"),
        ((NORM, "-o", "/proc/here"), 3, "cannot write"),
        ((EAGER / "report.json",), 3, "not a valid FusionPlan"),
        ((EAGER / "nothing.json",), 3, "cannot read"),
    ],
)
def test_generate_says_what_is_wrong(
    arguments: tuple[object, ...], status: int, words: str, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert words in output(capsys, "generate", *arguments, status=status)
    assert not (tmp_path / "kernels").exists()


def test_a_hostile_plan_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = json.loads(NORM.read_text())
    plan["ops"][1]["op"] = "exec"
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    text = output(capsys, "generate", tmp_path / "plan.json", "-o", tmp_path / "out", status=3)
    assert "unknown op" in text
    assert not (tmp_path / "out").exists()


# --- resources ------------------------------------------------------------------------------------


def test_a_plan_on_three_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("resources", NORM, "--gpu", "h200,mi300x", "--gpu", "a100", "--top", 2)
    table = decode(output(capsys, *arguments, "--json").encode(), ResourceTable)
    assert {kernel.resources.gpu for kernel in table.kernels} == {"h200", "mi300x", "a100"}
    for gpu in ("h200", "mi300x", "a100"):
        rows = [kernel for kernel in table.kernels if kernel.resources.gpu == gpu]
        assert sum(kernel.first for kernel in rows) == 1
        assert all(kernel.verdict == "use" for kernel in rows), rows
        assert all(kernel.resources.assembler for kernel in rows)
    measured = next(k for k in table.kernels if k.first and k.resources.gpu == "h200")
    assert measured.resources.config == "rows=2 warps=8", "what was measured goes first"
    text = output(capsys, *arguments)
    assert "use first" in text
    assert "ptxas" in text


def test_what_spills_is_to_be_avoided(capsys: pytest.CaptureFixture[str]) -> None:
    found = output(capsys, "resources", LOSS, "--gpu", "h200", "--json")
    table = decode(found.encode(), ResourceTable)
    avoided = {k.resources.config: k.why for k in table.kernels if k.verdict == "avoid"}
    assert "spills" in avoided["rows=1 warps=32"]
    assert any(kernel.first for kernel in table.kernels)


def test_a_generated_file_knows_its_own_types(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output(capsys, "generate", NORM, "-o", tmp_path, "--gpu", "h200")
    path = tmp_path / "3fe649bf68e9e1d6.py"
    of_file = decode(
        output(capsys, "resources", path, "--gpu", "h200", "--json").encode(), ResourceTable
    )
    of_plan = decode(
        output(capsys, "resources", NORM, "--gpu", "h200", "--top", 1, "--json").encode(),
        ResourceTable,
    )
    (kernel,) = of_file.kernels
    same = next(k for k in of_plan.kernels if k.resources.config == "rows=2 warps=8")
    assert kernel.resources.registers == same.resources.registers
    assert kernel.resources.shared_bytes == same.resources.shared_bytes


def test_a_file_of_somebody_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = Path(shutil.copy(KERNELS, tmp_path / "kernels.py"))
    row = ("resources", path, "--gpu", "h200", "--kernel", "row", "--json", "--signature")
    found = output(capsys, *row, "*fp16:16, *fp16:16, i32:16, i32:16, 4096", "--num-warps", "8")
    (kernel,) = decode(found.encode(), ResourceTable).kernels
    assert kernel.verdict == "use"
    assert kernel.resources.threads == 256
    # A configuration of autotune fixes the constant that the signature leaves out.
    tuned = ("resources", path, "--gpu", "h200", "--kernel", "tuned", "--json", "--signature")
    (kernel,) = decode(output(capsys, *tuned, "*fp32:16, i64").encode(), ResourceTable).kernels
    assert kernel.resources.config.startswith("BLOCK=1024")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "cannot tell what x, y, stride, N, BLOCK of row are"),
        (("--kernel", "none"), "there are: row, overfused, tuned"),
        (("--signature", "*fp16"), "choose by --kernel: row, overfused, tuned"),
        (("--kernel", "row", "--signature", "*fp16"), "an item for each of (x, y, stride, "),
        (("--kernel", "row", "--signature", "a, b, c, d, e"), "neither a type nor a constant"),
        (("--kernel", "row", "--gpu", ","), "no GPU is named"),
    ],
)  # fmt: skip
def test_what_a_file_needs_is_said(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = shutil.copy(KERNELS, tmp_path / "kernels.py")
    gpus = () if "--gpu" in options else ("--gpu", "h200")
    assert words in output(capsys, "resources", path, *gpus, *options, status=2)


def test_an_option_that_would_change_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(KERNELS.read_text())
    for option in (("--num-warps", 4), ("--signature", "*fp16"), ("--kernel", "row")):
        text = output(capsys, "resources", NORM, *option, status=2)
        assert f"{option[0]} has no meaning for a plan" in text
    assert "--top has no meaning" in output(capsys, "resources", path, "--top", 1, status=2)


def test_files_without_kernels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("x = 1\n")
    assert "no Triton kernel" in output(capsys, "resources", path, status=2)
    path.write_text("def (\n")
    assert "not a Python file" in output(capsys, "resources", path, status=3)


def test_a_target_that_nothing_here_compiles_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tmp_path / "none"))
    text = " ".join(output(capsys, "resources", NORM, "--gpu", "h200", "--top", 1).split())
    assert "h200: cannot be compiled here: there is no assembler at" in text


@pytest.mark.parametrize(
    ("columns", "config", "tiles"),
    [
        (8192, LaunchConfig(scheme="looped", block_columns=2048), 1),
        (8192, LaunchConfig(scheme="looped", block_columns=2048, unroll=2), 2),
        (8192, LaunchConfig(scheme="looped", block_columns=2048, num_stages=3), 3),
        (2048, LaunchConfig(scheme="looped", block_columns=2048, unroll=2), 1),
        (8192, LaunchConfig(scheme="split", splits=4, block_columns=2048, unroll=4), 1),
    ],
)
def test_the_blocks_of_a_turn_are_in_flight_together(
    columns: int, config: LaunchConfig, tiles: int
) -> None:
    """As many as a row, or the part of a program, has."""
    gpu, plan = gpu_by_key("h200"), rms_norm(columns=columns)
    row = KernelResources(gpu=gpu.key, config=config.label(), threads=128, occupancy=0.0625)
    assert in_flight_bytes(row, gpu, plan, config) == tiles * 2048 * 2


def test_the_first_ops_of_a_loop_take_as_many_blocks_a_turn() -> None:
    """Where they have no such form, the nearest has the same loop."""
    config = LaunchConfig(scheme="online", block_columns=32, unroll=2)
    assert _suited(rms_norm(), config).label() == "looped cols=32 warps=4 unroll=2"


# --- cliff ----------------------------------------------------------------------------------------


def test_the_op_that_is_one_too_many(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """32,000 columns in the registers of 32 warps: the last addition spills."""
    held = ("cliff", LOSS, "--launch", "rows=1 warps=32", "--split", tmp_path)
    line = output(capsys, *held, "--json")
    assert line.count("\n") == 1, "one record a line"
    cliff = decode(line.encode(), Cliff)
    assert [point.ops for point in cliff.points] == list(range(1, 16))
    assert cliff.falls_at == 15
    last = cliff.points[-1]
    assert (last.op, last.verdict) == ("v14 = in0 + v13", "avoid")
    assert "spilled" in last.loss
    text = " ".join(output(capsys, *held).split())
    assert "Op 15, v14 = in0 + v13, is one too many on h200" in text
    # Cut there, both kernels fit; they are plans that anything takes.
    assert cliff.split_after == 14
    assert cliff.rest is not None
    assert cliff.rest.spill_store_bytes == 0
    assert "Cut in two after op 14, the kernel of the other ops needs" in text
    halves = [load(path, FusionPlan) for path in sorted(tmp_path.glob("*.json"))]
    assert sorted(len(half.ops) for half in halves) == [1, 14]
    assert f"both plans, for `fusion-advisor generate`: {tmp_path}" in text


def test_a_cliff_is_kept_in_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = Path(shutil.copytree(EAGER, tmp_path / "run"))
    text = output(capsys, "cliff", run, "--only", NORM.stem, "--gpu", "h200,mi300x", "--save")
    assert "No cliff on h200" in text
    nothing = ("cliff", run, "--only", NORM.stem, "--gpu", "h200", "--split", tmp_path / "none")
    assert "not cut in two, so no plan was written" in output(capsys, *nothing)
    assert not (tmp_path / "none").exists()
    assert [c.gpu for c in RunDirectory.at(run).cliffs(NORM.stem)] == ["h200", "mi300x"]
    output(capsys, "cliff", run / "plans" / NORM.name, "--gpu", "a100", "--save")
    assert len(RunDirectory.at(run).cliffs(NORM.stem)) == 3
    lone = shutil.copy(NORM, tmp_path / "lone.json")
    assert "--save needs a run" in output(capsys, "cliff", lone, "--save", status=2)


def test_launches_are_read_as_they_are_printed() -> None:
    for config in (
        LaunchConfig(block_rows=2, num_warps=8),
        LaunchConfig(scheme="online", block_columns=4096, num_warps=8, num_stages=3),
        LaunchConfig(scheme="split", splits=8, block_columns=2048, block_rows=2),
        LaunchConfig(scheme="column_sums", splits=8, block_rows=2),
        LaunchConfig(scheme="looped", block_columns=1024, block_rows=2, unroll=2),
        LaunchConfig(scheme="scan_blocks", block_rows=4, block_steps=16),
        LaunchConfig(scheme="gemm", block_rows=128, block_columns=64, block_steps=32, num_stages=4),
        LaunchConfig(scheme="dealt", block_columns=4096, num_warps=8),
    ):
        assert launch_of(config.label()) == config
    for wrong in ("", "rows=3", "rows", "spiral cols=8", "rows=2 colour=3"):
        with pytest.raises(UsageError, match="no launch"):
            launch_of(wrong)


@pytest.mark.parametrize("limit", ["nan", "inf", "1e300", "0.5", "-1"])
def test_no_time_limit_is_none(capsys: pytest.CaptureFixture[str], limit: str) -> None:
    for name in ("cliff", "resources"):
        output(capsys, name, NORM, "--gpu", "h200", "--timeout", limit, status=2)


def test_what_was_not_compiled_in_time_is_not_known_to_be_too_much() -> None:
    late = KernelResources(gpu="h200", config="", error="not compiled within 2 s")
    assert judged(late, gpu_by_key("h200")) == ("unknown", "not compiled within 2 s")
    wrong = replace(late, error="no such name")
    assert judged(wrong, gpu_by_key("h200"))[0] == "avoid"
