"""A disk that is full, or a folder that may not be written, is told as that and not of kernels."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from advisor.errors import StorageError
from advisor.hardware.gpus import gpu_by_key
from advisor.pipeline.storage import blame_writing
from advisor.store.writable import blame_storage, check_writable
from advisor.verify.child import AnsweringChild, DiedError
from advisor.verify.resources import ResourceRequest, resources_of
from tests.builders.full_disk import MODEL

ROOT = Path(__file__).parents[2]
# A mount of one's own takes a user namespace, which some machines do not allow.
MOUNTED = ("unshare", "--map-root-user", "--mount", "sh", "-c")


def may_mount() -> bool:
    command = (*MOUNTED, "mount -t tmpfs none /mnt")
    return shutil.which("unshare") is not None and not subprocess.run(
        command, capture_output=True, check=False
    ).returncode  # fmt: skip


needs_mount = pytest.mark.skipif(not may_mount(), reason="no disk may be mounted here")


def told(tmp_path: Path, what: str, room: str = "8k", **environment: str) -> list[str]:
    """What a process says that has so much room on a disk of its own."""
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    own = {"XDG_CACHE_HOME": str(empty), "XDG_STATE_HOME": str(empty)}
    script = f'mount -t tmpfs -o size={room} none {full} && exec "$@"'
    command = [sys.executable, "-m", "tests.builders.full_disk", str(full), str(empty), what]
    child = subprocess.run(
        [*MOUNTED, script, "sh", *command], cwd=ROOT, check=False, capture_output=True, text=True,
        timeout=300, env=os.environ | own | {k: v.format(full) for k, v in environment.items()},
    )  # fmt: skip
    assert not child.returncode, child.stderr
    return child.stdout.splitlines()


@needs_mount
def test_a_full_cache_of_kernels_refuses_no_plan(tmp_path: Path) -> None:
    refused, error = told(tmp_path, "size")
    assert refused == "refused: None"
    assert error == (
        f"storage: {tmp_path}/full: cannot write: No space left on device. make room there, or "
        "name another folder in TRITON_CACHE_DIR"
    )


@needs_mount
def test_full_temporary_files_refuse_no_plan(tmp_path: Path) -> None:
    """Not even the words of the compiler have room: it ends without any."""
    refused, error = told(tmp_path, "size_elsewhere", TMPDIR="{}")
    assert refused == "refused: None"
    assert error.startswith(f"storage: {tmp_path}/full: cannot write: No space left on device")
    assert error.endswith("name another folder in TMPDIR")


@needs_mount
def test_a_full_cache_of_the_compiler_is_no_step_that_fails(tmp_path: Path) -> None:
    (error,) = told(tmp_path, "step")
    assert error.startswith(f"storage: {tmp_path}/full: cannot write: No space left on device")
    assert error.endswith("name another folder in TORCHINDUCTOR_CACHE_DIR")


@needs_mount
@pytest.mark.parametrize("what", ["compiled", "swallowed"])
def test_a_full_cache_of_the_compiler_is_no_workload_that_fails(what: str, tmp_path: Path) -> None:
    """Nor one of which nothing could be compiled."""
    (error,) = told(tmp_path, what)
    assert error.startswith(f"storage: {tmp_path}/full")
    assert ": cannot write: No space left on device. make room there" in error
    assert error.endswith("name another folder in TORCHINDUCTOR_CACHE_DIR")
    assert not (tmp_path / "empty" / "run" / "report.json").exists()


@needs_mount
def test_half_a_trace_is_of_a_full_disk(tmp_path: Path) -> None:
    garbage, error = told(tmp_path, "traced", TMPDIR="{}")
    assert "is no trace this program reads" in garbage
    assert error == (
        f"storage: {tmp_path}/full: cannot write: No space left on device. make room there, or "
        "name another folder in TMPDIR"
    )


@needs_mount
def test_counters_that_fill_the_disk_are_left_out_and_the_report_is_whole(tmp_path: Path) -> None:
    """They are cut anywhere; the room that they took is the report's."""
    *printed, status, _ = told(tmp_path, "counted", "6m")
    run = tmp_path / "full" / "run"
    warning = f"no counters of single kernels: {run}: cannot write: No space left on device. make"
    assert " ".join(printed).count(warning) == 1
    assert status.startswith("status 0, ")
    assert "'report.json'" in status
    assert "ncu.csv" not in status
    assert any("1 finding, 1 plan" in line for line in printed)


