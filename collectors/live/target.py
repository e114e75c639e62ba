"""A target of the command line taken apart; imports no torch.

`pkg.mod:factory`, `file.py:factory` and `sample:NAME[:factory]` name a factory; `script.py`, with
its arguments behind ` -- `, is a program that is run as it stands.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import UsageError
from advisor.model.run import ARGUMENTS, names_script
from advisor.samples import PREFIX, sample_module

SAMPLE_FACTORY = "inference"


@dataclass(frozen=True)
class Target:
    """`place` is a module or a file; without a `factory` it is a script with `arguments`."""

    place: str
    factory: str | None = None
    arguments: tuple[str, ...] = ()

    @property
    def file(self) -> Path | None:
        """The file that it names, None for a module."""
        return Path(self.place) if self.place.endswith(".py") else None


def parse_target(text: str) -> Target:
    """The parts of a target; raises `UsageError` for what is none, and for an unknown sample."""
    if text.startswith(PREFIX):
        name, _, factory = text.removeprefix(PREFIX).partition(":")
        return Target(sample_module(name), factory or SAMPLE_FACTORY)
    head, separator, tail = text.partition(ARGUMENTS)
    if names_script(text):
        return Target(head, None, tuple(shlex.split(tail)))
    place, colon, factory = text.rpartition(":")
    if separator or not colon or not place:
        raise UsageError(
            "not a target",
            where=text,
            remedy="give pkg.mod:factory, file.py:factory, script.py or sample:NAME",
        )
    return Target(place, factory)


def no_such_file(place: str | Path) -> UsageError:
    """The error of a target whose file is not there."""
    remedy = "check the spelling; a path begins at the directory that you are in"
    return UsageError("no such file", where=str(place), remedy=remedy)


def workload_gone(path: Path) -> UsageError:
    """The error of a run whose workload is no longer where it was profiled from."""
    return UsageError(
        "the file of the workload is missing",
        where=str(path),
        why="the run was profiled from it",
        remedy="put it back, or profile again",
    )


def source_file(text: str) -> Path | None:
    """The file that a target's code stands in; of a module only once it is imported."""
    parsed = parse_target(text)
    if parsed.file is not None:
        return parsed.file
    found = getattr(sys.modules.get(parsed.place), "__file__", None)
    return Path(found) if found is not None else None


def script_target(script: str, arguments: Sequence[str]) -> str:
    """A target as it is kept and shown: the script and its arguments in one text.

    Raises `UsageError` for arguments to what is no script.
    """
    if not arguments:
        return script
    if parse_target(script).factory is not None:
        raise UsageError(
            "a factory takes no arguments",
            where=script,
            remedy="arguments after -- are those of a script.py",
        )
    return f"{script}{ARGUMENTS}{shlex.join(arguments)}"


def is_script(text: str) -> bool:
    """Whether a target is a program to be run, not a factory; raises `UsageError` for neither."""
    return parse_target(text).factory is None
