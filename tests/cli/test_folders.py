"""Where this user's files lie, and that one without a home directory is told so."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

import pytest

from advisor.cli import main as shell
from advisor.errors import StorageError
from advisor.folders import cache_folder, state_folder, triton_cache, written_by_compilers
from advisor.store.writable import cannot_write


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that the system does not know, as containers have them."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("homeless")
def test_who_has_no_home_is_told_what_names_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        StorageError, match=r"no home directory\. name one in HOME, or in XDG_CACHE"
    ):
        cache_folder()
    with pytest.raises(StorageError, match="XDG_STATE_HOME"):
        state_folder()
    assert triton_cache() is None
    assert dict(written_by_compilers(os.environ))["TRITON_CACHE_DIR"] == Path("~/.triton/cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fusion-advisor"
    assert triton_cache() == tmp_path / "fusion-advisor" / "triton"


@pytest.mark.usefixtures("homeless")
def test_a_command_says_it_on_one_line(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.run(["apply", str(run_directory)]) == 3
    assert capsys.readouterr().err == (
        "error: there is no folder to write in: this user has no home directory. name one in HOME, "
        "or in XDG_STATE_HOME\n"
    )


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room there, or elsewhere"),
        (errno.EACCES, "let this user write there, or elsewhere"),
        (errno.EMFILE, "elsewhere"),
    ],
)
def test_what_to_do_follows_from_what_is_wrong(number: int, remedy: str) -> None:
    error = cannot_write(Path("folder"), OSError(number, os.strerror(number)), "elsewhere")
    assert error.remedy == remedy
