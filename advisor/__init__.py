"""Fusion advisor: which operators to fuse, what each fusion is worth, proved on the workload.

`advisor.step` marks a step of a script, `advisor.load` puts what a run kept into a model. Importing this package is cheap on purpose: nothing here
imports torch, triton, pandas or dash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.pipeline.api import load as load
    from advisor.steps import step as step

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The names above, each imported when it is first asked for."""
    if name == "step":
        from advisor.steps import step

        return step
    if name == "load":
        from advisor.pipeline.api import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
