"""What this machine signed it may apply; anything copied, moved, edited or foreign it may not."""

from __future__ import annotations

import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from advisor.errors import AdvisorError
from advisor.store import RunDirectory, RunStore, sign, verify
from advisor.store.signing import default_key_path
from tests.builders.run import sample_run
from tests.builders.run_plan import norm_plan


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A signed run."""
    return sample_run(RunStore(tmp_path / "runs"))


def why(run: RunDirectory) -> str:
    """The reason of the refusal; empty if the run verifies."""
    found = verify(run)
    return "" if found is None else found.why


def test_a_fresh_run_verifies_and_its_key_is_private(run: RunDirectory, tmp_path: Path) -> None:
    assert why(run) == ""
    key = tmp_path / "state" / "fusion-advisor" / "key"
    assert default_key_path() == key
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 32
    before = key.read_bytes()
    sign(run)
    assert key.read_bytes() == before
    assert why(run) == ""


def test_results_do_not_break_the_signature(run: RunDirectory) -> None:
    run.write_kernel(norm_plan().id, "# anything")
    run.remove_applied()
    run.log_path.write_text("log")
    assert why(run) == ""


def _edit_info(**changes: object) -> Callable[[RunDirectory], None]:
    return lambda run: run.write_info(msgspec.structs.replace(run.info(), **changes))


def _edit_plan(run: RunDirectory) -> None:
    path = run.plans_path / f"{norm_plan().id}.json"
    path.write_bytes(path.read_bytes() + b" ")


def _add_plan(run: RunDirectory) -> None:
    (run.plans_path / ("a" * 16 + ".json")).write_bytes(b"{}")


def _remove_plan(run: RunDirectory) -> None:
    (run.plans_path / f"{norm_plan().id}.json").unlink()


@pytest.mark.parametrize(
    "edit",
    [
        _edit_info(target="evil.py:main"),
        _edit_info(working_directory="/tmp/elsewhere"),
        _edit_info(arguments=("--pwn",)),
        _edit_info(plans={}),
        _edit_info(signature="0" * 64),
        _edit_info(signature="é"),
        _edit_info(signature=None),
        _edit_plan,
        _add_plan,
        _remove_plan,
        lambda run: (run.path / "run.json").write_text("{"),
        lambda run: (run.path / "run.json").unlink(),
    ],
)
def test_every_edit_is_noticed(run: RunDirectory, edit: Callable[[RunDirectory], None]) -> None:
    edit(run)
    assert why(run)


def test_a_copy_and_a_moved_run_do_not_verify(run: RunDirectory) -> None:
    copied = run.path.with_name("copied")
    shutil.copytree(run.path, copied)
    assert "copied, moved or edited" in why(RunDirectory(copied))
    moved = run.path.with_name("moved")
    run.path.rename(moved)
    assert "copied, moved or edited" in why(RunDirectory(moved))
    moved.rename(run.path)
    assert why(run) == ""


def test_another_key_or_none_does_not_verify(run: RunDirectory, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "key"
    found = verify(run, other)
    assert found is not None
    assert "no signing key" in found.why
    assert not other.exists()
    sign(sample_run(RunStore(tmp_path / "two"), signed=False), other)
    found = verify(run, other)
    assert found is not None
    assert "not of this machine" in found.why


@pytest.mark.parametrize("spoil", ["readable", "short", "link"])
def test_a_key_that_is_not_private_is_not_used(run: RunDirectory, spoil: str) -> None:
    key = default_key_path()
    if spoil == "readable":
        key.chmod(0o644)
    elif spoil == "short":
        key.write_bytes(b"short")
    else:
        real = key.with_name("real")
        key.rename(real)
        key.symlink_to(real)
    assert "cannot use the signing key" in why(run)
    with pytest.raises(AdvisorError, match="cannot use the signing key"):
        sign(run)


def test_two_creators_of_the_key_agree(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "many")
    runs = [sample_run(store, signed=False) for _ in range(8)]
    threads = [threading.Thread(target=sign, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [why(run) for run in runs] == [""] * 8
    assert [p.name for p in default_key_path().parent.iterdir()] == ["key"]
