"""One process of a job of several ranks, as `torchrun` starts them, and where its run goes.

Every rank profiles its own part of the job into a run of its own below one directory; the runs are
joined by `analyze` of their traces.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import UsageError


@dataclass(frozen=True)
class Rank:
    """One rank of `world_size`; `local` numbers the ranks of one host, each on its own GPU."""

    rank: int
    world_size: int
    local: int

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for the job."""
        return self.rank == 0


def rank_here(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """The rank of this process; None outside a job of several ranks.

    Raises `UsageError` where the variables of the launcher contradict each other.
    """
    world = environment.get("WORLD_SIZE", "")
    if not world.isdecimal() or int(world) < 2:
        return None
    rank = environment.get("RANK", "")
    if not rank.isdecimal() or int(rank) >= int(world):
        raise UsageError(
            "this process does not know its rank",
            where=f"WORLD_SIZE={world} RANK={rank or 'not set'}",
            remedy="start it with torchrun, or unset WORLD_SIZE",
        )
    local = environment.get("LOCAL_RANK", rank)
    return Rank(int(rank), int(world), int(local) if local.isdecimal() else int(rank))


def rank_directory(out: Path | None, rank: Rank) -> Path:
    """Where a rank's run goes; all ranks must be told one directory, so `--out` is needed."""
    if out is None:
        raise UsageError(
            "several ranks need one directory",
            where=f"rank {rank.rank} of {rank.world_size}",
            remedy="name it with --out (or run=): rank K writes RUN_DIR/rankK",
        )
    return out / f"rank{rank.rank}"


def run_of_rank(path: Path, rank: Rank) -> Path:
    """The run of a rank below the directory that all ranks were given.

    Raises `UsageError` where the ranks have no runs of their own.
    """
    own = path / f"rank{rank.rank}"
    if (own / "run.json").is_file():
        return own
    single = (path / "run.json").is_file()
    raise UsageError(
        "this rank has no run",
        where=str(own),
        why="the run was profiled by one process" if single else "",
        remedy=f"profile with {rank.world_size} ranks and --out, then name that directory",
    )


def run_here(path: Path, rank: Rank | None) -> Path:
    """The run itself or, where ranks have one each, that of this rank."""
    if rank is None or (path / "run.json").is_file():
        return path
    return run_of_rank(path, rank)


def ranks_summary(run: str, rank: Rank, *, traced: bool) -> str:
    """What the leading rank says of the others; `traced`: there are traces to be joined."""
    parent = str(Path(run).parent)
    others = ", ".join(f"rank{number}" for number in range(1, rank.world_size))
    text = f"{rank.world_size} ranks, each a run in {parent}: this is rank0; beside it {others}"
    if not traced:
        return text
    return (
        f"{text}\n"
        "   all ranks in one report, the one that the others wait for in front:\n"
        f"fusion-advisor analyze {parent}/rank*/trace.json.gz"
    )
