"""Triton's interpreter, told once what it works out again for every program.

Imported by processes that interpret kernels (`TRITON_INTERPRET=1`) for tests. What kernels compute
stays the same, bit for bit (`tests/codegen/test_quick_interpreter.py`):

- the language is patched once per launch and module, not in every call of a jitted function;
- the numpy type of a Triton type is looked up, not put together;
- reductions and scans with a combiner of their own combine slices in their order, not element by
  element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_launch = interpreter.GridExecutor.__call__
_patch_language = interpreter._patch_lang
_numpy_type = interpreter._get_np_dtype

_patched: set[int] = set()
_known: dict[str, np.dtype[Any]] = {}


def launch(self: Any, *arguments: Any, **options: Any) -> None:
    """A launch; its end takes the patches of the language back."""
    _patched.clear()
    _launch(self, *arguments, **options)


def patch_once(function: Any) -> Any:
    """The patches that this launch still lacks for the modules that a function sees."""
    module = id(function.__globals__)
    if module in _patched:
        return interpreter._LangPatchScope()
    _patched.add(module)
    return _patch_language(function)


def numpy_type(kind: Any) -> np.dtype[Any]:
    """The numpy type of elements of a Triton type."""
    element = kind.element_ty if isinstance(kind, tl.block_type) else kind
    if isinstance(element, tl.pointer_type):
        return np.dtype(np.uint64)
    if element.name not in _known:
        _known[element.name] = _numpy_type(element)
    return _known[element.name]


def combined(self: Any, tensors: tuple[Any, ...], axis: int) -> Iterator[list[np.ndarray]]:
    """What is combined after each slice along the axis, first to last: an array per tensor."""
    kinds = [tensor.dtype for tensor in tensors]
    slices = zip(*(np.moveaxis(t.handle.data, axis, 0) for t in tensors), strict=True)
    held = list(next(slices))
    yield held
    for following in slices:
        given = [
            self.to_tensor(array, kind)
            for array, kind in zip((*held, *following), 2 * kinds, strict=True)
        ]
        found = self.combine_fn.fn(*given)
        parts = found if isinstance(found, tuple) else (found,)
        held = [_stored(part, like) for part, like in zip(parts, held, strict=True)]
        yield held


def _stored(part: Any, like: np.ndarray) -> np.ndarray:
    """A combined value in the type and shape of what it came from."""
    data = part.handle.data if isinstance(part, tl.tensor) else np.asarray(part)
    shaped = data.reshape(like.shape) if data.size == like.size else data
    return np.broadcast_to(shaped.astype(like.dtype), like.shape)


def reduce_slices(self: Any, given: tuple[Any, ...]) -> list[Any]:
    """A reduction along one axis, or over everything."""
    tensors, axis = self.unravel(given, self.axis)
    *_, last = combined(self, tensors, axis)
    if self.keep_dims:
        sizes = given[0].handle.data.shape
        kept = tuple(1 if self.axis in (None, n) else size for n, size in enumerate(sizes))
        last = [array.reshape(kept) for array in last]
    elif self.axis is None:
        last = [array.item() for array in last]
    return [self.to_tensor(a, tensor.dtype) for a, tensor in zip(last, tensors, strict=True)]


def scan_slices(self: Any, given: tuple[Any, ...]) -> list[Any]:
    """What is combined up to each place along the axis."""
    steps = zip(*combined(self, given, self.axis), strict=True)
    return [
        self.to_tensor(np.stack(arrays, self.axis), tensor.dtype)
        for arrays, tensor in zip(steps, given, strict=True)
    ]


interpreter.GridExecutor.__call__ = launch
interpreter._patch_lang = patch_once
interpreter._get_np_dtype = numpy_type
interpreter.ReduceOps.generic_reduce = reduce_slices
interpreter.ScanOps.generic_scan = scan_slices
