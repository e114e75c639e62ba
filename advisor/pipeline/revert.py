"""`revert`: forget what was applied. Nothing of the workload runs, so torch is not needed."""

from __future__ import annotations

from advisor.model.run import Emit
from advisor.store import RunDirectory


def revert_run(run: RunDirectory, emit: Emit) -> bool:
    """Forget what was applied; later compilations are the compiler's own. False if nothing was."""
    had = run.applied() is not None
    run.remove_applied()
    run.remove_attempt()
    emit("done", "done", message="reverted" if had else "nothing was applied")
    return had
