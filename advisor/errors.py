"""The one error root: every failure a user can cause says what, where, why and what to do."""

from __future__ import annotations

import sys

EXIT_OK = 0
EXIT_GATE_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREADABLE = 3
EXIT_UNKNOWN = 4
# Of a path in a message, in characters; no more than that is read.
LONGEST_PATH = 500
# Into the environment of this very program: whatever another `pip` on the path is of.
INSTALL = f"{sys.executable} -m pip install"
INSTALL_TORCH = f"{INSTALL} torch triton"


class AdvisorError(Exception):
    """A failure with a stable code, an exit status and a remedy.

    `what` happened, `where` (path, position, id), `why`, and the `remedy`; printed as one line.
    Subclasses fix `code` and `exit_code`. Who can go on without catches the subclass it expects;
    what nobody expected ends in `advisor.cli.main`, on one line.
    """

    code = "internal"
    exit_code = EXIT_UNREADABLE

    def __init__(self, what: str, *, where: str = "", why: str = "", remedy: str = "") -> None:
        self.what, self.where, self.why, self.remedy = what, where, why, remedy
        super().__init__(self.line())

    def line(self) -> str:
        """The message on one line, control characters made visible, an endless path cut."""
        where = self.where
        if len(where) > LONGEST_PATH:
            where = f"{where[: LONGEST_PATH // 2]}...{where[-LONGEST_PATH // 2 :]}"
        head = f"{where}: {self.what}" if where else self.what
        text = (
            head
            + (f": {self.why}" if self.why else "")
            + (f". {self.remedy}" if self.remedy else "")
        )
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class UsageError(AdvisorError):
    """The command line or a target is not usable as given."""

    code, exit_code = "usage", EXIT_USAGE


class UnreadableError(AdvisorError):
    """An input file is missing, malformed, too large or of the wrong kind."""

    code, exit_code = "unreadable", EXIT_UNREADABLE


class InvalidRecordError(UnreadableError):
    """A plan, report or graph breaks its own schema or invariants."""

    code = "invalid-record"


class MissingDependencyError(AdvisorError):
    """A feature needs a package that is not installed."""

    code, exit_code = "missing-dependency", EXIT_USAGE


class WorkloadError(AdvisorError):
    """The user's workload failed while it was built or run."""

    code, exit_code = "workload-failed", EXIT_UNREADABLE


class AbortedError(AdvisorError):
    """This process cannot go on: its GPU is lost, its disk full, or another rank of the job gone.

    What was judged until then is on record. Who tries things one by one must not take it for the
    failure of one of them.
    """

    code = "aborted"


class StorageError(AbortedError, UnreadableError):
    """A file cannot be written: the disk is full, or the folder may not be written in.

    What was being tried is neither good nor bad. Who can go on without the file catches
    `UnreadableError`.
    """

    code = "storage"


class IllegalFusionError(AdvisorError):
    """A group of nodes may not be fused; the search goes on with the next one."""

    code = "illegal-fusion"


class RefusedError(AdvisorError):
    """The action is not allowed here: wrong machine, missing signature, read-only store."""

    code, exit_code = "refused", EXIT_USAGE
