"""Fusion advisor: which operators to fuse, what each fusion is worth, proved on the workload.

`advisor.step` marks a step of a script, `advisor.load` puts what a run kept into a model,
`advisor.optimize` does all of it in one call. Importing this package is cheap on purpose: nothing
here imports torch, triton, pandas or dash.
"""

from __future__ import annotations

# As a name of our own it costs no import; type checkers know it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from advisor.pipeline.api import load as load
    from advisor.pipeline.optimizing import optimize as optimize
    from advisor.steps import step as step

__version__ = "0.1.0"


_HOMES = {
    "step": "advisor.steps",
    "load": "advisor.pipeline.api",
    "optimize": "advisor.pipeline.optimizing",
}


def __getattr__(name: str) -> object:
    """The names above, imported when first asked for and kept: a mark in a loop costs a look-up."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
