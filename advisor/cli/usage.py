"""What was typed wrong, as every other failure: one line with what, where, why and what to do."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from advisor.errors import UsageError

# How a user finds what an argument takes, by the argument's name in the code.
_HOW: Mapping[str, str] = {
    "finding": "`fusion-advisor show RUN` lists them with their numbers",
    "run": "`fusion-advisor profile` and `fusion-advisor analyze --out` make runs",
    "report": "`fusion-advisor profile` and `fusion-advisor analyze` make reports",
    "before": "name the earlier run or report, then the later one",
    "after": "name the earlier run or report, then the later one",
    "files": "name one or more traces of the PyTorch profiler",
    "target": "name file.py:factory, pkg.mod:factory, script.py or sample:transformer_block",
    "source": "name a run, or one of its plans: RUN/plans/ID.json",
}
_QUOTES = "'\""
_IMPOSSIBLE: Mapping[int, str] = {
    errno.ENAMETOOLONG: "the name is too long for a file",
    errno.ELOOP: "the link leads back to itself",
}
_LONGEST = 300
# The value that click repeats at the beginning of what it says of a number or a choice.
_VALUE = re.compile(r"('.*?'|\".*?\"|\S+) is not ", re.DOTALL)


def usage_error(error: click.ClickException, command: str) -> UsageError:
    """An error of the command line's parser in our own words.

    `command` is what was called (`fusion-advisor gate`), for errors that do not know it.
    """
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = command if context is None else context.command_path
    more = f"`{command} --help` says more"
    if isinstance(error, click.MissingParameter):
        return _missing(error, command, more)
    if isinstance(error, click.BadParameter) and error.param is not None:
        return _bad_value(error.param, error.message, command, more)
    if isinstance(error, click.NoSuchOption):
        return UsageError(
            f"there is no option {error.option_name[:80]!r}",
            where=command,
            remedy=near(error.option_name, _options(context)) or more,
        )
    usage = _usage(context)
    return UsageError(_clause(error.format_message()), where=command, remedy=usage or more)


def no_such_command(name: str, known: Sequence[str], program: str) -> UsageError:
    """A command that is not in the table, with those that are spelled alike."""
    return UsageError(
        f"there is no command {name[:80]!r}",
        where=program,
        remedy=near(name, known) or f"`{program} --help` lists them",
    )


def impossible_path(error: BaseException) -> UsageError | None:
    """Of a name that no file can have, whatever is done with it; None for any other failure.

    pathlib makes a RuntimeError of links that lead back to themselves.
    """
    origin = error if isinstance(error, OSError) else error.__context__
    why = _IMPOSSIBLE.get(origin.errno or 0) if isinstance(origin, OSError) else None
    if not isinstance(origin, OSError) or why is None:
        return None
    where = _short(str(origin.filename)) if origin.filename is not None else ""
    return UsageError(why, where=where, remedy="name another file or folder")


def near(name: str, known: Iterable[str]) -> str:
    """`did you mean --steps?` for what is spelled alike, nothing where nothing is."""
    found = difflib.get_close_matches(name, list(known), cutoff=0.7)
    return f"did you mean {' or '.join(found)}?" if found else ""


def _missing(error: click.MissingParameter, command: str, more: str) -> UsageError:
    """An argument that was not given: what it may be, or how to find it."""
    if error.param is None:
        return UsageError("an argument is missing", where=command, remedy=more)
    kind, how = error.param.type, _HOW.get(error.param.name or "", "")
    return UsageError(
        f"{_shown(error.param)} is missing",
        where=command,
        why=f"it is {_wanted(kind)}" if isinstance(kind, click.Choice) else "",
        remedy="; ".join(filter(None, (how, _usage(error.ctx)))) or more,
    )


def _bad_value(option: click.Parameter, message: str, command: str, more: str) -> UsageError:
    """A value that an argument or option does not take: what it does take."""
    found = _VALUE.match(message)
    wanted = _wanted(option.type)
    if found is None or not wanted:
        return UsageError(f"{_shown(option)}: {_clause(message)}", where=command, remedy=more)
    value = found[1] if found[1][0] in "'\"" else repr(found[1])
    choices = list(option.type.choices) if isinstance(option.type, click.Choice) else []
    return UsageError(
        f"{_shown(option)} cannot be {_short(value)}",
        where=command,
        why=f"it is {wanted}",
        remedy=near(value.strip("'\""), map(str, choices)) or more,
    )


def _wanted(kind: click.ParamType[Any]) -> str:
    """What a type takes, in words; nothing for types that say it themselves."""
    if isinstance(kind, click.Choice):
        return f"one of {', '.join(map(str, kind.choices))}"
    number = "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
    if isinstance(kind, click.IntRange | click.FloatRange):
        if kind.max is None:
            return f"{number} of at least {kind.min}"
        return f"{number} from {kind.min} to {kind.max}"
    return number if isinstance(kind, click.types.FloatParamType | click.types.IntParamType) else ""


def _shown(parameter: click.Parameter) -> str:
    """`--steps`, or an argument as the usage line has it."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    return (parameter.metavar or parameter.human_readable_name.upper()).strip("[]")


def _usage(context: click.Context | None) -> str:
    if context is None:
        return ""
    pieces = context.command.collect_usage_pieces(context)
    return " ".join(["usage:", context.command_path, *pieces])


def _options(context: click.Context | None) -> list[str]:
    if context is None:
        return []
    return [
        name
        for option in context.command.get_params(context)
        if isinstance(option, click.Option) and not option.hidden
        for name in (*option.opts, *option.secondary_opts)
    ]


def _short(value: str) -> str:
    return (
        value if len(value) <= 80 else f"{value[:77]}...{value[0] if value[0] in _QUOTES else ''}"
    )


def _clause(sentence: str) -> str:
    """A sentence of click's as a part of ours; what was typed may be of any length."""
    if len(sentence) > _LONGEST:
        sentence = f"{sentence[:_LONGEST]}..."
    return sentence[:1].lower() + sentence[1:].rstrip(".")
