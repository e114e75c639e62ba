"""`fusion-advisor`: runs a sub-command; a failure becomes one line and an exit code.

Exit codes: 0 done, 1 a gate failed, 2 wrong usage, 3 unreadable input or internal, 4 a gate that
nobody can decide, 130 interrupted, 141 the reader of our output went away.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import click

from advisor import __version__
from advisor.errors import EXIT_OK, EXIT_UNREADABLE, EXIT_USAGE, AdvisorError

PROGRAM = "fusion-advisor"
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# name, "module:attribute", one line of help. `--help` prints this and imports none of the modules.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("profile", "advisor.cli.profile:profile", "Record a workload and say what to fuse."),
    ("analyze", "advisor.cli.analyze:analyze", "Say what to fuse in recorded traces."),
    ("apply", "advisor.cli.apply:apply", "Prove the fusions of a run and keep those that pay."),
    ("unfuse", "advisor.cli.unfuse:unfuse", "Cut the compiler's kernels where that is faster."),
    (
        "generate",
        "advisor.cli.generate:generate",
        "Write the kernels of plans as files that run alone.",
    ),
    ("patch", "advisor.cli.patch:patch", "Write what a run kept as a package of its own."),
    ("resources", "advisor.cli.resources:resources", "Say what kernels need on any GPU."),
    ("cliff", "advisor.cli.cliff:cliff", "Say where one more op is too many for a kernel."),
    ("revert", "advisor.cli.revert:revert", "Take applied fusions out again."),
    ("show", "advisor.cli.show:show", "Print a run or a report."),
    ("explain", "advisor.cli.explain:explain", "Print one finding of a run in full."),
    ("compare", "advisor.cli.compare:compare", "Say what changed between two runs."),
    ("gate", "advisor.cli.gate:gate", "Check a report against limits, for CI."),
    ("rules", "advisor.cli.rules:rules", "List and explain the rules."),
    ("calibrate", "advisor.cli.calibrate:calibrate", "Measure this GPU for better prices."),
    (
        "calibration",
        "advisor.cli.calibration:calibration",
        "Hold predictions against measurements.",
    ),
    ("serve", "advisor.cli.serve:serve", "Open the dashboard over saved runs."),
    ("doctor", "advisor.cli.doctor:doctor", "Say what is installed and what is missing."),
    ("schema", "advisor.cli.schema:schema", "Print the JSON Schema of a record."),
)


class LazyGroup(click.Group):
    """A group that imports a sub-command only to run it or to print its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one sub-command; None for a name that is not in the table."""
        for name, target, _ in COMMANDS:
            if name == cmd_name:
                module, _, attribute = target.partition(":")
                command: click.Command = getattr(import_module(module), attribute)
                return command
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The sub-command that is called; raises `UsageError` for a name not in the table."""
        known = args[0].startswith("-") or self.get_command(ctx, args[0]) is not None
        if not known and not ctx.resilient_parsing:
            from advisor.cli.usage import no_such_command

            raise no_such_command(args[0], self.list_commands(ctx), ctx.command_path)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, _, help_line in COMMANDS])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def cli() -> None:
    """Which GPU operators to fuse, what each fusion is worth, and proof on your own workload.

    Start with `fusion-advisor profile sample:transformer_block --out runs/first`, then
    `fusion-advisor apply runs/first`.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; failures are already on stderr."""
    context: click.Context | None = None
    try:
        with cli.make_context(PROGRAM, list(arguments)) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        if not arguments:
            error.show()  # the help
            return EXIT_USAGE
        return _wrong_usage(error, context)
    except AdvisorError as error:
        return _told(error)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return EXIT_BROKEN_PIPE
    except (OSError, RuntimeError) as error:
        return _system_error(error)
    return EXIT_OK


def _system_error(error: OSError | RuntimeError) -> int:
    """Of a path that no file can have, or a disk that takes no more; all else is a mistake of ours.

    Called while `error` is handled.
    """
    from advisor.cli.usage import impossible_path
    from advisor.store.writable import FULL, cannot_write

    if (told := impossible_path(error)) is not None:
        return _told(told)
    # A terminal that is closed at its other end is an error of input and output.
    if not isinstance(error, OSError) or error.errno not in FULL | {errno.EIO}:
        raise error
    _drop_stdout()
    return _told(cannot_write(Path(error.filename or "standard output"), error))


def _told(error: AdvisorError) -> int:
    click.echo(f"error: {error.line()}", err=True)
    return error.exit_code


def _wrong_usage(error: click.ClickException, context: click.Context | None) -> int:
    """Say what was typed wrong, and return the status for that."""
    from advisor.cli.usage import usage_error

    called = None if context is None else context.invoked_subcommand
    return _told(usage_error(error, f"{PROGRAM} {called}" if called else PROGRAM))


def _drop_stdout() -> None:
    """The interpreter flushes stdout once more as it exits; let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Entry point of the console script."""
    sys.excepthook = _internal
    sys.exit(run(sys.argv[1:]))


def _internal(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> NoReturn:
    """A mistake of ours ends in its traceback and status 3: Python's 1 means a failed gate here."""
    sys.__excepthook__(kind, error, trace)
    click.echo("error: internal: please report this as a bug of fusion-advisor", err=True)
    raise SystemExit(EXIT_UNREADABLE)


if __name__ == "__main__":
    main()
