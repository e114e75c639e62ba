"""Triton kernels that a program wrote itself and launched: source and launch, from Triton's caches.

`JITFunction.device_caches` holds what was compiled for each set of argument types and constants. It
is no public API: a version that keeps it otherwise yields nothing.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from advisor.model.overfusion import KernelCode, Scalar

# A kernel compiled in more ways than this was tuned, and which of them ran is anybody's guess.
MOST_VARIANTS = 16
# Triton's name for a multiple of 16.
DIVISIBILITY = "tt.divisibility"


def written_kernels(functions: Iterable[Any] | None = None) -> tuple[KernelCode, ...]:
    """What was compiled of these Triton functions, or of all that are alive in this process."""
    kind = getattr(sys.modules.get("triton.runtime.jit"), "JITFunction", None)
    if kind is None or (functions is None and _nothing_was_launched()):
        return ()
    alive = gc.get_objects() if functions is None else functions
    found: list[KernelCode] = []
    for function in alive:
        # Not `isinstance`: it asks proxies of what is gone, and runs properties of any class.
        if issubclass(type(function), kind):
            variants = list(_compiled(function))
            if len(variants) <= MOST_VARIANTS:
                found += [_code(function, compiled) for compiled in variants]
    return tuple(found)


def _nothing_was_launched() -> bool:
    """Triton has chosen no driver yet, as its first launch does: looking at all objects is slow."""
    config = getattr(sys.modules.get("triton.runtime.driver"), "driver", None)
    return getattr(config, "_active", config) is None and hasattr(config, "_active")


def _compiled(function: Any) -> Iterator[Any]:
    """The compiled kernels of a function on all devices."""
    caches = getattr(function, "device_caches", None)
    for held in caches.values() if isinstance(caches, Mapping) else ():
        kernels = held[0] if isinstance(held, tuple) and held else held
        for compiled in kernels.values() if isinstance(kernels, Mapping) else ():
            if hasattr(compiled, "metadata") and hasattr(compiled, "src"):
                yield compiled


def _code(function: Any, compiled: Any) -> KernelCode:
    names = list(getattr(function, "arg_names", ()))
    source, metadata = compiled.src, compiled.metadata
    signature = {str(k): str(v) for k, v in dict(getattr(source, "signature", {})).items()}
    constants = {
        names[at[0]]: value
        for at, value in dict(getattr(source, "constants", {})).items()
        if len(at) == 1 and at[0] < len(names) and _is_scalar(value)
    }
    attributes = dict(getattr(source, "attrs", {}))
    return KernelCode(
        name=str(getattr(metadata, "name", function.__name__)),
        source=_source(function),
        constants=constants,
        signature={k: v for k, v in signature.items() if v != "constexpr"},
        aligned=aligned_names(names, attributes),
        num_warps=count_of(metadata, "num_warps"),
        num_stages=count_of(metadata, "num_stages"),
    )


def _source(function: Any) -> str:
    """The function's text after those of the functions of its module that it may call."""
    own = str(getattr(function, "src", ""))
    around = getattr(getattr(function, "fn", None), "__globals__", {})
    helpers = [
        str(held.src)
        for name, held in around.items()
        if isinstance(held, type(function)) and held is not function and name in own
    ]
    return "\n\n".join([*helpers, own])


def _is_scalar(value: Scalar) -> bool:
    return value is None or isinstance(value, (int, float, bool, str))


def aligned_names(names: Sequence[str], attributes: Mapping[Any, Any]) -> tuple[str, ...]:
    """The arguments that divide by 16, of Triton's attributes by place: `{(0,): [...]}`."""
    return tuple(
        names[at[0]]
        for at, kinds in attributes.items()
        if isinstance(at, tuple) and at[0] < len(names) and _divides(kinds)
    )


def _divides(kinds: Iterable[Sequence[Any]]) -> bool:
    """Whether it is among what is said of an argument; AMD's backend says a pointer's range too."""
    return any(kind and kind[0] == DIVISIBILITY for kind in kinds)


def count_of(held: Any, name: str) -> int | None:
    """An attribute that counts something; None where there is none, or no such number."""
    value = getattr(held, name, None)
    return value if isinstance(value, int) and value >= 0 else None
