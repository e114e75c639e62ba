"""Several files of one job as ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import UsageError
from collectors.ranks import ASSUMED, OTHER_JOB, read_ranks
from tests.builders.trace import event, kineto


def written(folder: Path, name: str, rank: int | None, world_size: int = 2) -> Path:
    path = folder / name
    metadata = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world_size}}
    path.write_bytes(kineto([event("kernel", f"of {name}", 1, 1, device=0)], **metadata))
    return path


def test_ranks_that_files_name_are_kept_and_sorted(tmp_path: Path) -> None:
    paths = [written(tmp_path, "b", 3, 8), written(tmp_path, "a", 1, 8)]
    traces = read_ranks(paths)
    assert [t.info.rank for t in traces] == [1, 3]
    assert [list(t.kernels["rank"]) for t in traces] == [[1], [3]]
    assert not any(t.warnings for t in traces)


@pytest.mark.parametrize("recorded", [(None, None), (0, 0), (1, None, 1)])
def test_repeated_ranks_become_the_order_of_the_files(
    recorded: tuple[int | None, ...], tmp_path: Path
) -> None:
    paths = [written(tmp_path, f"f{i}", rank) for i, rank in enumerate(recorded)]
    traces = read_ranks(paths)
    assert [t.info.rank for t in traces] == list(range(len(paths)))
    for rank, trace in enumerate(traces):
        trace.check()
        assert set(trace.kernels["rank"]) == {rank}
        assert trace.info.world_size == len(paths)
        assert [w.code for w in trace.warnings] == [ASSUMED]
        assert f"f{rank} taken as rank {rank}" in trace.warnings[0].message


def test_files_of_different_jobs_are_noted(tmp_path: Path) -> None:
    traces = read_ranks([written(tmp_path, "a", 0, 2), written(tmp_path, "b", 1, 4)])
    assert [[w.code for w in t.warnings] for t in traces] == [[OTHER_JOB]] * 2


def test_one_file_is_left_as_it_is_and_none_is_a_usage_error(tmp_path: Path) -> None:
    (trace,) = read_ranks([written(tmp_path, "a", None)])
    assert trace.info.rank == 0
    assert not trace.warnings
    with pytest.raises(UsageError, match="no trace"):
        read_ranks([])


def test_one_file_is_not_two_ranks(tmp_path: Path) -> None:
    path = written(tmp_path, "a", 0)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(UsageError, match="named twice"):
        read_ranks([path, link])