@needs_mount
def test_a_disk_that_stays_full_leaves_what_was_measured(tmp_path: Path) -> None:
    *_, kept, error, status, _ = told(tmp_path, "crowded", "6m")
    run = tmp_path / "full" / "run"
    assert kept == f"kept: what was measured until then is in {run}"
    assert error.startswith(f"error: {run}/plans/")
    assert error.endswith(": cannot write: No space left on device. make room there")
    assert status.startswith("status 3, ")
    assert "'report.json'" in status
    assert "ncu.csv" not in status


def test_a_folder_that_may_not_be_written_ends_a_profile_in_one_line(tmp_path: Path) -> None:
    """The compiler makes its folder while it is imported."""
    (tmp_path / "net.py").write_text(MODEL)
    command = (sys.executable, "-m", "advisor.cli.main", "profile", "net.py:make", "--out", "run")
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(no_folder(tmp_path))}
    child = subprocess.run(
        command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert child.returncode == 3
    assert child.stderr.splitlines()[-1] == (
        f"error: {tmp_path}/file/cache: cannot write: Not a directory. name another folder in "
        "TORCHINDUCTOR_CACHE_DIR"
    )
    assert "Traceback" not in child.stderr
    assert not (tmp_path / "run").exists()


def request(source: Path, kernel: str) -> ResourceRequest:
    return ResourceRequest(
        source=str(source), kernel=kernel, constexprs={"BLOCK": 64},
        signature={"x": "*fp16", "y": "*fp16", "stride": "i32", "N": "i32"},
    )  # fmt: skip


def no_folder(tmp_path: Path) -> Path:
    """Where nobody can write, root neither."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "cache"


def test_a_kernel_is_blamed_where_the_cache_can_be_written_and_only_there(tmp_path: Path) -> None:
    source = tmp_path / "kernels.py"
    shutil.copy(Path(__file__).with_name("kernels.txt"), source)
    wrong, right = [request(source, "no_such")], [request(source, "row")]
    h200, rows = [gpu_by_key("h200")], tmp_path / "rows"
    ((row,),) = resources_of(wrong, h200, cache=rows, launched=tmp_path / "there")
    assert row.error is not None
    assert "no_such" in row.error
    with pytest.raises(StorageError, match="cannot write: Not a directory"):
        resources_of(right, h200, cache=rows, launched=no_folder(tmp_path))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_child_that_dies_for_want_of_a_cache_is_no_kernel_that_fails(
    is_there: bool, tmp_path: Path
) -> None:
    cache = tmp_path / "there" if is_there else no_folder(tmp_path)
    environment = os.environ | {"TRITON_CACHE_DIR": str(cache)}
    with (
        AnsweringChild("tests.verify.timing_child", "cpu", environment=environment) as child,
        pytest.raises(DiedError if is_there else StorageError) as found,
    ):
        child.ask(b"no request", 60.0)
    assert is_there or str(cache) in str(found.value)


def test_words_of_a_full_disk_count_where_there_is_room_again(tmp_path: Path) -> None:
    folders = [("TRITON_CACHE_DIR", tmp_path)]
    said = "OSError: [Errno 28] No space left on device: '/cache/kernel.cubin'"
    with pytest.raises(StorageError, match=r"^/cache/kernel\.cubin: cannot write: No space"):
        blame_storage(said, folders)
    with pytest.raises(StorageError, match="make room there, or name another folder in TRITON_"):
        blame_storage("LLVM ERROR: IO failure on output stream: No space left on device", folders)
    for other in ("", "error: [Errno 13] Permission denied: '/data/weights'", "ptxas fatal: no"):
        blame_storage(other, folders)


def test_where_no_temporary_file_can_be_made_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the folder's name is known then."""

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    monkeypatch.setenv("TMPDIR", "/gone")
    with pytest.raises(StorageError, match=r"^/gone: cannot write: .*another folder in TMPDIR"):
        blame_writing("", tmp_path)


def test_a_run_that_cannot_be_written_is_blamed_before_all_else(tmp_path: Path) -> None:
    """Words of a full disk that name no file are not put on folders that have room."""
    run = no_folder(tmp_path)
    with pytest.raises(StorageError, match=rf"^{run}: cannot write: Not a directory"):
        blame_writing("[Errno 28] No space left on device", run)


def test_a_file_of_the_user_is_in_no_folder_of_the_compiler(tmp_path: Path) -> None:
    said = "OSError: [Errno 28] No space left on device: '/data/weights.pt'"
    with pytest.raises(StorageError, match=r"^/data/weights\.pt: .*\. make room there$"):
        blame_writing(said, tmp_path)


def test_nothing_is_left_of_a_trial(tmp_path: Path) -> None:
    check_writable(tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())
