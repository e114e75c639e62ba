"""Triton kernels as Inductor writes them, read from its generated code: what each is launched with.

A kernel is named by Inductor's own hash of its text and size hints, which leaves the name out:
`config.autotune_lookup_table` gives a configuration to the kernel of such a hash.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch._inductor import config
from torch._inductor.async_compile import CompiledTritonKernels
from torch._inductor.codecache import PyCodeCache
from torch._inductor.runtime.triton_heuristics import generate_lookup_hash_from_source_code

from advisor.folders import cache_folder
from advisor.model.cures import Retuned
from advisor.store.files import make_directory, write_atomic
from advisor.verify.resources import ResourceRequest

_DEFINED = re.compile(r"async_compile\.triton\('(?P<name>\w+)',\s*'''(?P<text>.*?)'''", re.DOTALL)
_JIT = "@triton.jit\n"


@dataclass(frozen=True)
class GeneratedKernel:
    """One kernel of a generated file; `text` is the module that Inductor loads for it.

    `size_hints` are the sizes of its loops, rounded up to powers of two: x, y, r0_.
    """

    name: str
    text: str
    source: str
    heuristic: str
    size_hints: Mapping[str, int]
    signature: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    aligned: tuple[str, ...] = ()

    @property
    def blocks(self) -> tuple[str, ...]:
        """The block sizes that a configuration gives."""
        return tuple(name for name, kind in self.signature.items() if kind == "constexpr"
                     and name.endswith("BLOCK") and name not in self.constants)  # fmt: skip

    def request(self, config: Retuned) -> ResourceRequest:
        """What to compile to see what the kernel needs in a configuration."""
        kinds = {name: kind for name, kind in self.signature.items() if kind != "constexpr"}
        return ResourceRequest(
            source=str(_written(self)),
            kernel=self.name,
            signature=kinds,
            constexprs={**self.constants, **config.blocks},
            aligned=self.aligned,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            config=config.label,
        )


def kernels_of_code(code: str) -> tuple[GeneratedKernel, ...]:
    """The Triton kernels of one generated file; those whose options cannot be read are left out."""
    return tuple(filter(None, (_kernel(m["name"], m["text"]) for m in _DEFINED.finditer(code))))


def _kernel(name: str, text: str) -> GeneratedKernel | None:
    if _JIT not in text:
        return None
    tree = ast.parse(text)
    function = next(
        (s for s in tree.body if isinstance(s, ast.FunctionDef) and s.name == name), None
    )
    call = _heuristic(function) if function is not None else None
    if call is None:
        return None
    options = {one.arg: one.value for one in call.keywords if one.arg is not None}
    hints, meta = _literal(options.get("size_hints")), _entries(options.get("triton_meta"))
    signature, constants = meta.get("signature"), meta.get("constants")
    if not isinstance(hints, dict) or not isinstance(signature, dict):
        return None
    own = text.split(_JIT, 1)[1]
    assert isinstance(call.func, ast.Attribute)
    return GeneratedKernel(
        name=name,
        text=text,
        source=generate_lookup_hash_from_source_code(str(hints), own),
        heuristic=call.func.attr,
        size_hints=hints,
        signature=signature,
        constants=constants if isinstance(constants, dict) else {},
        aligned=_aligned(signature, meta.get("configs")),
    )


def _heuristic(function: ast.FunctionDef) -> ast.Call | None:
    """The decorator `triton_heuristics.NAME(...)`."""
    for decorator in function.decorator_list:
        if (
            isinstance(decorator, ast.Call)
            and isinstance(decorator.func, ast.Attribute)
            and ast.unparse(decorator.func.value) == "triton_heuristics"
        ):
            return decorator
    return None


def _entries(expression: ast.expr | None) -> dict[str, Any]:
    """The literal entries of a dictionary that has others too."""
    if not isinstance(expression, ast.Dict):
        return {}
    return {
        key.value: _literal(value)
        for key, value in zip(expression.keys, expression.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def _literal(expression: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(expression) if expression is not None else None
    except ValueError:
        return None


def _aligned(signature: Mapping[str, str], configs: Any) -> tuple[str, ...]:
    """Arguments that Inductor promises to be divisible by 16."""
    names = list(signature)
    attributes = configs[0] if isinstance(configs, list) and configs else {}
    return tuple(names[place] for (place,), _ in attributes.items() if place < len(names))


def _written(kernel: GeneratedKernel) -> Path:
    folder = cache_folder() / "compiler"
    make_directory(folder, parents=True)
    path = folder / f"{kernel.source[:24]}_{kernel.name[:80]}.py"
    write_atomic(path, kernel.text.encode())
    return path


# --- configurations -------------------------------------------------------------------------------

_FLAT = (128, 256, 512, 1_024, 2_048, 4_096)
_TILES = ((16, 256), (32, 32), (32, 128), (64, 64), (128, 32), (256, 16), (32, 64), (64, 32))
_ROWS, _LENGTHS = (1, 2, 4, 8, 16, 32, 64), (256, 512, 1_024, 2_048, 4_096)
_LEAST_ELEMENTS, _MOST_ELEMENTS, _MOST_A_THREAD = 64, 16_384, 64


def configs_of(kernel: GeneratedKernel) -> tuple[Retuned, ...]:
    """Ways to launch a kernel, from all that its heuristic might choose and some that it would not.

    Blocks are no larger than the loops; a thread has at least one element and at most 64.
    """
    length = kernel.size_hints.get("r0_", 1)
    held = length if kernel.heuristic == "persistent_reduction" else 1
    found = []
    for blocks in _blocks(kernel):
        elements = held
        for value in blocks.values():
            elements *= value
        for warps in (1, 2, 4, 8, 16, 32):
            threads = 32 * warps
            if threads <= max(elements, 32) and elements <= _MOST_A_THREAD * threads:
                found.append(Retuned(kernel=kernel.name, source=kernel.source, blocks=blocks,
                                     num_warps=warps, num_stages=1))  # fmt: skip
    return tuple(found)


def _blocks(kernel: GeneratedKernel) -> Iterator[dict[str, int]]:
    """Values of the kernel's block sizes; nothing for kernels of other shapes."""
    names, hints = kernel.blocks, kernel.size_hints
    if "ws_ptr" in kernel.signature or kernel.heuristic == "cooperative_reduction":
        return  # programs share a workspace that was sized for one configuration
    if names == ("XBLOCK",):
        sizes: Sequence[int] = _ROWS if "reduction" in kernel.heuristic else _FLAT
        yield from ({"XBLOCK": x} for x in sizes if x <= hints.get("x", x))
    elif set(names) == {"XBLOCK", "YBLOCK"}:
        yield from ({"XBLOCK": x, "YBLOCK": y} for x, y in _TILES
                    if x <= hints.get("x", x) and y <= hints.get("y", y))  # fmt: skip
    elif set(names) == {"XBLOCK", "R0_BLOCK"}:
        yield from (
            {"XBLOCK": x, "R0_BLOCK": r} for x in _ROWS for r in _LENGTHS
            if x <= hints.get("x", x) and r <= hints.get("r0_", r)
            and _LEAST_ELEMENTS <= x * r <= _MOST_ELEMENTS
        )  # fmt: skip
    elif not names and kernel.heuristic == "persistent_reduction":
        yield {}


def settings_of(retuned: Sequence[Retuned]) -> dict[str, Any]:
    """Inductor's options under which it launches these kernels so.

    It compiles them itself: its children may have kernels of the same text loaded, as they were.
    """
    table = {
        one.source: {**one.blocks, "num_warps": one.num_warps, "num_stages": one.num_stages}
        for one in retuned
    }
    return {
        "autotune_lookup_table": {**config.autotune_lookup_table, **table},
        "compile_threads": 1,
    }


@contextmanager
def as_retuned(retuned: Sequence[Retuned]) -> Iterator[None]:
    """While this lasts, Inductor launches the kernels it compiles as they are retuned.

    Kernels of the same text that were loaded before keep their configurations: modules are loaded
    anew.
    """
    PyCodeCache.cache_clear()
    CompiledTritonKernels.cache_clear()
    try:
        with config.patch(settings_of(retuned)):
            yield
    finally:
        PyCodeCache.cache_clear()
        CompiledTritonKernels.cache_clear()
